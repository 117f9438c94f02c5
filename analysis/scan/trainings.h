// SPDX-License-Identifier: Apache-2.0
// The trainings of a run, if its program trains several models one after the
// other: seeds, folds, rates, or a teacher before its student. Each is a
// training of its own, whose parameters have the names of the one before.
#ifndef RANKPROBE_ANALYSIS_SCAN_TRAININGS_H_
#define RANKPROBE_ANALYSIS_SCAN_TRAININGS_H_

#include <cstdint>
#include <vector>

#include "analysis/scan/scan.h"

namespace rankprobe::analysis {

struct Training {
  int64_t first_step = 0, last_step = 0;
};

// Returns the trainings in their order; one if the program trains one model,
// none if there are no steps.
std::vector<Training> TrainingsOf(const ScanInput& input);
// Returns the one with the most recorded steps, the first of several.
// `trainings` must not be empty.
Training LongestOf(const ScanInput& input,
                   const std::vector<Training>& trainings);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_SCAN_TRAININGS_H_
