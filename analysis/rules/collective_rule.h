// SPDX-License-Identifier: Apache-2.0
// Base of the rules that compare the result of a collective on each rank with
// the inputs of the ranks. Pure functions of plain values.
#ifndef RANKPROBE_ANALYSIS_RULES_COLLECTIVE_RULE_H_
#define RANKPROBE_ANALYSIS_RULES_COLLECTIVE_RULE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {

// Rounding error of float32, relative to the largest elements.
inline constexpr double kCollectiveRounding = 1e-6;

// Input and output of one rank in one call.
struct Member {
  int64_t rank = 0;
  const RankCell* in = nullptr;
  const RankCell* out = nullptr;
};
using Members = std::vector<Member>;

// Returns groups of members with equal results.
std::vector<Members> ByResult(const Members& members);

class CollectiveRule : public RankRule {
 public:
  absl::string_view needs() const override { return "communication"; }
  bool IsOfRanks() const override { return true; }
  bool CanJudge(const RankInput& input) const override;
  std::vector<RankFinding> Look(const RankInput& input) const override;

 protected:
  // Whether the rule applies to a function such as "all_reduce".
  virtual bool IsOfRule(absl::string_view function) const = 0;
  // Checks one call. `name` is that of its first output, which at least one
  // rank recorded.
  virtual std::optional<RankFinding> LookAt(const RankInput& input,
                                            const std::string& name) const = 0;
  // Returns the ranks that recorded both sides of the call in a step (an
  // index). `inputs` are the possible names of the argument, "0" or a keyword.
  static Members MembersAt(const RankInput& input, const std::string& name,
                           size_t step,
                           std::initializer_list<absl::string_view> inputs);
  // Returns the first input or output of a module that satisfies `is_taken` in
  // each of `steps`; empty if there is none.
  static std::string TakenBy(
      const RankSeries& rank, const std::vector<size_t>& steps,
      absl::FunctionRef<bool(const RankCell& cell, size_t step)> is_taken);

 private:
  std::set<std::string> NamesOf(const RankInput& input) const;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_COLLECTIVE_RULE_H_
