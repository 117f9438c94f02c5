// SPDX-License-Identifier: Apache-2.0
// Which step a switch takes effect at, and which ranks' steps it believes.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collector/control/switch_operation.h"

namespace rankprobe {
namespace {

// Time that prepare and commit may take in the first attempt, and more of it
// for each rank; doubled in each further attempt.
constexpr double kRoundTripNs = 1e8;
constexpr double kRoundTripNsPerRank = 2e5;
constexpr uint32_t kOvertakingAttempts = 2;
// Who is idle at the first attempt and has passed the step is not.
constexpr uint32_t kIdleAttempts = 1;
constexpr int64_t kMinMargin = 2;
constexpr int64_t kMaxMargin = 100000;
// From one attempt to the next, if how fast the ranks are was seen for less than
// kSeenLong only.
constexpr int64_t kMaxGrowth = 8;
constexpr absl::Duration kSeenLong = absl::Milliseconds(100);
// A step is too far ahead when it takes so much longer to get there than it
// was to take, and longer than anybody waits without asking himself why.
constexpr double kFarAhead = 4;
constexpr double kFarAheadNs = 2e9;

// Ranks of one job are not further apart.
constexpr int64_t kOutlierSteps = 1000000;
// What a rank may have done since the switch began, beside so many times what
// its pace says: a step that takes longest is followed by shorter ones, and what
// was known of it then was that old.
constexpr int64_t kBelievedSteps = 64;
constexpr double kBelievedPace = 4;
constexpr absl::Duration kBelievedAge = absl::Seconds(1);
constexpr int64_t kUnknownPaceNs = 1000000;
constexpr absl::string_view kLeftOut = "left out: ";

}  // namespace

int64_t SwitchOperation::FurthestBelievable(std::vector<int64_t> steps) {
  // Those that have not begun say nothing.
  steps.erase(std::remove(steps.begin(), steps.end(), -1), steps.end());
  if (steps.empty()) return -1;
  std::sort(steps.begin(), steps.end());
  size_t i = (steps.size() - 1) / 2;
  while (i + 1 < steps.size() && steps[i + 1] - steps[i] <= kOutlierSteps) ++i;
  return steps[i];
}

bool SwitchOperation::IsLeftOut(const v1::RankSwitch& rank) {
  return absl::StartsWith(rank.reason(), kLeftOut);
}

std::vector<int64_t> SwitchOperation::StepsOfAllBut(const Rank* but) const {
  std::vector<int64_t> steps;
  for (const auto& [session, rank] : ranks_) {
    if (rank.state != v1::RankSwitch::STATE_LOST && !rank.left_out &&
        &rank != but)
      steps.push_back(actions_.look(session).step);
  }
  return steps;
}

int64_t SwitchOperation::FurthestStep() const {
  const std::vector<int64_t> steps = StepsOfAllBut(nullptr);
  std::vector<int64_t> believed;
  for (const auto& [session, rank] : ranks_) {
    if (rank.state == v1::RankSwitch::STATE_LOST || rank.left_out) continue;
    const int64_t step = actions_.look(session).step;
    if (CanHaveCome(rank, rank.was.step, step)) {
      believed.push_back(step);
      continue;
    }
    std::vector<int64_t> others = steps;
    others.erase(std::find(others.begin(), others.end(), step));
    if (IsAmong(rank, step, FurthestBelievable(std::move(others))))
      believed.push_back(step);
  }
  return FurthestBelievable(std::move(believed));
}

bool SwitchOperation::CanHaveCome(const Rank& rank, int64_t from,
                                  int64_t step) const {
  if (step <= from) return true;
  // Of one that had not begun nothing was known.
  if (from < 0) return false;
  const int64_t pace = rank.was.step_ns > 0 ? rank.was.step_ns : kUnknownPaceNs;
  const double since =
      absl::ToDoubleNanoseconds(actions_.now() - began_ + kBelievedAge);
  return static_cast<double>(step - from) <=
         kBelievedPace * since / static_cast<double>(pace) + kBelievedSteps;
}

bool SwitchOperation::IsAmong(const Rank& rank, int64_t step,
                              int64_t others) const {
  if (others < 0) return true;
  return rank.was.step < 0 ? step - others <= kOutlierSteps
                           : CanHaveCome(rank, others, step);
}

bool SwitchOperation::Believes(const std::string& session, int64_t step) const {
  const auto it = ranks_.find(session);
  return finished_ || it == ranks_.end() ||
         (!it->second.left_out && Believes(it->second, step));
}

bool SwitchOperation::Believes(const Rank& rank, int64_t step) const {
  return CanHaveCome(rank, rank.was.step, step) ||
         IsAmong(rank, step, FurthestBelievable(StepsOfAllBut(&rank)));
}

void SwitchOperation::LeaveOut(Rank* rank, int64_t step, int64_t others) {
  rank->left_out = true;
  SetState(rank, v1::RankSwitch::STATE_REFUSED);
  rank->reason = absl::StrCat(kLeftOut, "it says it is in step ", step,
                              ", the others are in step ", others,
                              " at most; it keeps its plan");
}

void SwitchOperation::LeaveOutliersOut() {
  const int64_t furthest = FurthestStep();
  for (auto& [session, rank] : ranks_) {
    const int64_t step = actions_.look(session).step;
    if (rank.state == v1::RankSwitch::STATE_LOST || rank.left_out ||
        step <= furthest)
      continue;
    LeaveOut(&rank, step, furthest);
  }
}

bool SwitchOperation::AreAllIdle() const {
  bool any = false;
  for (const auto& [session, rank] : ranks_) {
    if (rank.state == v1::RankSwitch::STATE_LOST || rank.left_out) continue;
    if (!actions_.look(session).idle) return false;
    any = true;
  }
  return any;
}

bool SwitchOperation::WaitsForIdleRanks() const {
  return committed_ && for_idle_ && NoneHasApplied() && AreAllIdle();
}

bool SwitchOperation::RestBeforeIt() const {
  // What looks at every rank comes last: this is asked with each tick.
  return committed_ && !rested_ && !for_idle_ &&
         !request_.options.has_at_step() && AreAllIdle() && NoneHasApplied() &&
         plan_->spec.effective_at_step() > FurthestStep() + 1;
}

bool SwitchOperation::NoneHasApplied() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    const Rank& rank = entry.second;
    return rank.state == v1::RankSwitch::STATE_LOST || rank.left_out ||
           rank.state == v1::RankSwitch::STATE_PREPARED;
  });
}

