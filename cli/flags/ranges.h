// SPDX-License-Identifier: Apache-2.0
// "0,4-6" on the command line. Pure.
#ifndef RANKPROBE_CLI_FLAGS_RANGES_H_
#define RANKPROBE_CLI_FLAGS_RANGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

// Sorted members of 0 .. 1,000,000; empty text gives none. INVALID_ARGUMENT
// names the flag and the piece that cannot be read.
absl::StatusOr<std::vector<int64_t>> ParseRanges(absl::string_view flag,
                                                 absl::string_view text);

// For CLI::Option::check: why the text of a flag is not a list; "" for a good one.
// A flag that is left out means all, one that is there and empty is a slip: a
// variable of a shell that is not set.
std::string WhyNoRanges(const std::string& text);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_FLAGS_RANGES_H_
