// SPDX-License-Identifier: Apache-2.0
// Tests that a store keeps the guarantees that the archive needs: of several
// that create one object at once, one succeeds, and what it put is there. Some
// stores ignore the condition, and some look first and write afterwards.
// Threads: makes its own. Failure: FAILED_PRECONDITION names the store and what
// it did; else the store's own error.
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_STORE_PROBE_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_STORE_PROBE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collector/object_store/object_store.h"

namespace rankprobe {

struct ProbeOptions {
  int racers = 8;
  // A round for each size of the object.
  std::vector<uint64_t> sizes = {64, 64, 256 << 10, 1 << 20};
};

// Puts objects below "probe/" and deletes them again.
absl::Status ProbeObjectStore(ObjectStore* store, const ProbeOptions& options);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_STORE_PROBE_H_
