// SPDX-License-Identifier: Apache-2.0
// The end of a model, found by the names of its parameters. Pure functions of
// names.
#ifndef RANKPROBE_ANALYSIS_RULES_PARAMETER_TREE_H_
#define RANKPROBE_ANALYSIS_RULES_PARAMETER_TREE_H_

#include <string>
#include <vector>

namespace rankprobe::analysis {

// Whether `some` are those of a head, or of the last of numbered layers, and
// `others` are before them. People train such a part of a model alone.
bool IsTheEnd(const std::vector<std::string>& some,
              const std::vector<std::string>& others);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_PARAMETER_TREE_H_
