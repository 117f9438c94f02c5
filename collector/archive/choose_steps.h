// SPDX-License-Identifier: Apache-2.0
// Choice of the process that represents a rank's step if several recorded it.
// Pure.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_CHOOSE_STEPS_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_CHOOSE_STEPS_H_

#include <string>
#include <utility>
#include <vector>

#include "collector/store/archive_reader.h"
#include "common/config/plan.h"

namespace rankprobe {

struct ChosenSteps {
  // By step, then by rank; processes without a rank come after those with one.
  std::vector<v1::StepInfo> steps;
  // Rank-steps that were not chosen, each with the one of `steps` that was.
  std::vector<std::pair<v1::StepInfo, v1::StepInfo>> passed_over;
  std::vector<v1::StepInfo> deleted;
};

// Returns one process for each (step, rank): a complete one is preferred to an
// incomplete one, then a newer one to an older one.
ChosenSteps ChooseSteps(const std::vector<v1::StepInfo>& all,
                        const IntSet& ranks);

// Returns the key of the step's records.
StepKey KeyOf(const std::string& run, const v1::StepInfo& step);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_CHOOSE_STEPS_H_
