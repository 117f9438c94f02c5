// SPDX-License-Identifier: Apache-2.0
// A server's names for its clients' requests. Pure functions.
#ifndef RANKPROBE_COMMON_RECORDS_REQUEST_NAMES_H_
#define RANKPROBE_COMMON_RECORDS_REQUEST_NAMES_H_

#include "absl/strings/string_view.h"

namespace rankprobe {

// Whether `name` is the server's own name for the request that its client calls
// `id`: it may have the prefix "cmpl-" or "chatcmpl-", a suffix that begins
// with "-", and before all of that "1_" if a prompt has several answers.
bool IsRequestMadeOf(absl::string_view name, absl::string_view id);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RECORDS_REQUEST_NAMES_H_
