// SPDX-License-Identifier: Apache-2.0
// The cross entropies of a step, read from recorded values. Pure functions.
#ifndef RANKPROBE_ANALYSIS_RULES_LOSS_CALLS_H_
#define RANKPROBE_ANALYSIS_RULES_LOSS_CALLS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {

// Returns whether two numbers are equal except for rounding.
inline bool AreAlike(double a, double b) {
  return std::fabs(a - b) <= 1e-4 * std::max(std::fabs(a), std::fabs(b));
}

// A cross entropy: the number of targets that count, and the weight of each.
struct LossCall {
  int64_t rank = 0;
  double tokens = 0;
  double weight = 0;
};

inline std::vector<LossCall> CallsAt(const RankSeries& rank, size_t step) {
  const std::vector<double> tokens = TrainingAt(rank, "loss_tokens", step);
  const std::vector<double> weights = TrainingAt(rank, "token_weight", step);
  std::vector<LossCall> calls;
  for (size_t i = 0; i < tokens.size() && i < weights.size(); ++i) {
    if (tokens[i] > 0 && weights[i] != 0)
      calls.push_back({rank.rank, tokens[i], weights[i]});
  }
  return calls;
}

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_LOSS_CALLS_H_
