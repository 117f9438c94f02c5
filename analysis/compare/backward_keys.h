// SPDX-License-Identifier: Apache-2.0
// Under which key an entry looks for its partner: its name, but for backward calls,
// which arrive in an order of their own. Pure functions.
#ifndef RANKPROBE_ANALYSIS_COMPARE_BACKWARD_KEYS_H_
#define RANKPROBE_ANALYSIS_COMPARE_BACKWARD_KEYS_H_

#include <string>
#include <vector>

namespace rankprobe::analysis {

// One for each name; partners have equal ones.
struct BackwardKeys {
  std::vector<std::string> target;
  std::vector<std::string> reference;
};

// Names of two dumps, in their order. `put_together`: one of them is of ranks that
// were put together (analysis/layout), whose calls have the other run's names.
BackwardKeys KeysOfBackward(const std::vector<std::string>& target,
                            const std::vector<std::string>& reference,
                            bool put_together);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_BACKWARD_KEYS_H_
