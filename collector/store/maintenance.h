// SPDX-License-Identifier: Apache-2.0
// Deletion and the return of space beside ingest.
//
// A deletion is written down first (table d), so that one cut short by a crash
// is finished at the next open. Payloads go when no step refers to them any
// more (table f). Bytes come back when segments with few live chunks are
// written anew; chunks are copied and synced before the index points at them
// and before the old file goes.
//
// Threads: one maintenance job at a time (the caller's lock); the commit path
// goes on between the short critical sections.
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
  // It stays if it has another number of records by then.
  std::optional<uint64_t> records;
};

// Deletes the records of the steps and the payloads that only they refer to.
// Payloads that a step at or above `keep_from_step` referred to stay.
absl::Status DeleteSteps(StoreCore* core, uint32_t run,
                         std::vector<StepToDelete> steps,
                         int64_t keep_from_step, int64_t now_unix_ns,
                         v1::DeleteReport* report);

// Of the tables that a deleted run has left. It needs room on the disk for a while,
// and what LevelDB does not find room for here, the next write is told.
void CompactTablesOfRun(Index* index, uint32_t run);

// Deletes all rows of a run whose RunRow is gone.
absl::Status DeleteRunRows(StoreCore* core, uint32_t run,
                           v1::DeleteReport* report);

// Frees payloads of the run that nothing refers to.
absl::Status FreeOrphans(StoreCore* core, uint32_t run,
                         v1::DeleteReport* report);

// Frees chunks of unfinished payloads that somebody else has sent whole; `all`:
// every one, as nobody writes to the run any more.
absl::Status FreePartials(StoreCore* core, uint32_t run, bool all);

// Finishes deletions that a crash cut short.
absl::Status ResumeDeletions(StoreCore* core);

struct GarbageReport {
  uint64_t orphans_freed = 0;
  uint64_t segments_removed = 0;
  uint64_t bytes_removed = 0;
  uint64_t bytes_copied = 0;
  // Of all segments, before.
  uint64_t live_bytes = 0;
  uint64_t total_bytes = 0;
  // Segments that no row of this index has ever named; they stay.
  uint64_t unknown_segments = 0;
};
// Writes segments anew of which less than the store's min_live_share is live; where
// `target_bytes` is not 0 others too, those with the least first, until all hold no
// more or are nearly live. One with a damaged chunk stays until the payload is
// deleted.
absl::StatusOr<GarbageReport> CompactSegments(StoreCore* core,
                                              uint64_t target_bytes);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_MAINTENANCE_H_
