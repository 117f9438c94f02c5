// SPDX-License-Identifier: Apache-2.0
// A server's names for its clients' requests. Pure functions.
#ifndef RANKPROBE_COMMON_RECORDS_REQUEST_NAMES_H_
#define RANKPROBE_COMMON_RECORDS_REQUEST_NAMES_H_

#include "absl/strings/string_view.h"

namespace rankprobe {

// Whether `name` is a server's own for the request that its client calls `id`:
// "cmpl-" or "chatcmpl-" may stand before it, "-" with any text behind it, and
// "1_" before all of that, of several answers to one prompt.
bool IsRequestMadeOf(absl::string_view name, absl::string_view id);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RECORDS_REQUEST_NAMES_H_
