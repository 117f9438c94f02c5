// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "analysis/rules/parameter_tree.h"
#include "analysis/rules/rule.h"

namespace rankprobe::analysis {
namespace {

bool IsThere(const ScanCell& cell) {
  return cell.count > 0 && cell.non_finite == 0 &&
         std::isfinite(cell.largest) && std::isfinite(cell.smallest);
}

std::string Value(absl::string_view prefix, absl::string_view parameter,
                  absl::string_view what) {
  return absl::StrCat(prefix, ".", parameter, ".0.debug.", what);
}

// What backward added up on each rank, by parameter: of several micro batches
// the last, which has the sum.
std::map<std::string, const ScanSeries*> OwnGradients(const ScanInput& input) {
  std::map<std::string, std::pair<int64_t, const ScanSeries*>> last;
  for (const ScanSeries& series : input.values) {
    // "Module.{path}.{Class}.parameters_grad.{n}.{parameter}"
    absl::string_view name = series.name;
    if (!absl::ConsumePrefix(&name, "Module.")) continue;
    const size_t at = name.find(".parameters_grad.");
    if (at == absl::string_view::npos) continue;
    absl::string_view path = name.substr(0, at);
    const size_t dot = path.rfind('.');
    path = dot == absl::string_view::npos ? "" : path.substr(0, dot);
    absl::string_view rest = name.substr(at + 17);
    const size_t end = rest.find('.');
    int64_t number = 0;
    if (end == absl::string_view::npos ||
        !absl::SimpleAtoi(rest.substr(0, end), &number))
      continue;
    const std::string parameter =
        absl::StrCat(path, path.empty() ? "" : ".", rest.substr(end + 1));
    auto& known = last[parameter];
    if (known.second == nullptr || number > known.first)
      known = {number, &series};
  }
  std::map<std::string, const ScanSeries*> out;
  for (const auto& [parameter, found] : last) out[parameter] = found.second;
  return out;
}

// An optimizer that holds other tensors than the model's has no effect on it.
class UpdateZero : public Rule {
 public:
  absl::string_view name() const override { return "update-zero"; }
  absl::string_view needs() const override {
    return "weight_gradients, parameters or optimizer";
  }
  absl::string_view cost() const override {
    return "none besides the recording: one pass over two values a parameter";
  }
  absl::string_view subject() const override {
    return "gradients in three steps of an optimizer";
  }
  absl::string_view twin() const override {
    return "frozen layers, which have no gradient; a bias before a "
           "normalization, whose gradient is rounding; an optimizer of the "
           "head or of the last blocks alone; one of few other layers, which "
           "is only worth a look; a learning rate of 0 in the first steps of a "
           "warm-up; a tied weight, which is updated by its other name";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RuleInput& input) const override {
    return !OwnGradients(*input.norms).empty();
  }
  std::vector<RuleFinding> Look(const RuleInput& input) const override {
    const ScanInput& norms = *input.norms;
    const ValueIndex index(&norms);
    const std::map<std::string, const ScanSeries*> gradients =
        OwnGradients(norms);
    const std::vector<double> noise = NoiseOf(norms, gradients);
    const size_t first_with_gradient = FirstWithGradient(gradients);
    // Of parameters that the optimizer does not hold, and of those that it
    // does.
    std::optional<RuleFinding> foreign, held;
    std::vector<std::string> moved, foreigners;
    // Whether one of them had no gradient in the first step: who unfreezes a
    // part wants it to be trained.
    bool is_unfrozen = false;
    for (const auto& [parameter, gradient] : gradients) {
      if (gradient->cells.size() != norms.steps.size() ||
          IsTied(norms, index, parameter, *gradient))
        continue;
      const Updates updates = UpdatesOf(index, parameter, *gradient, noise);
      // A warm-up begins with nothing, and a scaler leaves steps out.
      if (updates.zero < updates.steps) moved.push_back(parameter);
      if (updates.steps < kLeast) continue;
      Judge();
      if (updates.zero < updates.steps) continue;
      if (!updates.is_held) {
        foreigners.push_back(parameter);
        is_unfrozen |= updates.first > first_with_gradient;
      }
      std::optional<RuleFinding>& found = updates.is_held ? held : foreign;
      if (found.has_value()) {
        ++found->others;
        continue;
      }
      found = RuleFinding{norms.steps[updates.first],
                          NameOf(index, parameter, *gradient),
                          -1,
                          absl::StrCat(parameter, " has a gradient in each of ",
                                       updates.steps, " steps and "),
                          !updates.is_held,
                          0};
      found->what += updates.is_held
                         ? absl::StrCat("the optimizer updates it by 0",
                                        ZeroRateText(norms))
                         : "is never updated: the optimizer holds another "
                           "tensor, or none of it, or the gradient is that of "
                           "a detached copy (functional_call)";
    }
    std::vector<RuleFinding> findings;
    if (held.has_value()) findings.push_back(*std::move(held));
    // Many train the last layers in this way, and leave the rest as it is.
    const bool are_few = !moved.empty() && foreigners.size() >= moved.size();
    if (foreign.has_value() &&
        (!are_few || is_unfrozen || !IsEndOfModel(moved, foreigners))) {
      foreign->exact = !are_few;
      findings.push_back(*std::move(foreign));
    }
    return findings;
  }

