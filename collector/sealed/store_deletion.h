// SPDX-License-Identifier: Apache-2.0
// Deletion in an object store: a tombstone in the run's log of maintenance.
// Readers do not see the data any more from then on; objects are removed by a
// janitor later (store_cleaner.h).
//
// It applies to the processes that the logs name: later data of theirs for a
// deleted step does not restore it, from whatever collector. A process that no
// log names yet is another training, and is kept.
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

// `steps` is absent for the complete run. `why` is for display.
absl::StatusOr<v1::DeleteReport> DeleteFromStore(
    ObjectStore* store, const std::string& run,
    const std::optional<std::set<int64_t>>& steps, absl::Time now,
    const std::string& why);

struct ExpiredSteps {
  uint64_t steps = 0;
  // No object of the run is left.
  bool whole_run = false;
};

// Deletes for a janitor: those of the current steps that are `wanted` and that
// none of their processes has written to since `written_before`. Later data is
// kept, even of the same numbers: a training that was started again under the
// name continues.
absl::StatusOr<ExpiredSteps> ExpireInStore(
    ObjectStore* store, const std::string& run,
    const std::function<bool(int64_t step, uint64_t incarnation)>& wanted,
    absl::Time written_before, absl::Time now);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_STORE_DELETION_H_
