// SPDX-License-Identifier: Apache-2.0
// Words of a command line that a person copies into a shell. Pure functions.
#ifndef RANKPROBE_COMMON_TEXT_SHELL_WORD_H_
#define RANKPROBE_COMMON_TEXT_SHELL_WORD_H_

#include <string>

#include "absl/strings/string_view.h"

namespace rankprobe {

// Returns the word unchanged if no shell interprets it, otherwise in quotes.
std::string ShellWord(absl::string_view word);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TEXT_SHELL_WORD_H_
