// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the known word that a mistyped one is closest to. Pure
// functions.
#ifndef RANKPROBE_COMMON_TEXT_NEAREST_H_
#define RANKPROBE_COMMON_TEXT_NEAREST_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rankprobe {

// The word of `known` with the smallest edit distance from `typed` (insertion,
// deletion, substitution, swap of two letters), ignoring case, '-' and '_'; the
// first of several. Empty if each differs by more than a third of its letters,
// or if `typed` has more than 100 bytes.
std::string NearestWord(absl::string_view typed,
                        const std::vector<std::string>& known);

// "; did you mean WORD?", or empty.
std::string DidYouMean(absl::string_view typed,
                       const std::vector<std::string>& known);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TEXT_NEAREST_H_
