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
#include <functional>
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

struct ExpiredSteps {
  uint64_t steps = 0;
  // Nothing of the run is left.
  bool whole_run = false;
};

// What a janitor deletes: of what is there now the steps that are `wanted` and that
// none of their processes has written to since. Nothing else that is coming, also
// of the same numbers: a training that was started again under the name goes on.
absl::StatusOr<ExpiredSteps> ExpireInStore(
    ObjectStore* store, const std::string& run,
    const std::function<bool(int64_t step, uint64_t incarnation)>& wanted,
    absl::Time written_before, absl::Time now);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_STORE_DELETION_H_
