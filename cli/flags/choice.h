// SPDX-License-Identifier: Apache-2.0
// Flags that take one of several words. Pure.
#ifndef RANKPROBE_CLI_FLAGS_CHOICE_H_
#define RANKPROBE_CLI_FLAGS_CHOICE_H_

#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace rankprobe {

// For CLI::Option::transform of a flag whose variable is an enumeration: replaces
// a word by the number of its value. The error about another word lists the
// words, where that of CLI::CheckedTransformer lists their numbers, too.
template <typename Enum>
CLI::Validator OneOf(std::vector<std::pair<std::string, Enum>> words) {
  const auto replace =
      [words = std::move(words)](std::string& text) -> std::string {
    std::vector<std::string> known;
    for (const auto& [word, value] : words) {
      if (text == word) {
        text = absl::StrCat(static_cast<int>(value));
        return "";
      }
      known.push_back(word);
    }
    return absl::StrCat(text, " not in {", absl::StrJoin(known, ","), "}");
  };
  return CLI::Validator(replace, "");
}

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_FLAGS_CHOICE_H_
