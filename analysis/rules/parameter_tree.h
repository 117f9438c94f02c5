// SPDX-License-Identifier: Apache-2.0
// Position of parameters in a model, determined from their names. Pure
// functions.
#ifndef RANKPROBE_ANALYSIS_RULES_PARAMETER_TREE_H_
#define RANKPROBE_ANALYSIS_RULES_PARAMETER_TREE_H_

#include <string>
#include <vector>

namespace rankprobe::analysis {

// Returns whether `some` belong to a head or to the last numbered layers, and
// `others` to layers before them. Such a part of a model is often trained
// alone.
bool IsEndOfModel(const std::vector<std::string>& some,
                  const std::vector<std::string>& others);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_PARAMETER_TREE_H_
