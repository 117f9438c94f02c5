// SPDX-License-Identifier: Apache-2.0
#include "collector/store/rollup_queue.h"

#include <limits>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collector/store/keys.h"

namespace rankprobe {
namespace {

// Steps to be rolled up that are in memory, some 64 bytes each.
constexpr size_t kMaxPendingRollups = 1 << 18;
// A step that does not go on for so long is rolled up though it has not ended.
constexpr absl::Duration kOpenRest = absl::Seconds(10);

}  // namespace

absl::Status RollupQueue::Load() {
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

void RollupQueue::Add(const StepId& id) {
  if (aside_.contains(id)) return;
  if (pending_.size() >= kMaxPendingRollups) {
    more_pending_ = true;
  } else {
    pending_.insert(id);
  }
}

void RollupQueue::WrittenTo(const StepId& id, bool ended, int64_t now) {
  if (ended) {
    open_.erase(id);
    Add(id);
  } else {
    open_[id] = now;
  }
}

void RollupQueue::QueueRested() {
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

std::vector<PendingRollup> RollupQueue::Next(
    size_t most, const std::map<std::string, v1::RunRow>& runs) {
  QueueRested();
  // What cannot be read now is asked for again with the next call.
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

void RollupQueue::SetAside(const StepId& id) {
  pending_.erase(id);
  aside_.insert(id);
}

void RollupQueue::Gone(const StepId& id, bool for_good) {
  pending_.erase(id);
  if (!for_good) open_[id] = std::numeric_limits<int64_t>::max();
}

void RollupQueue::Done(const StepId& id) {
  pending_.erase(id);
  open_.erase(id);
}

void RollupQueue::Erase(const StepId& id) {
  Done(id);
  aside_.erase(id);
}

void RollupQueue::EraseRun(uint32_t run) {
  std::erase_if(open_,
                [run](const auto& step) { return step.first.run == run; });
  for (std::set<StepId>* const steps : {&pending_, &aside_})
    std::erase_if(*steps, [run](const StepId& id) { return id.run == run; });
}

std::optional<std::vector<std::pair<int64_t, uint64_t>>> RollupQueue::Known(
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

}  // namespace rankprobe
