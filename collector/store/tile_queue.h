// SPDX-License-Identifier: Apache-2.0
// Rows of summaries (table j) that are to be made, again or for the first time.
// Threads: none of its own; the store's mutex guards it.
#ifndef RANKPROBE_COLLECTOR_STORE_TILE_QUEUE_H_
#define RANKPROBE_COLLECTOR_STORE_TILE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "collector/store/commit_work.h"
#include "common/base/clock.h"

namespace rankprobe {

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

class TileQueue {
 public:
  explicit TileQueue(const Clock* clock) : clock_(clock) {}

  // One of its steps changed now.
  void Touch(const SummaryTile& tile) {
    missing_[tile] = clock_->MonotonicNanos();
  }
  // That of level 1 which the step is in.
  void TouchStep(const StepId& id);
  // As if it had rested, unless it waits already.
  void Add(const SummaryTile& tile);
  // Some of those that wait and have rested, lowest level first.
  std::vector<SummaryTile> Next(size_t most) const;
  void Erase(const SummaryTile& tile) { missing_.erase(tile); }
  // After this row of level 1 was written: an older one that was left without
  // heads is made anew.
  void CloseOlder(const SummaryTile& tile, bool with_heads);
  void EraseRun(uint32_t run);

 private:
  const Clock* const clock_;
  // When one of their steps changed, by the monotonic clock.
  std::map<SummaryTile, int64_t> missing_;
  // Of a process the newest row of level 1 that was written without heads.
  std::map<RunIncarnation, uint64_t> open_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_TILE_QUEUE_H_
