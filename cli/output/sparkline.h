// SPDX-License-Identifier: Apache-2.0
// Numbers over steps in one line of text. Pure.
#ifndef RANKPROBE_CLI_OUTPUT_SPARKLINE_H_
#define RANKPROBE_CLI_OUTPUT_SPARKLINE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace rankprobe {

// Returns at most `width` characters (`width` is at least 1), each for several
// neighbouring numbers if necessary: a block with the height of the largest of
// them, on a scale from the smallest to the largest of all; '!' if one is NaN
// or infinite, a blank if there is none.
std::string Sparkline(const std::vector<std::optional<double>>& numbers,
                      size_t width);

// The range of the finite numbers that were added.
struct PlotScale {
  std::optional<double> low, high;
  // The smallest number above 0.
  std::optional<double> low_positive;

  void Add(const std::vector<std::optional<double>>& numbers);
  // Whether no number is below 0 and the range is more than two decades.
  bool logarithmic() const;
};

// Returns the same in shades, from a dot to a full block; rows with one scale
// show equal numbers in equal shades. The numbers must have been added to
// `scale`.
std::string HeatRow(const std::vector<std::optional<double>>& numbers,
                    const PlotScale& scale, size_t width);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_SPARKLINE_H_
