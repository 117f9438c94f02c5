// SPDX-License-Identifier: Apache-2.0
// Check that an untrusted text is one JSON value. Pure function.
#ifndef RANKPROBE_COMMON_TEXT_JSON_CHECK_H_
#define RANKPROBE_COMMON_TEXT_JSON_CHECK_H_

#include "absl/strings/string_view.h"

namespace rankprobe {

// True for exactly one value of RFC 8259 in valid UTF-8, nested at most
// `max_depth` deep. Linear, without recursion.
bool IsJsonText(absl::string_view untrusted, int max_depth);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TEXT_JSON_CHECK_H_
