// SPDX-License-Identifier: Apache-2.0
// Deletion and the return of space while ingest continues.
//
// A deletion is written to the index first (table d), so that one that a crash
// interrupted is finished at the next open. Payloads are deleted when no step
// refers to them any more (table f). Space is returned by rewriting segments
// with few live chunks; chunks are copied and synced before the index points at
// them, and before the old file is removed.
//
// Threads: one maintenance job at a time (the caller's lock); the commit path
// continues between the short critical sections.
// Failure: the first error; what was done stays done, the rest can be resumed.
#ifndef RANKPROBE_COLLECTOR_STORE_MAINTENANCE_H_
#define RANKPROBE_COLLECTOR_STORE_MAINTENANCE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/store/index.h"
#include "collector/store/store_core.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

struct StepToDelete {
  int64_t step = 0;
  uint64_t incarnation = 0;
  // If set, the step is kept if its number of records differs from this at the
  // time of the deletion.
  std::optional<uint64_t> records;
};

// Deletes the records of the steps and the payloads that only they refer to.
// Payloads that a step at or above `keep_from_step` referred to stay.
absl::Status DeleteSteps(StoreCore* core, uint32_t run,
                         std::vector<StepToDelete> steps,
                         int64_t keep_from_step, int64_t now_unix_ns,
                         v1::DeleteReport* report);

// Compacts the tables of a deleted run. It temporarily requires disk space; if
// LevelDB does not find enough, the next write returns the error.
void CompactTablesOfRun(Index* index, uint32_t run);

// Deletes all rows of a run whose RunRow no longer exists.
absl::Status DeleteRunRows(StoreCore* core, uint32_t run,
                           v1::DeleteReport* report);

// Frees payloads of the run that no step refers to.
absl::Status FreeOrphans(StoreCore* core, uint32_t run,
                         v1::DeleteReport* report);

// Frees chunks of unfinished payloads that another sender has completed. `all`
// frees every one, for a run that no process writes to any more.
absl::Status FreePartials(StoreCore* core, uint32_t run, bool all);

// Finishes deletions that a crash interrupted.
absl::Status ResumeDeletions(StoreCore* core);

struct GarbageReport {
  uint64_t orphans_freed = 0;
  uint64_t segments_removed = 0;
  uint64_t bytes_removed = 0;
  uint64_t bytes_copied = 0;
  // Bytes of all segments, before the collection.
  uint64_t live_bytes = 0;
  uint64_t total_bytes = 0;
  // Segments that no row of this index has ever named; they are kept.
  uint64_t unknown_segments = 0;
};
// Rewrites segments whose live share is below the store's min_live_share. If
// `target_bytes` is not 0, rewrites others too, those with the least live bytes
// first, until all segments are within the target or are nearly live. A segment
// with a damaged chunk stays until the payload is deleted.
absl::StatusOr<GarbageReport> CompactSegments(StoreCore* core,
                                              uint64_t target_bytes);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_MAINTENANCE_H_
