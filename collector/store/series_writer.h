// SPDX-License-Identifier: Apache-2.0
// Writer of the rows that SeriesReader reads: lists what has to be made, and
// stores it. The encoding of the rows belongs to collector/archive.
// Threads: thread-safe. Failure: as in SeriesReader.
#ifndef RANKPROBE_COLLECTOR_STORE_SERIES_WRITER_H_
#define RANKPROBE_COLLECTOR_STORE_SERIES_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/store/commit_work.h"
#include "collector/store/series_queue.h"
#include "collector/store/store_core.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

// One statistic of the values of a block.
struct RollupColumnRow {
  uint32_t block = 0;
  uint8_t statistic = 0;
  std::string bytes;
};

// The rollup of a step (docs/storage.md, "Rollups"), with the names and layouts
// it needs that are not stored yet.
struct RollupRows {
  v1::RollupHead head;
  // Columns of the blocks that the layout names.
  std::vector<RollupColumnRow> columns;
  std::vector<std::pair<uint32_t, v1::RollupName>> names;
  std::vector<std::pair<uint32_t, v1::RollupLayout>> layouts;
};

class SeriesWriter {
 public:
  explicit SeriesWriter(StoreCore* core) : core_(core) {}

  // Returns up to `most` steps that need a rollup, the oldest steps of a run
  // first.
  std::vector<PendingRollup> PendingRollups(size_t most);
  // Marks a step that cannot be rolled up; this object does not return it
  // again.
  void SetRollupAside(const PendingRollup& step);
  // Writes a rollup completely or not at all, and replaces an earlier one of
  // the step. Waits for deletions, never blocks a Commit. FAILED_PRECONDITION
  // if the step or its run no longer exists.
  absl::Status WriteRollup(const PendingRollup& step, const RollupRows& rows);
  // Returns up to `most` queued tiles whose steps have rested, lowest level
  // first.
  std::vector<SummaryTile> TilesToMake(size_t most);
  void AddTileToMake(const SummaryTile& tile);
  // `make` reads heads and lower tiles, which do not change meanwhile; if it
  // returns no bytes, no row is written. `with_heads`: the process has written
  // steps after those of this row of level 1, so the row also holds their
  // heads, which are then deleted. FAILED_PRECONDITION if the run no longer
  // exists.
  absl::Status WriteTile(
      const SummaryTile& tile,
      const std::function<absl::StatusOr<std::string>(bool with_heads)>& make);

 private:
  // Adds the counts of the step's row to the head. Returns whether the head
  // counts all of its records.
  absl::StatusOr<bool> Describe(const PendingRollup& step, v1::RollupHead* head)
      ABSL_LOCKS_EXCLUDED(core_->mutex);
  // Returns whether the process has written steps after the row.
  absl::StatusOr<bool> IsPassed(const SummaryTile& tile)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);

  StoreCore* const core_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_SERIES_WRITER_H_
