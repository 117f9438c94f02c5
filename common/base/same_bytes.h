// SPDX-License-Identifier: Apache-2.0
// Constant-time comparison of secrets and their digests: == ends at the first
// byte that differs, so its duration reveals how many bytes of a guess are
// right.
// Pure.
#ifndef RANKPROBE_COMMON_BASE_SAME_BYTES_H_
#define RANKPROBE_COMMON_BASE_SAME_BYTES_H_

#include "absl/strings/string_view.h"

namespace rankprobe {

// Takes the same time wherever two texts of equal length differ.
bool SameBytes(absl::string_view a, absl::string_view b);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_SAME_BYTES_H_
