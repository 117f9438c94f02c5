// SPDX-License-Identifier: Apache-2.0
#include "collector/store/series_queue.h"

#include <limits>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collector/store/keys.h"
#include "collector/store/step_summary.h"

namespace rankprobe {
namespace {

// Limit for queued steps in memory, some 64 bytes each.
constexpr size_t kMaxPendingRollups = 1 << 18;
// A step without new records for this long is rolled up although it has not
// ended.
constexpr absl::Duration kOpenRest = absl::Seconds(10);

// Rows whose steps changed more recently are about to change again.
constexpr absl::Duration kTileRest = absl::Seconds(5);

int64_t RestedSince(const Clock& clock) {
  return clock.MonotonicNanos() - absl::ToInt64Nanoseconds(kTileRest);
}

}  // namespace

absl::Status SeriesQueue::Load() {
  more_pending_ = false;
  const absl::Status status = index_->Scan(
      "u", [this](absl::string_view key, absl::string_view) -> absl::Status {
        const std::optional<uint32_t> run = keys::ParseRun(key);
        const std::optional<keys::StepParts> step = keys::ParseStep(key);
        if (!run.has_value() || !step.has_value()) return absl::OkStatus();
        Add({*run, step->step, step->incarnation});
        return more_pending_ ? absl::CancelledError() : absl::OkStatus();
      });
  if (more_pending_) return absl::OkStatus();
  more_pending_ = !status.ok();
  return status;
}

void SeriesQueue::Add(const StepId& id) {
  if (aside_.contains(id)) return;
  if (pending_.size() >= kMaxPendingRollups) {
    more_pending_ = true;
  } else {
    pending_.insert(id);
  }
}

void SeriesQueue::WrittenTo(const StepId& id, bool ended, int64_t now) {
  if (ended) {
    open_.erase(id);
    Add(id);
  } else {
    open_[id] = now;
  }
}

void SeriesQueue::QueueRested() {
  const int64_t before =
      clock_->MonotonicNanos() - absl::ToInt64Nanoseconds(kOpenRest);
  for (auto it = open_.begin(); it != open_.end();) {
    if (it->second > before) {
      ++it;
      continue;
    }
    Add(it->first);
    it = open_.erase(it);
  }
}

std::vector<PendingRollup> SeriesQueue::NextRollups(
    size_t most, const std::map<std::string, v1::RunRow>& runs) {
  QueueRested();
  // An error is ignored, because the next call reads again.
  if (pending_.empty() && more_pending_) Load().IgnoreError();
  std::map<uint32_t, absl::string_view> names;
  for (const auto& [name, row] : runs) names[row.id()] = name;
  std::vector<PendingRollup> out;
  for (auto it = pending_.begin(); it != pending_.end() && out.size() < most;) {
    const auto name = names.find(it->run);
    if (name == names.end()) {  // deleted
      it = pending_.erase(it);
      continue;
    }
    PendingRollup& pending = out.emplace_back();
    pending.run_number = it->run;
    pending.key.run = std::string(name->second);
    pending.key.step = it->step;
    pending.key.incarnation = it->incarnation;
    ++it;
  }
  return out;
}

void SeriesQueue::SetAside(const StepId& id) {
  pending_.erase(id);
  aside_.insert(id);
}

void SeriesQueue::Gone(const StepId& id, bool for_good) {
  pending_.erase(id);
  if (!for_good) open_[id] = std::numeric_limits<int64_t>::max();
}

void SeriesQueue::Done(const StepId& id) {
  pending_.erase(id);
  open_.erase(id);
}

void SeriesQueue::Erase(const StepId& id) {
  Done(id);
  aside_.erase(id);
  TouchTileOf(id);
}

void SeriesQueue::EraseRun(uint32_t run) {
  const auto of_run = [run](const auto& entry) {
    return entry.first.run == run;
  };
  std::erase_if(open_, of_run);
  std::erase_if(missing_tiles_, of_run);
  std::erase_if(open_tiles_,
                [run](const auto& tile) { return tile.first.first == run; });
  for (std::set<StepId>* const steps : {&pending_, &aside_})
    std::erase_if(*steps, [run](const StepId& id) { return id.run == run; });
}

std::optional<std::vector<std::pair<int64_t, uint64_t>>> SeriesQueue::Known(
    uint32_t run) const {
  if (more_pending_) return std::nullopt;
  std::vector<std::pair<int64_t, uint64_t>> out;
  const StepId first{run, std::numeric_limits<int64_t>::min(), 0};
  for (const std::set<StepId>* const some : {&pending_, &aside_}) {
    for (auto it = some->lower_bound(first);
         it != some->end() && it->run == run; ++it)
      out.emplace_back(it->step, it->incarnation);
  }
  for (auto it = open_.lower_bound(first);
       it != open_.end() && it->first.run == run; ++it)
    out.emplace_back(it->first.step, it->first.incarnation);
  return out;
}

void SeriesQueue::TouchTileOf(const StepId& id) {
  Touch({id.run, 1, id.incarnation,
         static_cast<uint64_t>(id.step) >> kSummaryBits});
}

void SeriesQueue::AddTile(const SummaryTile& tile) {
  missing_tiles_.try_emplace(tile, RestedSince(*clock_));
}

std::vector<SummaryTile> SeriesQueue::NextTiles(size_t most) const {
  std::vector<SummaryTile> out;
  const int64_t before = RestedSince(*clock_);
  for (const auto& [tile, touched] : missing_tiles_) {
    if (out.size() == most) break;
    if (touched <= before) out.push_back(tile);
  }
  return out;
}

void SeriesQueue::CloseOlderTile(const SummaryTile& tile, bool with_heads) {
  const RunIncarnation process{tile.run, tile.incarnation};
  const auto open = open_tiles_.find(process);
  if (open != open_tiles_.end() && open->second < tile.tile) {
    Touch({tile.run, 1, tile.incarnation, open->second});
    open_tiles_.erase(open);
  } else if (open != open_tiles_.end() && open->second == tile.tile &&
             with_heads) {
    open_tiles_.erase(open);
  }
  if (!with_heads) open_tiles_[process] = tile.tile;
}

}  // namespace rankprobe
