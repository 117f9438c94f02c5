// SPDX-License-Identifier: Apache-2.0
// Base of the rules that compare what a collective gave each rank with what the
// ranks put in. Pure functions of plain values.
#ifndef RANKPROBE_ANALYSIS_RULES_COLLECTIVE_RULE_H_
#define RANKPROBE_ANALYSIS_RULES_COLLECTIVE_RULE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {

// Rounding of float32, relative to the largest elements.
inline constexpr double kCollectiveRounding = 1e-6;

// What one rank gave and received in one call.
struct Member {
  int64_t rank = 0;
  const RankCell* in = nullptr;
  const RankCell* out = nullptr;
};
using Members = std::vector<Member>;

// Groups of members with equal results.
std::vector<Members> ByResult(const Members& members);

class CollectiveRule : public RankRule {
 public:
  absl::string_view needs() const override { return "communication"; }
  bool IsOfRanks() const override { return true; }
  bool CanJudge(const RankInput& input) const override;
  std::vector<RankFinding> Look(const RankInput& input) const override;

 protected:
  // `function`: "all_reduce".
  virtual bool IsOfRule(absl::string_view function) const = 0;
  // `name`: of the first output of a call, which at least one rank recorded.
  virtual std::optional<RankFinding> LookAt(const RankInput& input,
                                            const std::string& name) const = 0;
  // The ranks that recorded both sides of the call in a step (an index). `inputs`:
  // the names that the argument may have, "0" or a keyword.
  static Members MembersAt(const RankInput& input, const std::string& name,
                           size_t step,
                           std::initializer_list<absl::string_view> inputs);

 private:
  std::set<std::string> NamesOf(const RankInput& input) const;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_COLLECTIVE_RULE_H_
