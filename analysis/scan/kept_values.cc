// SPDX-License-Identifier: Apache-2.0
#include "analysis/scan/kept_values.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/detect/course.h"

namespace rankprobe::analysis {
namespace {

// Number of steps that must find the parameter as it was left.
constexpr size_t kLeastSame = 3;

// Whether the numbers differ by at most two roundings of a float32.
bool IsRounding(double a, double b) {
  return std::fabs(a - b) <= 2.4e-7 * std::max(std::fabs(a), std::fabs(b));
}

// Whether the steps are multiples of the first one: the program itself does
// what happens in them, such as a periodic merge of adapters.
bool IsPeriod(const std::vector<size_t>& steps) {
  if (steps.size() < 2 || steps[1] - steps[0] < 2) return false;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i] != (i + 1) * steps[0]) return false;
  }
  return true;
}

// Returns "fc.weight.0.debug" for "fc.weight.0.debug.momentum_buffer".
std::string UpToKind(absl::string_view name) {
  return std::string(name.substr(0, name.rfind('.')));
}

}  // namespace

KeptValues::KeptValues(const ScanInput& input,
                       const ReplicatedValues& replicated, ScanFindings& found)
    : input_(input), replicated_(replicated), found_(found) {
  for (const ScanSeries& series : input.values) {
    if (series.name == "Training.0.debug.fresh_optimizers.1")
      stepped_ = &series.cells;
  }
}

bool KeptValues::HasMoreUpdates(size_t column) const {
  if (stepped_ == nullptr || column + 1 >= stepped_->size()) return false;
  const ScanCell& here = (*stepped_)[column];
  const ScanCell& next = (*stepped_)[column + 1];
  return IsFinite(here) && IsFinite(next) && here.largest > next.largest;
}

void KeptValues::FindChanged(size_t value) {
  const std::string& name = input_.values[value].name;
  if (!input_.each_step || !absl::StartsWith(name, "Parameter.") ||
      !absl::EndsWith(name, ".param"))
    return;
  const std::vector<ScanCell>* const left =
      replicated_.OfParameter(name, "Update", "param");
  if (left == nullptr) return;
  const std::vector<ScanCell>& cells = input_.values[value].cells;
  size_t same = 0;
  std::vector<size_t> changed;
  for (size_t i = 0; i + 1 < cells.size(); ++i) {
    const ScanCell& before = (*left)[i];
    const ScanCell& now = cells[i + 1];
    if (input_.steps[i + 1] != input_.steps[i] + 1 || !IsFinite(before) ||
        !IsFinite(now) || before.count != now.count || HasMoreUpdates(i))
      continue;
    if (before.largest == now.largest && before.smallest == now.smallest) {
      ++same;
    } else if (IsRounding(before.largest, now.largest) &&
               IsRounding(before.smallest, now.smallest)) {
      // The program adds a number to the weights and subtracts it again.
      continue;
    } else {
      changed.push_back(i + 1);
    }
  }
  if (changed.empty() || same < kLeastSame || changed.size() * 10 > same ||
      IsPeriod(changed))
    return;
  const size_t first = changed[0];
  const ScanCell& before = (*left)[first - 1];
  const bool up = before.largest != cells[first].largest;
  found_.Add(ScanKind::kChanged, first, value, -1,
             up ? cells[first].largest : cells[first].smallest,
             up ? before.largest : before.smallest);
}

void KeptValues::FindNoMore(size_t value) {
  const std::string& name = input_.values[value].name;
  if (!IsStateOfOptimizer(name)) return;
  const std::vector<ScanCell>& cells = input_.values[value].cells;
  std::optional<size_t> last;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (IsPresent(cells[i])) {
      last = i;
    } else if (last.has_value() && IsUpdated(name, i)) {
      if (!AreSameUpdated(*last, i)) return;
      found_.Add(ScanKind::kNoMore, i, value, -1, 0, 0);
      return;
    }
  }
}

bool KeptValues::IsUpdated(absl::string_view state, size_t column) {
  if (updated_.empty()) {
    for (const ScanSeries& series : input_.values) {
      absl::string_view name = series.name;
      if (!absl::ConsumePrefix(&name, "Update.") ||
          series.cells.size() != input_.steps.size())
        continue;
      std::vector<bool>& updated = updated_[UpToKind(name)];
      updated.resize(input_.steps.size(), false);
      for (size_t i = 0; i < series.cells.size(); ++i) {
        if (IsPresent(series.cells[i])) updated[i] = true;
      }
    }
  }
  const auto it =
      updated_.find(UpToKind(absl::StripPrefix(state, "Parameter.")));
  return it != updated_.end() && it->second[column];
}

bool KeptValues::AreSameUpdated(size_t one, size_t other) const {
  return std::all_of(updated_.begin(), updated_.end(), [&](const auto& of) {
    return of.second[one] == of.second[other];
  });
}

}  // namespace rankprobe::analysis
