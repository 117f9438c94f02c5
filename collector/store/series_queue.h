// SPDX-License-Identifier: Apache-2.0
// Steps that no rollup of all their records is there of (rows of table u), whether
// they are to be rolled up, cannot be, or still go on; and rows of summaries
// (table j) that are to be made.
// Threads: none of its own; the store's mutex guards it. Failure: the index's
// errors.
#ifndef RANKPROBE_COLLECTOR_STORE_SERIES_QUEUE_H_
#define RANKPROBE_COLLECTOR_STORE_SERIES_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "collector/store/archive_reader.h"
#include "collector/store/commit_work.h"
#include "collector/store/index.h"
#include "common/base/clock.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

// A process' step that ended, and that no rollup of all its records is there of.
struct PendingRollup {
  uint32_t run_number = 0;
  StepKey key;
};

// A row of summaries of one process: those of 64^level steps from tile * 64^level
// on (docs/storage.md, "Summaries").
struct SummaryTile {
  uint32_t run = 0;
  int level = 1;
  uint64_t incarnation = 0;
  uint64_t tile = 0;

  friend bool operator<(const SummaryTile& a, const SummaryTile& b) {
    return std::tie(a.level, a.run, a.incarnation, a.tile) <
           std::tie(b.level, b.run, b.incarnation, b.tile);
  }
};

class SeriesQueue {
 public:
  SeriesQueue(Index* index, const Clock* clock)
      : index_(index), clock_(clock) {}

  // As many rows as are kept.
  absl::Status Load();
  // The same, those that were set aside among them.
  absl::Status Reload() {
    aside_.clear();
    return Load();
  }
  void Add(const StepId& id);
  // It was written to at `now` of the monotonic clock. One that goes on is rolled
  // up as far as it is there, once it has rested.
  void WrittenTo(const StepId& id, bool ended, int64_t now);
  // The oldest steps of a run first. `runs`: those that are there, by name.
  std::vector<PendingRollup> NextRollups(
      size_t most, const std::map<std::string, v1::RunRow>& runs);
  void SetAside(const StepId& id);
  // There is nothing to roll up; if not for good, it may still get records.
  void Gone(const StepId& id, bool for_good);
  // It has a rollup that holds.
  void Done(const StepId& id);
  // The step is deleted.
  void Erase(const StepId& id);
  void EraseRun(uint32_t run);
  // Step and incarnation of all rows of the run, if all are known; in no order,
  // some of them twice.
  std::optional<std::vector<std::pair<int64_t, uint64_t>>> Known(
      uint32_t run) const;

  // One of the tile's steps changed now.
  void Touch(const SummaryTile& tile) {
    missing_tiles_[tile] = clock_->MonotonicNanos();
  }
  // Touches the tile of level 1 that contains the step.
  void TouchTileOf(const StepId& id);
  // As if it had rested, unless it waits already.
  void AddTile(const SummaryTile& tile);
  // Some of those that wait and have rested, lowest level first.
  std::vector<SummaryTile> NextTiles(size_t most) const;
  void EraseTile(const SummaryTile& tile) { missing_tiles_.erase(tile); }
  // After this row of level 1 was written: an older one that was left without
  // heads is made anew.
  void CloseOlderTile(const SummaryTile& tile, bool with_heads);

 private:
  void QueueRested();

  Index* const index_;
  const Clock* const clock_;
  // Rows of table u, each in one of the three at least; if there are more, only
  // some are in the first of them.
  std::set<StepId> pending_;
  std::set<StepId> aside_;
  bool more_pending_ = false;
  // Steps that have not ended: when they were written to last, by the monotonic
  // clock.
  std::map<StepId, int64_t> open_;
  // When one of their steps changed, by the monotonic clock.
  std::map<SummaryTile, int64_t> missing_tiles_;
  // The newest row of level 1 of each process that was written without heads.
  std::map<RunIncarnation, uint64_t> open_tiles_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_SERIES_QUEUE_H_
