// SPDX-License-Identifier: Apache-2.0
// Writes what SeriesReader reads: says what is to be made, and takes it. What is in
// the rows is collector/archive's.
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
#include "collector/store/archive_reader.h"
#include "collector/store/commit_work.h"
#include "collector/store/series_queue.h"
#include "collector/store/store_core.h"
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

// A statistic of the values of a block.
struct RollupColumnRow {
  uint32_t block = 0;
  uint8_t statistic = 0;
  std::string bytes;
};

// What a step is rolled up to (docs/storage.md, "Rollups"), and what the run
// needs to read it that is not stored yet.
struct RollupRows {
  v1::RollupHead head;
  // Of those that the layout names.
  std::vector<RollupColumnRow> columns;
  std::vector<std::pair<uint32_t, v1::RollupName>> names;
  std::vector<std::pair<uint32_t, v1::RollupLayout>> layouts;
};

class SeriesWriter {
 public:
  SeriesWriter(StoreCore* core, ArchiveReader* reader)
      : core_(core), reader_(reader) {}

  // Some of what is to be rolled up, the oldest steps of a run first.
  std::vector<PendingRollup> PendingRollups(size_t most);
  // The step cannot be rolled up: not to be named again by this object.
  void SetRollupAside(const PendingRollup& step);
  // Has every step of the run rolled up, whether it ended or not, that has no
  // rollup which holds.
  absl::StatusOr<v1::ReindexReport> QueueRollups(const std::string& run);
  // Whole or not at all; replaces what the step was rolled up to before. Waits
  // for deletions, never holds up a Commit. FAILED_PRECONDITION: the step or
  // its run no longer exists.
  absl::Status WriteRollup(const PendingRollup& step, const RollupRows& rows);
  // Some of those that wait and whose steps have rested, lowest level first.
  std::vector<SummaryTile> TilesToMake(size_t most);
  void AddTileToMake(const SummaryTile& tile);
  // `make` reads heads and lower tiles, which stay as they are meanwhile; empty
  // bytes: nothing is to be kept. `with_heads`: the process has come to steps
  // behind those of this row of level 1, and what is made is to hold their heads,
  // which go then. FAILED_PRECONDITION: the run is gone.
  absl::Status WriteTile(
      const SummaryTile& tile,
      const std::function<absl::StatusOr<std::string>(bool with_heads)>& make);

 private:
  // By incarnation the first and the last of its steps.
  using StepRanges = std::map<uint64_t, std::pair<int64_t, int64_t>>;

  // The run's steps have a row u or a rollup that holds.
  absl::Status MarkSummarised(const std::string& run, const StepRanges& ranges)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);
  // Adds to the head what the step's row says; whether the head counts all of its
  // records.
  absl::StatusOr<bool> Describe(const PendingRollup& step, v1::RollupHead* head)
      ABSL_LOCKS_EXCLUDED(core_->mutex);
  // Whether the process has come to steps behind the row.
  absl::StatusOr<bool> IsPassed(const SummaryTile& tile)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);

  StoreCore* const core_;
  ArchiveReader* const reader_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_SERIES_WRITER_H_