int64_t SwitchOperation::ChooseStep() {
  if (request_.options.has_at_step()) return request_.options.at_step();
  const int64_t furthest = FurthestStep();
  // Ranks that have not begun count from 0, or have passed it when they begin.
  for_idle_ = attempts_ <= kIdleAttempts && AreAllIdle();
  if (for_idle_) {
    margin_ = 1;
    return furthest + 1;
  }
  const int64_t step_ns = StepNanos(furthest);
  const bool seen_long =
      attempts_ == 1 || actions_.now() - prepared_at_ >= kSeenLong;
  const int64_t most =
      seen_long ? kMaxMargin : std::min(kMaxMargin, kMaxGrowth * margin_);
  const double steps =
      step_ns == 0 ? 0 : WaitNanos() / static_cast<double>(step_ns);
  margin_ = std::clamp(
      static_cast<int64_t>(std::min(steps, static_cast<double>(kMaxMargin))) +
          1,
      kMinMargin, most);
  if (request_.not_after.has_value() && attempts_ <= kOvertakingAttempts &&
      *request_.not_after > furthest)
    return std::min(furthest + margin_, *request_.not_after);
  return furthest + margin_;
}

int64_t SwitchOperation::StepNanos(int64_t furthest) const {
  int64_t fastest = 0;
  const auto note = [&fastest](int64_t step_ns) {
    if (step_ns > 0 && (fastest == 0 || step_ns < fastest)) fastest = step_ns;
  };
  for (const auto& [session, rank] : ranks_) {
    if (rank.state != v1::RankSwitch::STATE_LOST && !rank.left_out)
      note(actions_.look(session).step_ns);
  }
  // What they have done since the prepare tells more.
  const int64_t steps = furthest - prepared_at_step_;
  const absl::Duration took = actions_.now() - prepared_at_;
  if (plan_ != nullptr && steps > 0 && took > absl::ZeroDuration())
    note(std::max<int64_t>(absl::ToInt64Nanoseconds(took / steps), 1));
  return fastest;
}

double SwitchOperation::WaitNanos() const {
  return std::max((kRoundTripNs +
                   kRoundTripNsPerRank * static_cast<double>(ranks_.size())) *
                      static_cast<double>(1u << (attempts_ - 1)),
                  2 * absl::ToDoubleNanoseconds(slowest_));
}

bool SwitchOperation::IsFarAhead(int64_t now) const {
  const int64_t steps = plan_->spec.effective_at_step() - now;
  return steps > kMinMargin &&
         static_cast<double>(steps) * static_cast<double>(StepNanos(now)) >
             std::max(kFarAhead * WaitNanos(), kFarAheadNs);
}

}  // namespace rankprobe
