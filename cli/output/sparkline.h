// SPDX-License-Identifier: Apache-2.0
// Numbers over steps in one line of text. Pure.
#ifndef RANKPROBE_CLI_OUTPUT_SPARKLINE_H_
#define RANKPROBE_CLI_OUTPUT_SPARKLINE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace rankprobe {

// At most `width` signs (at least 1), each for as many neighbouring numbers as
// it takes: a block whose height is the largest of them, between the smallest
// and the largest of all; '!' where one is NaN or infinite, a blank where there
// is none.
std::string Sparkline(const std::vector<std::optional<double>>& numbers,
                      size_t width);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_SPARKLINE_H_
