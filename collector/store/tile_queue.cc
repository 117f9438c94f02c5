// SPDX-License-Identifier: Apache-2.0
#include "collector/store/tile_queue.h"

#include "absl/time/time.h"
#include "collector/store/step_summary.h"

namespace rankprobe {
namespace {

// Rows whose steps changed a shorter while ago are about to change again.
constexpr absl::Duration kTileRest = absl::Seconds(5);

int64_t RestedSince(const Clock& clock) {
  return clock.MonotonicNanos() - absl::ToInt64Nanoseconds(kTileRest);
}

}  // namespace

void TileQueue::TouchStep(const StepId& id) {
  Touch({id.run, 1, id.incarnation,
         static_cast<uint64_t>(id.step) >> kSummaryBits});
}

void TileQueue::Add(const SummaryTile& tile) {
  missing_.try_emplace(tile, RestedSince(*clock_));
}

std::vector<SummaryTile> TileQueue::Next(size_t most) const {
  std::vector<SummaryTile> out;
  const int64_t before = RestedSince(*clock_);
  for (const auto& [tile, touched] : missing_) {
    if (out.size() == most) break;
    if (touched <= before) out.push_back(tile);
  }
  return out;
}

void TileQueue::CloseOlder(const SummaryTile& tile, bool with_heads) {
  const RunIncarnation process{tile.run, tile.incarnation};
  const auto open = open_.find(process);
  if (open != open_.end() && open->second < tile.tile) {
    Touch({tile.run, 1, tile.incarnation, open->second});
    open_.erase(open);
  } else if (open != open_.end() && open->second == tile.tile && with_heads) {
    open_.erase(open);
  }
  if (!with_heads) open_[process] = tile.tile;
}

void TileQueue::EraseRun(uint32_t run) {
  std::erase_if(open_,
                [run](const auto& tile) { return tile.first.first == run; });
  std::erase_if(missing_,
                [run](const auto& tile) { return tile.first.run == run; });
}

}  // namespace rankprobe
