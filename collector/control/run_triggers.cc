// SPDX-License-Identifier: Apache-2.0
#include "collector/control/run_triggers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/config/trigger_spec.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxReplicaSteps = 64;

}  // namespace

void RunTriggers::Set(const v1::TriggerSpec& spec) {
  spec_ = WithDefaults(spec);
  set_ = true;
  turns_.clear();
  silent_.clear();
  degrade_ = 0;
}

std::optional<RunTriggers::Fired> RunTriggers::OnFired(
    const v1::Identity& identity, const v1::TriggerFired& fired) const {
  for (const v1::TriggerRule& rule : spec_.rules()) {
    if (rule.name() == fired.rule() && !rule.has_silence() &&
        !rule.has_replica())
      return Fired{rule, identity, fired.step(), fired.entry(), fired.detail()};
  }
  return std::nullopt;
}

std::vector<RunTriggers::Fired> RunTriggers::OnReplica(
    const v1::Identity& identity, const v1::ReplicaDigest& replica,
    size_t ranks) {
  std::vector<Fired> all;
  const auto rule =
      std::find_if(spec_.rules().begin(), spec_.rules().end(),
                   [](const v1::TriggerRule& r) { return r.has_replica(); });
  if (rule == spec_.rules().end()) return all;
  auto& step = replicas_[replica.step()];
  step[identity.incarnation()] = {identity, replica.digest()};
  if (step.size() < ranks || ranks < 2) {
    while (replicas_.size() > kMaxReplicaSteps)
      replicas_.erase(replicas_.begin());
    return all;
  }
  std::map<uint64_t, size_t> votes;
  for (const auto& [incarnation, r] : step) ++votes[r.digest];
  if (votes.size() > 1) {
    const auto most = std::max_element(
        votes.begin(), votes.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    for (const auto& [incarnation, r] : step) {
      if (r.digest == most->first) continue;
      all.push_back(
          {*rule, r.identity, replica.step(), "",
           absl::StrCat("digest ", absl::Hex(r.digest, absl::kZeroPad16),
                        ", that of ", most->second, " of ", step.size(),
                        " ranks is ",
                        absl::Hex(most->first, absl::kZeroPad16))});
    }
  }
  replicas_.erase(replicas_.begin(), replicas_.upper_bound(replica.step()));
  return all;
}

std::vector<RunTriggers::Fired> RunTriggers::CheckSilence(
    const std::vector<Rank>& ranks, absl::Time now) {
  std::vector<Fired> all;
  for (const v1::TriggerRule& rule : spec_.rules()) {
    if (!rule.has_silence()) continue;
    const absl::Duration limit = absl::Milliseconds(rule.silence().after_ms());
    // If all ranks wait for one, that one is among the furthest behind.
    int64_t behind = INT64_MAX;
    for (const Rank& rank : ranks) {
      if (!rank.farewell && rank.step >= 0)
        behind = std::min(behind, rank.step);
    }
    for (const Rank& rank : ranks) {
      if (rank.farewell || rank.step < 0 || now - rank.moved < limit ||
          rank.step > behind)
        continue;
      const auto [it, is_new] =
          silent_.try_emplace(rank.identity.incarnation(), rank.step);
      if (!is_new && it->second == rank.step) continue;
      it->second = rank.step;
      all.push_back(
          {rule, rank.identity, rank.step, "",
           absl::StrCat(rank.connected
                            ? "no new step for "
                            : "the process disconnected without a goodbye, ",
                        absl::FormatDuration(absl::Trunc(
                            now - rank.moved, absl::Milliseconds(1))),
                        rank.connected ? "" : " ago")});
    }
  }
  return all;
}

bool RunTriggers::TryStartCooldown(const v1::TriggerRule& rule,
                                   const std::string& domain, absl::Time now,
                                   std::string* why) {
  Turn& turn = turns_[{rule.name(), domain}];
  if (turn.fires >= rule.max_fires()) {
    *why = absl::StrCat("the rule has fired ", turn.fires, " times");
    return false;
  }
  if (now < turn.rests_until) {
    *why = absl::StrCat("the rule pauses for another ",
                        absl::FormatDuration(absl::Ceil(
                            turn.rests_until - now, absl::Milliseconds(1))));
    return false;
  }
  ++turn.fires;
  turn.rests_until = now + absl::Milliseconds(rule.cool_down_ms());
  return true;
}

std::optional<uint32_t> RunTriggers::OnBytes(uint64_t bytes) {
  bytes_ += bytes;
  const uint64_t limit = spec_.budget().bytes_per_run();
  if (limit == 0) return std::nullopt;
  const uint32_t level = bytes_ / 2 >= limit ? 2 : bytes_ >= limit ? 1 : 0;
  if (level <= degrade_) return std::nullopt;
  degrade_ = level;
  return level;
}

}  // namespace rankprobe
