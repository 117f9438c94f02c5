// SPDX-License-Identifier: Apache-2.0
// Queues of steps that have no rollup of all their records (rows of table u):
// to be rolled up, set aside, or still open; and of rows of summaries (table j)
// to be made.
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

// A process' step that has ended and has no rollup of all its records.
struct PendingRollup {
  uint32_t run_number = 0;
  StepKey key;
};

// A row of summaries of one process: those of 64^level steps from tile *
// 64^level on (docs/storage.md, "Summaries").
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

  // Loads rows of table u, up to the limit.
  absl::Status Load();
  // The same, including those that were set aside.
  absl::Status Reload() {
    aside_.clear();
    return Load();
  }
  void Add(const StepId& id);
  // Records that the step was written to at `now` of the monotonic clock. A
  // step that has not ended is rolled up as far as it exists, once it has
  // rested.
  void WrittenTo(const StepId& id, bool ended, int64_t now);
  // Returns up to `most` steps, the oldest steps of a run first. `runs` are the
  // existing ones, by name.
  std::vector<PendingRollup> NextRollups(
      size_t most, const std::map<std::string, v1::RunRow>& runs);
  void SetAside(const StepId& id);
  // Removes a step without records to roll up; unless `for_good`, it may still
  // get records.
  void Gone(const StepId& id, bool for_good);
  // Removes a step that has a valid rollup.
  void Done(const StepId& id);
  // Called when the step is deleted.
  void Erase(const StepId& id);
  void EraseRun(uint32_t run);
  // Returns step and incarnation of all rows of the run, if all are in memory;
  // unordered, some of them twice.
  std::optional<std::vector<std::pair<int64_t, uint64_t>>> Known(
      uint32_t run) const;

  // Records that one of the tile's steps changed now.
  void Touch(const SummaryTile& tile) {
    missing_tiles_[tile] = clock_->MonotonicNanos();
  }
  // Touches the tile of level 1 that contains the step.
  void TouchTileOf(const StepId& id);
  // Adds the tile as if it had rested, unless it already waits.
  void AddTile(const SummaryTile& tile);
  // Returns up to `most` waiting tiles that have rested, lowest level first.
  std::vector<SummaryTile> NextTiles(size_t most) const;
  void EraseTile(const SummaryTile& tile) { missing_tiles_.erase(tile); }
  // Called after this row of level 1 was written: queues an older one without
  // heads to be made again.
  void CloseOlderTile(const SummaryTile& tile, bool with_heads);

 private:
  void QueueRested();

  Index* const index_;
  const Clock* const clock_;
  // Rows of table u; each is in at least one of the three sets. If there are
  // more than the limit, pending_ has only some of them.
  std::set<StepId> pending_;
  std::set<StepId> aside_;
  bool more_pending_ = false;
  // When steps that have not ended were written to last, by the monotonic
  // clock.
  std::map<StepId, int64_t> open_;
  // When one of the tile's steps changed, by the monotonic clock.
  std::map<SummaryTile, int64_t> missing_tiles_;
  // The newest row of level 1 of each process that was written without heads.
  std::map<RunIncarnation, uint64_t> open_tiles_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_SERIES_QUEUE_H_
