// SPDX-License-Identifier: Apache-2.0
#include "common/text/glob.h"

#include <cstddef>

namespace rankprobe {

bool GlobMatches(absl::string_view pattern, absl::string_view text) {
  size_t p = 0, t = 0;
  // Position of the last '*', and the end of the text that it matches.
  size_t star = absl::string_view::npos, star_end = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_end = t;
    } else if (p < pattern.size() &&
               (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      t = ++star_end;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace rankprobe
