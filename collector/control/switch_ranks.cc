// SPDX-License-Identifier: Apache-2.0
#include "collector/control/switch_ranks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

// Ranks of one job are not further apart.
constexpr int64_t kOutlierSteps = 1000000;
// What a rank may have done since the switch began, in addition to a multiple
// of its pace: the longest step is followed by shorter ones, and the pace was
// known from at most kBelievedAge before.
constexpr int64_t kBelievedSteps = 64;
constexpr double kBelievedPace = 4;
constexpr absl::Duration kBelievedAge = absl::Seconds(1);
constexpr int64_t kUnknownPaceNs = 1000000;
constexpr absl::string_view kLeftOut = "left out: ";

}  // namespace

SwitchRanks::SwitchRanks(
    const std::vector<std::string>& sessions,
    const std::function<v1::Identity(const std::string&)>& whose, Look look,
    std::function<absl::Time()> now)
    : look_(std::move(look)), now_(std::move(now)), began_(now_()) {
  for (const std::string& session : sessions) {
    const auto [it, is_new] = ranks_.try_emplace(session);
    if (!is_new) continue;
    it->second.identity = whose(session);
    it->second.was = look_(session);
    ++in_state_[static_cast<size_t>(it->second.state)];
  }
}

SwitchRanks::Rank* SwitchRanks::Find(const std::string& session) {
  const auto it = ranks_.find(session);
  return it == ranks_.end() ? nullptr : &it->second;
}

void SwitchRanks::SetState(Rank* rank, State state) {
  --in_state_[static_cast<size_t>(rank->state)];
  ++in_state_[static_cast<size_t>(state)];
  rank->state = state;
}

void SwitchRanks::SetLate(const std::string& session, std::string reason) {
  ranks_.at(session).late = std::move(reason);
  late_.insert(session);
}

void SwitchRanks::ClearLate(const std::string& session) {
  ranks_.at(session).late.reset();
  late_.erase(session);
}

void SwitchRanks::CallOff(const std::string& why) {
  for (auto& [session, rank] : ranks_) {
    if (rank.state != v1::RankSwitch::STATE_PREPARED &&
        rank.state != v1::RankSwitch::STATE_UNSPECIFIED)
      continue;
    SetState(&rank, v1::RankSwitch::STATE_REFUSED);
    rank.reason =
        absl::StrCat("called off: ", why, "; select the others with --ranks");
  }
}

std::vector<std::string> SwitchRanks::SetSilent() {
  std::vector<std::string> names;
  for (auto& [session, rank] : ranks_) {
    if (rank.state != v1::RankSwitch::STATE_UNSPECIFIED) continue;
    SetState(&rank, v1::RankSwitch::STATE_SILENT);
    rank.reason = "no answer";
    if (names.size() < kMaxNamedRanks) names.push_back(NameOf(rank.identity));
  }
  return names;
}

bool SwitchRanks::TakesPart(const Rank& rank) {
  return rank.state != v1::RankSwitch::STATE_LOST && !rank.left_out;
}

std::string SwitchRanks::NameOf(const v1::Identity& identity) {
  return identity.has_rank() ? absl::StrCat("rank ", identity.rank())
                             : absl::StrCat("proc", identity.pid());
}

int64_t SwitchRanks::FurthestOfOthers(const Rank& rank) const {
  return FurthestBelievable(StepsOfAllBut(&rank));
}

int64_t SwitchRanks::StepNanos() const {
  int64_t fastest = 0;
  for (const auto& [session, rank] : ranks_) {
    if (!TakesPart(rank)) continue;
    const int64_t step_ns = look_(session).step_ns;
    if (step_ns > 0 && (fastest == 0 || step_ns < fastest)) fastest = step_ns;
  }
  return fastest;
}

