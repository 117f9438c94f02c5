// SPDX-License-Identifier: Apache-2.0
#include "analysis/rules/collective_rule.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace rankprobe::analysis {

std::vector<Members> ByResult(const Members& members) {
  std::vector<Members> out;
  for (const Member& member : members) {
    const auto known = std::find_if(
        out.begin(), out.end(),
        [&](const Members& one) { return AreEqual(*one[0].out, *member.out); });
    if (known == out.end()) {
      out.push_back({member});
    } else {
      known->push_back(member);
    }
  }
  return out;
}

bool CollectiveRule::CanJudge(const RankInput& input) const {
  return input.ranks.size() > 1 && !NamesOf(input).empty();
}

std::vector<RankFinding> CollectiveRule::Look(const RankInput& input) const {
  std::optional<RankFinding> found;
  for (const std::string& name : NamesOf(input))
    KeepEarliest(LookAt(input, name), &found);
  if (!found.has_value()) return {};
  return {*found};
}

Members CollectiveRule::MembersAt(
    const RankInput& input, const std::string& name, size_t step,
    std::initializer_list<absl::string_view> inputs) {
  const std::string call = name.substr(0, name.rfind(".output."));
  Members members;
  for (const RankSeries& rank : input.ranks) {
    const std::vector<RankCell>* in = nullptr;
    for (const absl::string_view given : inputs) {
      if (in == nullptr) in = rank.Find(absl::StrCat(call, ".input.", given));
    }
    const auto* const out = rank.Find(name);
    if (in != nullptr && out != nullptr && IsFinite((*in)[step]) &&
        IsFinite((*out)[step]))
      members.push_back({rank.rank, &(*in)[step], &(*out)[step]});
  }
  return members;
}

std::set<std::string> CollectiveRule::NamesOf(const RankInput& input) const {
  std::set<std::string> names;
  for (const RankSeries& rank : input.ranks) {
    for (const auto& [name, cells] : rank.values) {
      // "Distributed.all_reduce.0.forward.output.0"; of a list of tensors
      // "Distributed.all_gather.0.forward.output.0.0"
      if (!absl::StartsWith(name, "Distributed.") ||
          !(absl::EndsWith(name, ".forward.output.0") ||
            absl::EndsWith(name, ".forward.output.0.0")))
        continue;
      const std::vector<absl::string_view> parts =
          absl::StrSplit(name, absl::MaxSplits('.', 2));
      if (IsOfRule(parts[1])) names.insert(name);
    }
  }
  return names;
}

std::string CollectiveRule::TakenBy(
    const RankSeries& rank, const std::vector<size_t>& steps,
    absl::FunctionRef<bool(const RankCell& cell, size_t step)> is_taken) {
  for (const auto& [name, cells] : rank.values) {
    if (!absl::StartsWith(name, "Module.") ||
        absl::StrContains(name, ".parameters"))
      continue;
    const std::vector<RankCell>& taken = cells;
    if (std::all_of(steps.begin(), steps.end(), [&](size_t i) {
          return IsFinite(taken[i]) && is_taken(taken[i], i);
        }))
      return name;
  }
  return "";
}

}  // namespace rankprobe::analysis
