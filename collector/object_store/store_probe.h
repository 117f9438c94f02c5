// SPDX-License-Identifier: Apache-2.0
// Test that a store keeps the guarantees that the archive needs: of several
// concurrent creates of one object one succeeds, and the object has its
// content. Some stores ignore the condition, and some check first and write
// afterwards.
// Threads: creates its own. Failure: FAILED_PRECONDITION names the store and
// what it did; else the store's own error.
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_STORE_PROBE_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_STORE_PROBE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "collector/object_store/object_store.h"

namespace rankprobe {

struct ProbeOptions {
  int racers = 8;
  // One round for each size of the object.
  std::vector<uint64_t> sizes = {64, 64, 256 << 10, 1 << 20};
};

// Puts objects below "probe/" and deletes them again.
absl::Status ProbeObjectStore(ObjectStore* store, const ProbeOptions& options);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_STORE_PROBE_H_
