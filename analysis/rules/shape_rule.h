// SPDX-License-Identifier: Apache-2.0
// Base class of the rules on what the agent reads in the graph of the first
// losses. Not thread-safe.
#ifndef RANKPROBE_ANALYSIS_RULES_SHAPE_RULE_H_
#define RANKPROBE_ANALYSIS_RULES_SHAPE_RULE_H_

#include <optional>
#include <utility>
#include <vector>

#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {

// The first recorded value that shows the fault is the finding. The agent
// records these values in the first steps; the first number says how the fault
// is known.
class ShapeRule : public RankRule {
 public:
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override {
    return "in three steps a reading of the graph of each loss";
  }
  size_t LeastSteps() const override { return 1; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "loss");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      for (size_t i = 0; i < input.steps.size(); ++i) {
        std::optional<RankFinding> found = LookAt(rank, i);
        if (!found.has_value()) continue;
        found->step = input.steps[i];
        return {*std::move(found)};
      }
    }
    return {};
  }

 private:
  // Null where nothing is found; judges where there is something to compare.
  virtual std::optional<RankFinding> LookAt(const RankSeries& rank,
                                            size_t step) const = 0;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_SHAPE_RULE_H_
