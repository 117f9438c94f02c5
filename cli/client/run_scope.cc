// SPDX-License-Identifier: Apache-2.0
#include "cli/client/run_scope.h"

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/text/counted.h"

namespace rankprobe {

bool FollowEachOther(const std::vector<int64_t>& steps) {
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i] != steps[i - 1] + 1) return false;
  }
  return true;
}

namespace {

bool IsOfOptimizer(absl::string_view name) {
  return absl::StartsWith(name, "Parameter.") ||
         absl::StartsWith(name, "Update.");
}

bool IsGradient(absl::string_view name) {
  return absl::StrContains(name, ".backward.") ||
         absl::StrContains(name, ".parameters_grad.") ||
         name == "Training.0.debug.grad_norm";
}

}  // namespace

std::vector<int64_t> StepsSkippedByScaler(const analysis::ScanInput& input) {
  std::vector<int64_t> skipped;
  for (size_t i = 0; i < input.steps.size(); ++i) {
    bool scale = false, non_finite = false, optimizer = false;
    for (const analysis::ScanSeries& series : input.values) {
      if (i >= series.cells.size() || series.cells[i].count == 0) continue;
      const absl::string_view name = series.name;
      scale |= name == "Training.0.debug.loss_scale";
      non_finite |= absl::StrContains(name, ".parameters_grad.") &&
                    series.cells[i].non_finite > 0;
      optimizer |= IsOfOptimizer(name);
    }
    if (scale && non_finite && !optimizer) skipped.push_back(input.steps[i]);
  }
  return skipped;
}

size_t OverflowsOfScaler(const analysis::ScanInput& input,
                         const std::vector<int64_t>& skipped) {
  if (skipped.empty()) return 0;
  size_t values = 0;
  bool goes_on = false;
  for (const analysis::ScanSeries& series : input.values) {
    bool is_finite = true;
    for (size_t i = 0; i < series.cells.size(); ++i) {
      const analysis::ScanCell& cell = series.cells[i];
      goes_on |= cell.count > 0 && IsOfOptimizer(series.name) &&
                 input.steps[i] > skipped.back();
      if (cell.non_finite == 0 || cell.meant) continue;
      // With 16-bit gradients, the norm alone may overflow in a step that was
      // taken.
      if (!IsGradient(series.name) || input.steps[i] > skipped.back()) return 0;
      is_finite = false;
    }
    if (!is_finite) ++values;
  }
  return goes_on ? values : 0;
}

bool IsMonitoredWhole(const analysis::ScanInput& input) {
  // A single step does not show the interval.
  if (input.steps.size() < 2 || !input.each_step ||
      !FollowEachOther(input.steps))
    return false;
  bool training = false, activations = false;
  bool updates = StepsSkippedByScaler(input).size() == input.steps.size();
  for (const analysis::ScanSeries& series : input.values) {
    training = training || absl::StartsWith(series.name, "Training.");
    updates = updates || absl::StartsWith(series.name, "Update.");
    activations = activations || (absl::StartsWith(series.name, "Module.") &&
                                  absl::StrContains(series.name, ".forward."));
  }
  return training && updates && activations;
}

bool HasValuesOf(const analysis::ScanInput& input, absl::string_view prefix) {
  return absl::c_any_of(input.values, [&](const analysis::ScanSeries& series) {
    return absl::StartsWith(series.name, prefix);
  });
}

bool MonitorsWhole(const Plan& plan) {
  const MonitorSpec& values = plan.monitor;
  return plan.task == Task::kMonitor && values.every == 1 && plan.steps.all() &&
         values.weight_gradients && values.parameters && values.optimizer &&
         values.updates && values.training;
}

std::string StepsShort(size_t least, bool successive,
                       const std::vector<int64_t>& steps) {
  if (steps.size() >= least && (!successive || FollowEachOther(steps)))
    return "";
  return Counted(least, successive ? "successive step" : "recorded step");
}

ScanScope ScopeOf(const analysis::ScanInput& input) {
  const size_t least = analysis::ScanOptions().least;
  const bool has_ranks = absl::c_any_of(input.values, [](const auto& series) {
    return absl::c_any_of(series.cells,
                          [](const auto& cell) { return cell.count > 1; });
  });
  ScanScope scope;
  const auto judge = [&](const std::string& what, size_t steps,
                         bool successive) {
    const std::string needs = StepsShort(steps, successive, input.steps);
    if (needs.empty()) {
      scope.judged.push_back(what);
    } else {
      scope.unjudged.push_back(absl::StrCat(what, " (needs ", needs, ")"));
    }
  };
  // Moves need one number after the usual range; vanishing needs as many zeros
  // as numbers before them.
  judge("moves", least + 1, false);
  judge("vanishes", 2 * least, false);
  if (has_ranks) judge("parts", 2, false);
  // Ten pairs of steps in which a parameter is unchanged in between, and one in
  // which it is not.
  judge("changes", 12, true);
  return scope;
}

}  // namespace rankprobe