 private:
  static constexpr size_t kLeast = 3;  // steps
  // Of the largest gradient of a step. A bias before a normalization has no
  // other gradient than such rounding.
  static constexpr double kNoise = 1e-5;

  struct Updates {
    // With a gradient, and of those without an update.
    size_t steps = 0, zero = 0;
    // The first one without.
    size_t first = 0;
    // The optimizer holds the parameter.
    bool is_held = false;
  };

  static size_t FirstWithGradient(
      const std::map<std::string, const ScanSeries*>& gradients) {
    size_t first = SIZE_MAX;
    for (const auto& [parameter, gradient] : gradients) {
      const auto begin = gradient->cells.begin();
      const auto there = std::find_if(begin, gradient->cells.end(), IsThere);
      if (there != gradient->cells.end())
        first = std::min(first, static_cast<size_t>(there - begin));
    }
    return first;
  }
  // Only gradients above `noise` count.
  static Updates UpdatesOf(const ValueIndex& index,
                           const std::string& parameter,
                           const ScanSeries& gradient,
                           const std::vector<double>& noise) {
    const auto* const update = index.Find(Value("Update", parameter, "update"));
    const auto* const grad = index.Find(Value("Parameter", parameter, "grad"));
    Updates updates;
    for (size_t i = 0; i < noise.size(); ++i) {
      const ScanCell& own = gradient.cells[i];
      if (!IsThere(own) || own.smallest <= noise[i]) continue;
      const bool is_held = grad != nullptr && (*grad)[i].count > 0;
      const bool is_known = update != nullptr && IsThere((*update)[i]);
      // The optimizer has the gradient, and what it made of it is not recorded.
      if (is_held && !is_known && update != nullptr) continue;
      // It was set to zero, or is that of a later backward.
      if (is_held && IsThere((*grad)[i]) && (*grad)[i].largest == 0) continue;
      ++updates.steps;
      const bool is_zero = is_known ? (*update)[i].largest == 0 : !is_held;
      if (is_zero && updates.zero++ == 0) updates.first = i;
      updates.is_held |= is_held;
    }
    return updates;
  }

  // Names a parameter group whose learning rate was 0 in each step.
  static std::string ZeroRateText(const ScanInput& norms) {
    constexpr absl::string_view kRate = "Training.0.debug.lr.";
    for (const ScanSeries& series : norms.values) {
      absl::string_view group = series.name;
      if (!absl::ConsumePrefix(&group, kRate)) continue;
      size_t seen = 0, zero = 0;
      for (const ScanCell& cell : series.cells) {
        if (!IsThere(cell)) continue;
        ++seen;
        if (cell.largest == 0) ++zero;
      }
      if (seen > 0 && zero == seen) {
        return absl::StrCat(": the learning rate of parameter group ", group,
                            " is 0");
      }
    }
    return "";
  }

