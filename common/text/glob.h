// SPDX-License-Identifier: Apache-2.0
// Patterns of names: '*' matches any text, '?' matches one byte, any other byte
// matches itself. Pure; time is at most pattern times text.
#ifndef RANKPROBE_COMMON_TEXT_GLOB_H_
#define RANKPROBE_COMMON_TEXT_GLOB_H_

#include "absl/strings/string_view.h"

namespace rankprobe {

// Whether the pattern matches the complete text.
bool GlobMatches(absl::string_view pattern, absl::string_view text);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TEXT_GLOB_H_
