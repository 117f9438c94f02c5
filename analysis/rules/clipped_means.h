// SPDX-License-Identifier: Apache-2.0
// Finds replicas that clip their gradients before they average them. Pure
// functions.
#ifndef RANKPROBE_ANALYSIS_RULES_CLIPPED_MEANS_H_
#define RANKPROBE_ANALYSIS_RULES_CLIPPED_MEANS_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {

// Returns a finding if each replica (an index of input.ranks) clips its own
// gradients by their norm, and the mean is of what is left: what the optimizer
// takes is the mean of the ranks' gradients, each divided by its norm, times one
// number that is the same in each step.
std::optional<RankFinding> ClippedBeforeMean(const RankInput& input,
                                             const std::vector<size_t>& group);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_CLIPPED_MEANS_H_
