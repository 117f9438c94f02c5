// SPDX-License-Identifier: Apache-2.0
// Finds the module whose inputs are equal on the ranks and whose outputs are
// not: a reduction is missing in it or comes too late. Pure functions.
#ifndef RANKPROBE_ANALYSIS_RULES_PARTING_PLACE_H_
#define RANKPROBE_ANALYSIS_RULES_PARTING_PLACE_H_

#include <cstddef>
#include <string>

#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {

// Returns the value that the innermost module gives, which is not the same on
// the ranks in a step (an index) while what it takes is: the output of a forward
// before the gradient that a backward gives ("Module.layers.2.mlp.Mlp.backward.0.
// output.0"). Modules that hold a part of a weight do so by design. Empty: there is
// none, as where each rank has its own data.
std::string PartingPlace(const RankInput& input, size_t step);

// Returns the output of the only module that takes the same on the ranks, has
// other weights on each and gives something else. Empty if there are several, as
// the parts of a model are, or none.
std::string OwnWeightPlace(const RankInput& input, size_t step);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_PARTING_PLACE_H_
