// SPDX-License-Identifier: Apache-2.0
// Keys under which entries look for their partners. A key is the entry's name,
// except for backward calls, whose order of arrival differs from run to run.
// Pure functions.
#ifndef RANKPROBE_ANALYSIS_COMPARE_BACKWARD_KEYS_H_
#define RANKPROBE_ANALYSIS_COMPARE_BACKWARD_KEYS_H_

#include <string>
#include <vector>

namespace rankprobe::analysis {

// One key for each name; partners have equal keys.
struct BackwardKeys {
  std::vector<std::string> target;
  std::vector<std::string> reference;
};

// Returns the keys of the names of two dumps, in their order. `put_together`
// says that one dump was joined from several ranks (analysis/layout) and that
// its calls have the names of the other run.
BackwardKeys KeysOfBackward(const std::vector<std::string>& target,
                            const std::vector<std::string>& reference,
                            bool put_together);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_BACKWARD_KEYS_H_