SwitchRanks::Counts SwitchRanks::Report(int64_t step,
                                        v1::SwitchResult* result) const {
  Counts counts;
  for (const auto& [session, rank] : ranks_) {
    v1::RankSwitch& out = *result->add_ranks();
    if (rank.identity.has_rank()) out.set_rank(rank.identity.rank());
    out.set_pid(rank.identity.pid());
    out.set_host(rank.identity.host());
    out.set_state(rank.state);
    out.set_applied_step(rank.applied_step);
    out.set_reason(rank.reason);
    if (rank.state == v1::RankSwitch::STATE_APPLIED &&
        rank.applied_step == step)
      ++counts.applied;
    if (rank.state == v1::RankSwitch::STATE_PREPARED) ++counts.prepared;
    const std::string who = NameOf(rank.identity);
    if (rank.converging && rank.state == v1::RankSwitch::STATE_APPLIED) {
      counts.late.push_back(absl::StrCat(who, " at step ", rank.applied_step));
    } else if (rank.late.has_value()) {
      counts.late.push_back(absl::StrCat(who, " at its next step"));
    }
  }
  std::sort(result->mutable_ranks()->begin(), result->mutable_ranks()->end(),
            [](const v1::RankSwitch& a, const v1::RankSwitch& b) {
              return std::make_pair(a.rank(), a.pid()) <
                     std::make_pair(b.rank(), b.pid());
            });
  return counts;
}

int64_t SwitchRanks::FurthestBelievable(std::vector<int64_t> steps) {
  // Ranks that have not begun are ignored.
  steps.erase(std::remove(steps.begin(), steps.end(), -1), steps.end());
  if (steps.empty()) return -1;
  std::sort(steps.begin(), steps.end());
  size_t i = (steps.size() - 1) / 2;
  while (i + 1 < steps.size() && steps[i + 1] - steps[i] <= kOutlierSteps) ++i;
  return steps[i];
}

bool SwitchRanks::IsLeftOut(const v1::RankSwitch& rank) {
  return absl::StartsWith(rank.reason(), kLeftOut);
}

std::vector<int64_t> SwitchRanks::StepsOfAllBut(const Rank* but) const {
  std::vector<int64_t> steps;
  for (const auto& [session, rank] : ranks_) {
    if (TakesPart(rank) && &rank != but) steps.push_back(look_(session).step);
  }
  return steps;
}

int64_t SwitchRanks::FurthestStep() const {
  const std::vector<int64_t> steps = StepsOfAllBut(nullptr);
  std::vector<int64_t> believed;
  for (const auto& [session, rank] : ranks_) {
    if (!TakesPart(rank)) continue;
    const int64_t step = look_(session).step;
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

bool SwitchRanks::CanHaveCome(const Rank& rank, int64_t from,
                              int64_t step) const {
  if (step <= from) return true;
  // For a rank that had not begun nothing is known.
  if (from < 0) return false;
  const int64_t pace = rank.was.step_ns > 0 ? rank.was.step_ns : kUnknownPaceNs;
  const double since =
      absl::ToDoubleNanoseconds(now_() - began_ + kBelievedAge);
  return static_cast<double>(step - from) <=
         kBelievedPace * since / static_cast<double>(pace) + kBelievedSteps;
}

bool SwitchRanks::IsAmong(const Rank& rank, int64_t step,
                          int64_t others) const {
  if (others < 0) return true;
  return rank.was.step < 0 ? step - others <= kOutlierSteps
                           : CanHaveCome(rank, others, step);
}

bool SwitchRanks::Believes(const Rank& rank, int64_t step) const {
  return CanHaveCome(rank, rank.was.step, step) ||
         IsAmong(rank, step, FurthestOfOthers(rank));
}

void SwitchRanks::LeaveOut(Rank* rank, int64_t step, int64_t others) {
  rank->left_out = true;
  SetState(rank, v1::RankSwitch::STATE_REFUSED);
  rank->reason = absl::StrCat(kLeftOut, "it says it is in step ", step,
                              ", the others are in step ", others,
                              " at most; it keeps its plan");
}

void SwitchRanks::LeaveOutliersOut() {
  const int64_t furthest = FurthestStep();
  for (auto& [session, rank] : ranks_) {
    const int64_t step = look_(session).step;
    if (TakesPart(rank) && step > furthest) LeaveOut(&rank, step, furthest);
  }
}

bool SwitchRanks::AreAllIdle() const {
  bool any = false;
  for (const auto& [session, rank] : ranks_) {
    if (!TakesPart(rank)) continue;
    if (!look_(session).idle) return false;
    any = true;
  }
  return any;
}

bool SwitchRanks::NoneHasApplied() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    const Rank& rank = entry.second;
    return !TakesPart(rank) || rank.state == v1::RankSwitch::STATE_PREPARED;
  });
}

}  // namespace rankprobe
