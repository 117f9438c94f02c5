// SPDX-License-Identifier: Apache-2.0
// Patterns of names: '*' stands for any text, '?' for one byte, all else for
// itself. Pure; time is at most pattern times text.
#ifndef RANKPROBE_COMMON_TEXT_GLOB_H_
#define RANKPROBE_COMMON_TEXT_GLOB_H_

#include "absl/strings/string_view.h"

namespace rankprobe {

// Whether the pattern describes all of the text.
bool GlobMatches(absl::string_view pattern, absl::string_view text);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TEXT_GLOB_H_
