// SPDX-License-Identifier: Apache-2.0
#include "cli/output/sparkline.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rankprobe {
namespace {

constexpr std::array<absl::string_view, 8> kBlocks = {
    "\u2581", "\u2582", "\u2583", "\u2584",
    "\u2585", "\u2586", "\u2587", "\u2588"};

}  // namespace

std::string Sparkline(const std::vector<std::optional<double>>& numbers,
                      size_t width) {
  std::optional<double> smallest, largest;
  for (const std::optional<double>& number : numbers) {
    if (!number.has_value() || !std::isfinite(*number)) continue;
    smallest = std::min(smallest.value_or(*number), *number);
    largest = std::max(largest.value_or(*number), *number);
  }
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
    if (bad) {
      line += '!';
    } else if (!top.has_value()) {
      line += ' ';
    } else {
      // Halves, so that numbers of either end of double do not overflow.
      const double range = *largest / 2 - *smallest / 2;
      const double height =
          range > 0 ? (*top / 2 - *smallest / 2) / range : 0.5;
      absl::StrAppend(
          &line,
          kBlocks[std::min<size_t>(static_cast<size_t>(height * kBlocks.size()),
                                   kBlocks.size() - 1)]);
    }
  }
  return line;
}

}  // namespace rankprobe
