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

// What the finite ones of some numbers reach from and to.
struct PlotScale {
  std::optional<double> low, high;
  // The smallest above 0.
  std::optional<double> low_positive;

  void Add(const std::vector<std::optional<double>>& numbers);
  // None is below 0, and they reach over more than two decades.
  bool logarithmic() const;
};

// The same in shades, from a dot to a full block: of rows that have one scale
// equal shades are equal numbers. `scale` was given these numbers, too.
std::string HeatRow(const std::vector<std::optional<double>>& numbers,
                    const PlotScale& scale, size_t width);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_SPARKLINE_H_
