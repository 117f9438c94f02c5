// SPDX-License-Identifier: Apache-2.0
// Numbers on the command line, checked as they are written: CLI11 accepts nan
// for a number of any range and truncates a number that is too large without an
// error. Pure.
#ifndef RANKPROBE_CLI_FLAGS_NUMBERS_H_
#define RANKPROBE_CLI_FLAGS_NUMBERS_H_

#include <cstdint>
#include <functional>
#include <string>

namespace rankprobe {

// Larger than any step of a training, and small enough that the sum of two does
// not overflow.
inline constexpr int64_t kLargestStep = 1000000000000000;

// Returns a function for CLI::Option::check, which returns an error if a text
// is not a number from `min` to `max`, and "" otherwise.
std::function<std::string(const std::string&)> NumberWithin(double min,
                                                            double max);
// The same for digits without a sign.
std::function<std::string(const std::string&)> IntegerWithin(int64_t min,
                                                             int64_t max);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_FLAGS_NUMBERS_H_
