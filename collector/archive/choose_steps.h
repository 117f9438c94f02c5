// SPDX-License-Identifier: Apache-2.0
// Chooses the process that represents a rank's step where several recorded it.
// Pure.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_CHOOSE_STEPS_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_CHOOSE_STEPS_H_

#include <string>
#include <utility>
#include <vector>

#include "collector/store/store.h"
#include "common/config/plan.h"

namespace rankprobe {

struct ChosenSteps {
  // By step, then by rank; processes without a rank behind those that have one.
  std::vector<v1::StepInfo> steps;
  // What was passed over, and the one of `steps` that it gave way to.
  std::vector<std::pair<v1::StepInfo, v1::StepInfo>> passed_over;
  std::vector<v1::StepInfo> deleted;
};

// One process for each (step, rank): a complete one beats an incomplete one, a
// newer one an older.
ChosenSteps ChooseSteps(const std::vector<v1::StepInfo>& all,
                        const IntSet& ranks);

// Which records these are.
StepKey KeyOf(const std::string& run, const v1::StepInfo& step);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_CHOOSE_STEPS_H_