  // Whether the optimizer holds the weight of this gradient under another name.
  // Only steps that have both values count: an evaluation after the last step
  // of the optimizer uses the weight alone.
  static bool IsTied(const ScanInput& norms, const ValueIndex& index,
                     const std::string& parameter, const ScanSeries& gradient) {
    // "Module.head.Linear.parameters_grad.0.weight"
    const size_t at = gradient.name.find(".parameters_grad.");
    const size_t end = gradient.name.find('.', at + 17);
    if (at == std::string::npos || end == std::string::npos) return false;
    const auto* const used = index.Find(
        absl::StrCat(gradient.name.substr(0, at), ".forward.0.parameters",
                     gradient.name.substr(end)));
    // A parameter that the optimizer holds under this name has no other one.
    if (used == nullptr ||
        index.Find(Value("Parameter", parameter, "param")) != nullptr)
      return false;
    return std::any_of(
        norms.values.begin(), norms.values.end(), [&](const ScanSeries& held) {
          const std::string name = ParameterOf(held.name, "Parameter", "param");
          return !name.empty() && name != parameter &&
                 held.cells.size() == used->size() &&
                 (AreOneTensor(held.cells, *used, 0) ||
                  AreOneTensor(held.cells, *used, 1));
        });
  }
  // later: how many steps after the forward the optimizer's values are numbered,
  // 1 if another optimizer ends the step before this one steps.
  static bool AreOneTensor(const std::vector<ScanCell>& held,
                           const std::vector<ScanCell>& used, size_t later) {
    size_t both = 0;
    for (size_t i = later; i < held.size(); ++i) {
      const ScanCell &one = held[i], &other = used[i - later];
      if (one.count == 0 || other.count == 0) continue;
      ++both;
      if (one.largest != other.largest || one.smallest != other.smallest)
        return false;
    }
    return both > later;
  }
  // Steps in which the optimizer was watched, also those in which it had
  // nothing to update. None if no step has values of an optimizer.
  static std::vector<bool> StepsOfOptimizer(const ScanInput& norms) {
    std::vector<bool> seen(norms.steps.size());
    bool has_optimizer = false;
    for (const ScanSeries& series : norms.values) {
      const bool is_optimizer = absl::StartsWith(series.name, "Parameter.") ||
                                absl::StartsWith(series.name, "Update.");
      if (series.cells.size() != seen.size() ||
          (!is_optimizer && !absl::StartsWith(series.name, "Training.")))
        continue;
      for (size_t i = 0; i < seen.size(); ++i) {
        if (series.cells[i].count == 0) continue;
        seen[i] = true;
        has_optimizer |= is_optimizer;
      }
    }
    return has_optimizer ? seen : std::vector<bool>(seen.size());
  }
  // For each step, the norm up to which a gradient is taken as rounding. It is
  // infinite if no optimizer was recorded in the step: the configuration was
  // another one, or the step is of another job of that name.
  static std::vector<double> NoiseOf(
      const ScanInput& norms,
      const std::map<std::string, const ScanSeries*>& gradients) {
    const std::vector<bool> seen = StepsOfOptimizer(norms);
    std::vector<double> noise(seen.size(), HUGE_VAL);
    for (size_t i = 0; i < seen.size(); ++i) {
      double largest = 0;
      for (const auto& [parameter, gradient] : gradients) {
        if (i < gradient->cells.size() && IsThere(gradient->cells[i]))
          largest = std::max(largest, gradient->cells[i].largest);
      }
      if (seen[i]) noise[i] = kNoise * largest;
    }
    return noise;
  }
  // The name of a recorded value: of a parameter that no optimizer holds, only
  // the gradient may be recorded.
  static std::string NameOf(const ValueIndex& index,
                            const std::string& parameter,
                            const ScanSeries& gradient) {
    std::string name = Value("Parameter", parameter, "param");
    return index.Find(name) != nullptr ? name : gradient.name;
  }
};

}  // namespace

std::vector<std::unique_ptr<Rule>> AllRules() {
  std::vector<std::unique_ptr<Rule>> rules;
  rules.push_back(std::make_unique<UpdateZero>());
  return rules;
}

ValueIndex::ValueIndex(const ScanInput* input) {
  if (input == nullptr) return;
  columns_ = input->steps.size();
  for (const ScanSeries& series : input->values)
    by_name_.emplace(series.name, &series);
}

const std::vector<ScanCell>* ValueIndex::Find(absl::string_view name) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end() || it->second->cells.size() != columns_)
    return nullptr;
  return &it->second->cells;
}

std::string ParameterOf(absl::string_view name, absl::string_view prefix,
                        absl::string_view what) {
  if (!absl::ConsumePrefix(&name, prefix) || !absl::ConsumePrefix(&name, ".") ||
      !absl::ConsumeSuffix(&name, what) ||
      !absl::ConsumeSuffix(&name, ".0.debug."))
    return "";
  return std::string(name);
}

}  // namespace rankprobe::analysis
