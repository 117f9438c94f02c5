// SPDX-License-Identifier: Apache-2.0
// Deletion of what is in an object store: a tombstone in the run's log of
// maintenance. Readers see nothing of it any more from then on; objects are
// removed by a janitor later (store_cleaner.h).
//
// It is of the processes that the logs name: what comes of them later for a
// deleted step does not bring it back, from whatever collector. A process that no
// log names yet is another training, and stays.
// Threads: any. Failure: NOT_FOUND (no such run), else as ReadRunLog.
#ifndef RANKPROBE_COLLECTOR_SEALED_STORE_DELETION_H_
#define RANKPROBE_COLLECTOR_SEALED_STORE_DELETION_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collector/object_store/object_store.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

// `steps`: absent for the whole run. `why`: for people.
absl::StatusOr<v1::DeleteReport> DeleteFromStore(
    ObjectStore* store, const std::string& run,
    const std::optional<std::set<int64_t>>& steps, absl::Time now,
    const std::string& why);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_STORE_DELETION_H_
