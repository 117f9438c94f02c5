// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/choose_steps.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>

namespace rankprobe {

ChosenSteps ChooseSteps(const std::vector<v1::StepInfo>& all,
                        const IntSet& ranks) {
  ChosenSteps chosen;
  std::map<std::tuple<int64_t, bool, int64_t>, std::vector<v1::StepInfo>>
      places;
  for (const v1::StepInfo& step : all) {
    if (step.deleted()) {
      chosen.deleted.push_back(step);
      continue;
    }
    if (!ranks.all() && (!step.has_rank() || !ranks.Contains(step.rank())))
      continue;
    places[{step.step(), !step.has_rank(),
            step.has_rank() ? step.rank() : step.pid()}]
        .push_back(step);
  }
  for (const auto& [place, candidates] : places) {
    const auto best = std::max_element(
        candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
          return std::make_pair(a.complete(), a.updated_unix_ns()) <
                 std::make_pair(b.complete(), b.updated_unix_ns());
        });
    for (auto it = candidates.begin(); it != candidates.end(); ++it) {
      if (it != best) chosen.passed_over.emplace_back(*it, *best);
    }
    chosen.steps.push_back(*best);
  }
  return chosen;
}

StepKey KeyOf(const std::string& run, const v1::StepInfo& step) {
  StepKey key{.run = run, .step = step.step()};
  if (step.has_rank()) key.rank = step.rank();
  key.pid = step.pid();
  key.incarnation = step.incarnation();
  return key;
}

}  // namespace rankprobe
