// SPDX-License-Identifier: Apache-2.0
// Numbers on the command line, checked as they are written: CLI11 takes nan for
// a number of any range and truncates a number that is too large without an
// error.
// Pure.
#ifndef RANKPROBE_CLI_FLAGS_NUMBERS_H_
#define RANKPROBE_CLI_FLAGS_NUMBERS_H_

#include <cstdint>
#include <functional>
#include <string>

namespace rankprobe {

// Beyond any step of a training, and two of them still have a sum.
inline constexpr int64_t kLargestStep = 1000000000000000;

// For CLI::Option::check: why a text is not a number min..max; "" for a good one.
std::function<std::string(const std::string&)> NumberWithin(double min,
                                                            double max);
// The same for digits without a sign.
std::function<std::string(const std::string&)> IntegerWithin(int64_t min,
                                                             int64_t max);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_FLAGS_NUMBERS_H_
