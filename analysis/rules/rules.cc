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
    return "none beside the recording: one pass over two values a parameter";
  }
  absl::string_view twin() const override {
    return "frozen layers, which have no gradient, and a learning rate of 0 in "
           "the first steps of a warm-up";
  }
  bool CanJudge(const RuleInput& input) const override {
    return !OwnGradients(*input.norms).empty();
  }
  std::vector<RuleFinding> Look(const RuleInput& input) const override {
    const ScanInput& norms = *input.norms;
    const ValueIndex index(&norms);
    std::optional<RuleFinding> found;
    size_t moved = 0;
    for (const auto& [parameter, gradient] : OwnGradients(norms)) {
      if (gradient->cells.size() != norms.steps.size()) continue;
      const auto* const update =
          index.Find(Value("Update", parameter, "update"));
      const auto* const grad =
          index.Find(Value("Parameter", parameter, "grad"));
      size_t steps = 0, zero = 0, first = norms.steps.size();
      for (size_t i = 0; i < norms.steps.size(); ++i) {
        const ScanCell& own = gradient->cells[i];
        if (!IsThere(own) || own.smallest == 0) continue;
        ++steps;
        const bool no_update = update != nullptr && IsThere((*update)[i])
                                   ? (*update)[i].largest == 0
                                   : grad == nullptr || (*grad)[i].count == 0;
        if (no_update) {
          ++zero;
          first = std::min(first, i);
        }
      }
      // A warm-up begins with nothing, and a scaler leaves steps out.
      if (steps < 3 || zero < steps) {
        if (steps > 0) ++moved;
        continue;
      }
      if (found.has_value()) {
        ++found->others;
        continue;
      }
      found = RuleFinding{
          norms.steps[first], Value("Parameter", parameter, "param"), -1,
          absl::StrCat(parameter, " has a gradient in each of ", steps,
                       " steps and is never updated: the optimizer holds "
                       "another tensor, or none of it"),
          0};
    }
    // A run whose optimizer cannot be seen updates nothing that is known.
    if (!found.has_value() || (moved == 0 && !HasOptimizer(norms))) return {};
    return {*found};
  }

 private:
  static bool HasOptimizer(const ScanInput& norms) {
    return std::any_of(norms.values.begin(), norms.values.end(),
                       [](const ScanSeries& series) {
                         return absl::StartsWith(series.name, "Parameter.") ||
                                absl::StartsWith(series.name, "Update.");
                       });
  }
};

// Replicas whose gradients differ part with the next step.
class GradientsNotReduced : public Rule {
 public:
  bool IsOfRanks() const override { return true; }
  absl::string_view name() const override { return "gradients-not-reduced"; }
  absl::string_view needs() const override {
    return "weight_gradients, parameters";
  }
  absl::string_view cost() const override {
    return "none beside the recording";
  }
  absl::string_view twin() const override {
    return "shards, whose parameters differ too; ranks that train alone on "
           "purpose between two averagings of weights (local SGD)";
  }
  bool CanJudge(const RuleInput& input) const override {
    return Judge(*input.norms).looked > 0;
  }
  std::vector<RuleFinding> Look(const RuleInput& input) const override {
    const Result result = Judge(*input.norms);
    if (result.looked < 3 || result.unlike.size() * 4 < result.looked * 3)
      return {};
    RuleFinding finding;
    finding.step = input.norms->steps[result.column];
    finding.name = Value("Parameter", result.unlike.front(), "grad");
    finding.others = result.unlike.size() - 1;
    finding.what = absl::StrCat(
        "the parameters are the same on the ranks, and the gradients that the "
        "optimizer takes are not, of ",
        result.unlike.size(), " of ", result.looked,
        " parameters: they are not reduced over the ranks, or are computed of "
        "activations that a collective should have made equal");
    return {finding};
  }

 private:
  struct Result {
    size_t looked = 0;
    size_t column = 0;
    std::vector<std::string> unlike;
  };
  // At the first step that has both.
  static Result Judge(const ScanInput& norms) {
    const ValueIndex index(&norms);
    Result result;
    bool any = false;
    for (const ScanSeries& series : norms.values) {
      const std::string parameter =
          ParameterOf(series.name, "Parameter", "grad");
      const auto* const of_parameter =
          index.Find(Value("Parameter", parameter, "param"));
      if (parameter.empty() || of_parameter == nullptr ||
          series.cells.size() != norms.steps.size())
        continue;
      for (size_t i = any ? result.column : 0; i < norms.steps.size(); ++i) {
        const ScanCell& weight = (*of_parameter)[i];
        const ScanCell& gradient = series.cells[i];
        if (!IsThere(weight) || !IsThere(gradient) || gradient.count < 2 ||
            weight.count != gradient.count || gradient.largest == 0) {
          if (any) break;
          continue;
        }
        if (weight.largest != weight.smallest) break;
        any = true;
        result.column = i;
        ++result.looked;
        if (gradient.largest != gradient.smallest)
          result.unlike.push_back(parameter);
        break;
      }
    }
    return result;
  }
};

}  // namespace

std::vector<std::unique_ptr<Rule>> AllRules() {
  std::vector<std::unique_ptr<Rule>> rules;
  rules.push_back(std::make_unique<GradientsNotReduced>());
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
