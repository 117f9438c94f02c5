// SPDX-License-Identifier: Apache-2.0
// Text from outside (names of runs, hosts, entries, messages of errors) escaped
// for a terminal or a line of a log: it can neither control a terminal, nor
// begin a new line, nor display its letters in another order. Pure functions.
#ifndef RANKPROBE_COMMON_TEXT_VISIBLE_TEXT_H_
#define RANKPROBE_COMMON_TEXT_VISIBLE_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace rankprobe {

// The text with "\n", "\r", "\t" in place of those, "\x1b" for other control
// bytes and for bytes that are no UTF-8, "\u202e" for control characters beyond
// ASCII: C1, separators of lines, and what changes the direction of text. All
// else stays, a backslash too.
std::string VisibleText(absl::string_view untrusted);

// JSON whose strings hold such characters, with JSON's own escapes for them.
// `json` is valid and has its C0 characters escaped already.
std::string VisibleJson(absl::string_view json);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TEXT_VISIBLE_TEXT_H_
