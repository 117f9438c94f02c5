// SPDX-License-Identifier: Apache-2.0
#include "analysis/scan/trainings.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/match.h"

namespace rankprobe::analysis {

std::vector<Training> TrainingsOf(const ScanInput& input) {
  std::vector<Training> trainings;
  const ScanSeries* begins = nullptr;
  for (const ScanSeries& series : input.values) {
    if (absl::StartsWith(series.name, "Training.0.debug.new_training"))
      begins = &series;
  }
  for (size_t i = 0; i < input.steps.size(); ++i) {
    if (trainings.empty() || (begins != nullptr && i < begins->cells.size() &&
                              begins->cells[i].count > 0))
      trainings.push_back({input.steps[i], input.steps[i]});
    trainings.back().last_step = input.steps[i];
  }
  return trainings;
}

Training LongestOf(const ScanInput& input,
                   const std::vector<Training>& trainings) {
  const auto steps = [&](const Training& one) {
    return std::count_if(
        input.steps.begin(), input.steps.end(), [&](int64_t step) {
          return step >= one.first_step && step <= one.last_step;
        });
  };
  return *std::max_element(
      trainings.begin(), trainings.end(),
      [&](const auto& a, const auto& b) { return steps(a) < steps(b); });
}

}  // namespace rankprobe::analysis
