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

// Returns the sorted members, each from 0 to 1,000,000; an empty text gives
// none. Returns INVALID_ARGUMENT with the flag and the part that cannot be
// read.
absl::StatusOr<std::vector<int64_t>> ParseRanges(absl::string_view flag,
                                                 absl::string_view text);

// For CLI::Option::check: returns an error if the text of a flag is not a list,
// and "" otherwise. A missing flag means all, so an empty text is refused: it
// is probably a shell variable that is not set.
std::string WhyNoRanges(const std::string& text);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_FLAGS_RANGES_H_
