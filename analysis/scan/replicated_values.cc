// SPDX-License-Identifier: Apache-2.0
#include "analysis/scan/replicated_values.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rankprobe::analysis {
namespace {

// Number of steps.
constexpr size_t kLeastSteps = 3;
// A weight that is rounded for the forward keeps its norm up to this factor; one
// that is gathered from several ranks has a larger norm.
constexpr double kMostOfPart = 1.05;

}  // namespace

ReplicatedValues::ReplicatedValues(const ScanInput& input) : input_(input) {
  for (size_t value = 0; value < input_.values.size(); ++value) {
    absl::string_view name = input_.values[value].name;
    by_name_.emplace(name, value);
    exchanges_ = exchanges_ || IsOfExchange(name);
    // "Module.{path}.{Class}.backward.0.input.0"
    if (!absl::StartsWith(name, "Module.") ||
        !absl::ConsumeSuffix(&name, ".backward.0.input.0"))
      continue;
    const size_t end = name.rfind('.');
    if (end > 7) modules_.emplace(name.substr(7, end - 7), name);
  }
}

const std::vector<ScanCell>* ReplicatedValues::OfParameter(
    absl::string_view name, absl::string_view prefix,
    absl::string_view what) const {
  const size_t begin = name.find('.');
  const size_t end = name.rfind('.');
  if (begin == absl::string_view::npos || end <= begin) return nullptr;
  return Find(absl::StrCat(prefix, name.substr(begin, end - begin), ".", what));
}

const std::vector<ScanCell>* ReplicatedValues::Find(
    const std::string& name) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) return nullptr;
  const std::vector<ScanCell>& cells = input_.values[it->second].cells;
  return cells.size() == input_.steps.size() ? &cells : nullptr;
}

bool ReplicatedValues::IsReplicated(absl::string_view name) const {
  if (!absl::StartsWith(name, "Parameter.") &&
      !absl::StartsWith(name, "Update."))
    return false;
  if (exchanges_ && IsOfExpert(name)) return false;
  const std::vector<ScanCell>* const parameter =
      OfParameter(name, "Parameter", "param");
  if (parameter == nullptr) return true;
  if (IsTrainedElsewhere(name, *parameter) || IsPart(name, *parameter))
    return false;
  for (const ScanCell& cell : *parameter) {
    if (!IsFinite(cell) || cell.count < 2) continue;
    return RanksAgree(cell);
  }
  return true;
}

bool ReplicatedValues::IsTrainedElsewhere(
    absl::string_view name, const std::vector<ScanCell>& parameter) const {
  const std::vector<ScanCell>* const gradient =
      OfParameter(name, "Parameter", "grad");
  if (gradient == nullptr) return false;
  size_t steps = 0;
  for (size_t i = 0; i < parameter.size(); ++i) {
    if (parameter[i].count < 2 || (*gradient)[i].count == 0) continue;
    if ((*gradient)[i].count >= parameter[i].count) return false;
    ++steps;
  }
  return steps >= kLeastSteps;
}

bool ReplicatedValues::IsPart(absl::string_view name,
                              const std::vector<ScanCell>& parameter) const {
  const std::vector<ScanCell>* const gradient =
      OfParameter(name, "Parameter", "grad");
  name = name.substr(0, name.rfind(".0.debug."));
  const size_t begin = name.find('.') + 1;
  const size_t end = name.rfind('.');
  if (gradient == nullptr || end < begin) return false;
  const auto it = modules_.find(name.substr(begin, end - begin));
  if (it == modules_.end()) return false;
  const auto* const used =
      Find(absl::StrCat(it->second, ".forward.0.parameters", name.substr(end)));
  const auto* const made =
      Find(absl::StrCat(it->second, ".forward.0.output.0"));
  const auto* const given =
      Find(absl::StrCat(it->second, ".backward.0.input.0"));
  for (size_t i = 0; i < gradient->size(); ++i) {
    const auto is_known = [&](const auto* cells) {
      return cells != nullptr && IsFinite((*cells)[i]) && (*cells)[i].count > 1;
    };
    if (!is_known(gradient) || !is_known(&parameter)) continue;
    // The forward uses more of it than the optimizer holds: it is gathered.
    if (is_known(used) &&
        (*used)[i].smallest > kMostOfPart * parameter[i].largest)
      return true;
    // The layer gives the same on the ranks, and gets the same gradient, of
    // which its weight has another one on each rank: it adds up what the ranks
    // have, and each has other rows of a table.
    return is_known(made) && is_known(given) && RanksAgree((*made)[i]) &&
           RanksAgree((*given)[i]) && !RanksAgree((*gradient)[i]);
  }
  return false;
}

}  // namespace rankprobe::analysis
