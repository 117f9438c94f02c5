// SPDX-License-Identifier: Apache-2.0
// Text from outside (names of runs, hosts, entries, messages of errors) escaped
// for a terminal or a line of a log: it can neither control a terminal, nor
// begin a new line, nor display its letters in another order. Pure functions.
#ifndef RANKPROBE_COMMON_TEXT_VISIBLE_TEXT_H_
#define RANKPROBE_COMMON_TEXT_VISIBLE_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace rankprobe {

// Returns the text with "\n", "\r", "\t" for those characters, "\x1b" for other
// control bytes and for bytes that are not UTF-8, and "\u202e" for control
// characters beyond ASCII: C1, line separators, and characters that change the
// text direction. Everything else is unchanged, including backslashes.
std::string VisibleText(absl::string_view untrusted);

// Replaces such characters in the strings of `json` by JSON's own escapes.
// `json` must be valid and have its C0 characters escaped already.
std::string VisibleJson(absl::string_view json);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TEXT_VISIBLE_TEXT_H_
