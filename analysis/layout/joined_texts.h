// SPDX-License-Identifier: Apache-2.0
// stack.json and construct.json of ranks that were joined into one. Pure
// functions.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_JOINED_TEXTS_H_
#define RANKPROBE_ANALYSIS_LAYOUT_JOINED_TEXTS_H_

#include <string>

#include "analysis/layout/step_ranks.h"

namespace rankprobe::analysis {

// Returns, for each call, the stack of the first rank that has it; an empty
// text if there are no stacks.
std::string JoinedStacks(const StepRanks& ranks);
// Returns the same for the call's parent in the module tree.
std::string JoinedConstruct(const StepRanks& ranks);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_JOINED_TEXTS_H_
