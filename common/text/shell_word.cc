// SPDX-License-Identifier: Apache-2.0
#include "common/text/shell_word.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace rankprobe {

std::string ShellWord(absl::string_view word) {
  const bool plain = std::all_of(word.begin(), word.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("_.,:/@%+=-", c);
  });
  if (plain && !word.empty()) return std::string(word);
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

}  // namespace rankprobe
