// SPDX-License-Identifier: Apache-2.0
#include "cli/output/sparkline.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rankprobe {
namespace {

constexpr std::array<absl::string_view, 8> kBlocks = {
    "\u2581", "\u2582", "\u2583", "\u2584",
    "\u2585", "\u2586", "\u2587", "\u2588"};
constexpr std::array<absl::string_view, 5> kShades = {
    "\u00b7", "\u2591", "\u2592", "\u2593", "\u2588"};
// Ratio from which numbers are shaded by their logarithms.
constexpr double kWideRange = 100;

// One character for neighbouring numbers: that of the largest of them.
std::string Signs(const std::vector<std::optional<double>>& numbers,
                  size_t width,
                  absl::FunctionRef<absl::string_view(double)> sign_of) {
  const size_t each = (numbers.size() + width - 1) / width;
  std::string line;
  for (size_t begin = 0; begin < numbers.size(); begin += each) {
    std::optional<double> top;
    bool bad = false;
    const size_t end = std::min(begin + each, numbers.size());
    for (size_t i = begin; i < end; ++i) {
      if (!numbers[i].has_value()) continue;
      if (!std::isfinite(*numbers[i])) {
        bad = true;
      } else {
        top = std::max(top.value_or(*numbers[i]), *numbers[i]);
      }
    }
    absl::StrAppend(&line, bad               ? absl::string_view("!")
                           : top.has_value() ? sign_of(*top)
                                             : absl::string_view(" "));
  }
  return line;
}

// Returns the position of `number` between `low` and `high`, from 0 to 1.
double Height(double number, double low, double high) {
  // Halves the numbers, so that the difference of the largest doubles does not
  // overflow.
  const double range = high / 2 - low / 2;
  return range > 0 ? (number / 2 - low / 2) / range : 0.5;
}

size_t Level(double height, size_t levels) {
  return std::min(
      static_cast<size_t>(std::max(height, 0.0) * static_cast<double>(levels)),
      levels - 1);
}

}  // namespace

std::string Sparkline(const std::vector<std::optional<double>>& numbers,
                      size_t width) {
  PlotScale scale;
  scale.Add(numbers);
  return Signs(numbers, width, [&scale](double number) {
    return kBlocks[Level(Height(number, *scale.low, *scale.high),
                         kBlocks.size())];
  });
}

void PlotScale::Add(const std::vector<std::optional<double>>& numbers) {
  for (const std::optional<double>& number : numbers) {
    if (!number.has_value() || !std::isfinite(*number)) continue;
    low = std::min(low.value_or(*number), *number);
    high = std::max(high.value_or(*number), *number);
    if (*number > 0)
      low_positive = std::min(low_positive.value_or(*number), *number);
  }
}

bool PlotScale::logarithmic() const {
  return low.has_value() && *low >= 0 && low_positive.has_value() &&
         *high / kWideRange > *low_positive;
}

std::string HeatRow(const std::vector<std::optional<double>>& numbers,
                    const PlotScale& scale, size_t width) {
  return Signs(numbers, width, [&scale](double number) {
    const double height =
        !scale.logarithmic() ? Height(number, *scale.low, *scale.high)
        : number <= 0        ? 0
                      : Height(std::log(number), std::log(*scale.low_positive),
                               std::log(*scale.high));
    return kShades[Level(height, kShades.size())];
  });
}

}  // namespace rankprobe
