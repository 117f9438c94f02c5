// SPDX-License-Identifier: Apache-2.0
// stack.json and construct.json of ranks that were put together. Pure functions.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_JOINED_TEXTS_H_
#define RANKPROBE_ANALYSIS_LAYOUT_JOINED_TEXTS_H_

#include <string>

#include "analysis/layout/step_ranks.h"

namespace rankprobe::analysis {

// Of each call the stack of the first rank that has it; empty when there is none.
std::string JoinedStacks(const StepRanks& ranks);
// The same of its parent in the module tree.
std::string JoinedConstruct(const StepRanks& ranks);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_JOINED_TEXTS_H_
