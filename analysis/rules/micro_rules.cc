// SPDX-License-Identifier: Apache-2.0
// Rules about the gradients of a step's micro batches before the next one,
// and what micro batches weigh in steps that have fewer of them.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "analysis/rules/loss_calls.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// The gradient of an embedding or of a bias is the sum of what arrives at its
// layer, so that what a micro batch adds to it is known.
class MicroBatchesScaled : public RankRule {
 public:
  absl::string_view name() const override { return "micro-batches-scaled"; }
  absl::string_view needs() const override {
    return "weight_gradients, activation gradients";
  }
  absl::string_view subject() const override {
    return "several micro batches in a step and an embedding or a bias";
  }
  absl::string_view twin() const override {
    return "gradients that are added up, or made a mean over ranks, which "
           "keeps their mean; gradients that are clipped or set to zero, "
           "whose factor is no constant or 0; a weight of the past on purpose: "
           "worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return HasOwnGradients(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const std::vector<size_t>& group : ReplicasOf(input)) {
      std::vector<std::map<std::string, Inflow>> inflows;
      inflows.reserve(group.size());
      for (const size_t r : group) inflows.push_back(InflowsOf(input.ranks[r]));
      for (const auto& [parameter, inflow] : inflows[0]) {
        std::optional<RankFinding> found = LookAt(input, inflows, parameter);
        if (found.has_value()) return {*std::move(found)};
      }
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 5;  // steps
  static constexpr double kRounding = 1e-3, kAlike = 0.02;

  // One parameter of one rank: what was in its gradient behind each micro batch,
  // and what arrived at its layer.
  struct Inflow {
    std::vector<const std::vector<RankCell>*> held, arrives;
  };
  // By parameter; of those with several micro batches.
  static std::map<std::string, Inflow> InflowsOf(const RankSeries& rank) {
    std::map<std::string, Inflow> inflows;
    for (const OwnGradient& own : OwnGradientsOf(rank)) {
      const std::string layer =
          own.micro.size() < 2 ? "" : LayerOf(rank, own.parameter);
      if (layer.empty()) continue;
      Inflow inflow;
      inflow.held = own.micro;
      for (size_t m = 0; m < own.micro.size(); ++m) {
        const auto* const cells =
            rank.Find(absl::StrCat(layer, ".backward.", m, ".input.0"));
        if (cells == nullptr) break;
        inflow.arrives.push_back(cells);
      }
      if (inflow.arrives.size() > 1) inflows[own.parameter] = inflow;
    }
    return inflows;
  }
  // "Module.embed.Embedding" of "embed.weight", "Module.fc.Linear" of "fc.bias".
  static std::string LayerOf(const RankSeries& rank,
                             absl::string_view parameter) {
    const bool is_bias = absl::ConsumeSuffix(&parameter, ".bias");
    if (!is_bias && !absl::ConsumeSuffix(&parameter, ".weight")) return "";
    const std::string module = absl::StrCat("Module.", parameter, ".");
    for (auto it = rank.values.lower_bound(module);
         it != rank.values.end() && absl::StartsWith(it->first, module); ++it) {
      absl::string_view layer = it->first;
      if (absl::ConsumeSuffix(&layer, ".backward.1.input.0") &&
          (is_bias || absl::EndsWith(layer, ".Embedding")) &&
          !absl::StrContains(layer.substr(module.size()), '.'))
        return std::string(layer);
    }
    return "";
  }

  // The number of rows over the number of elements; null where it is not the
  // same in each step.
  static std::optional<double> RowsOf(const Inflow& inflow) {
    std::vector<double> rows;
    for (size_t i = 0; i < inflow.held[0]->size(); ++i) {
      const RankCell &held = (*inflow.held[0])[i],
                     &arrives = (*inflow.arrives[0])[i];
      if (IsFinite(held) && IsFinite(arrives) &&
          std::fabs(arrives.mean) > 1e-2 * kRounding * arrives.norm)
        rows.push_back(held.mean / arrives.mean);
    }
    if (rows.size() < kLeast) return std::nullopt;
    const double usual = MedianOf(rows);
    if (std::any_of(rows.begin(), rows.end(), [&](double one) {
          return std::fabs(one - usual) > kRounding * std::fabs(usual);
        }))
      return std::nullopt;
    return usual;
  }

  std::optional<RankFinding> LookAt(
      const RankInput& input,
      const std::vector<std::map<std::string, Inflow>>& of_ranks,
      const std::string& parameter) const {
    std::vector<Inflow> inflows;
    for (const auto& of_rank : of_ranks) {
      const auto it = of_rank.find(parameter);
      if (it == of_rank.end()) return std::nullopt;
      inflows.push_back(it->second);
    }
    const std::optional<double> rows = RowsOf(inflows[0]);
    if (!rows.has_value()) return std::nullopt;
    for (size_t m = 1; m < inflows[0].arrives.size(); ++m) {
      std::vector<double> factors;
      size_t first = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::optional<double> factor = FactorAt(inflows, *rows, m, i);
        if (!factor.has_value()) continue;
        if (factors.empty()) first = i;
        factors.push_back(*factor);
      }
      if (factors.size() < kLeast) continue;
      Judge();
      const double usual = MedianOf(factors);
      const auto alike = static_cast<size_t>(
          std::count_if(factors.begin(), factors.end(), [&](double one) {
            return std::fabs(one - usual) <= kAlike * std::fabs(usual);
          }));
      // A factor of 0 is the finding of micro-batches-lost.
      if (usual <= kAlike || std::fabs(usual - 1) <= kAlike ||
          alike * 10 < factors.size() * 9)
        continue;
      RankFinding finding;
      finding.step = input.steps[first];
      finding.name = absl::StrCat("Parameter.", parameter, ".0.debug.grad");
      finding.exact = false;
      finding.what = absl::StrCat(
          "what the gradient of ", parameter, " holds is multiplied by ",
          std::round(usual * 1e4) / 1e4, " before micro batch ", m,
          " is added to it (counted from 0), in ", alike, " of ",
          factors.size(),
          " steps: it is summed over the ranks, or divided, between micro "
          "batches, and the first ones weigh more or less than the last");
      return finding;
    }
    return std::nullopt;
  }
  // By which the gradients so far were multiplied before micro batch `m`, in the
  // mean over the ranks.
  static std::optional<double> FactorAt(const std::vector<Inflow>& inflows,
                                        double rows, size_t m, size_t step) {
    double before = 0, added = 0, now = 0, size = 0;
    for (const Inflow& inflow : inflows) {
      if (inflow.arrives.size() <= m) return std::nullopt;
      const RankCell &last = (*inflow.held[m - 1])[step],
                     &held = (*inflow.held[m])[step],
                     &arrives = (*inflow.arrives[m])[step];
      if (!IsFinite(last) || !IsFinite(held) || !IsFinite(arrives))
        return std::nullopt;
      before += last.mean;
      now += held.mean;
      added += rows * arrives.mean;
      size = std::max(size, last.norm + held.norm);
    }
    if (std::fabs(before) < 1e-4 * size) return std::nullopt;
    return (now - added) / before;
  }
};

// Steps with fewer micro batches whose losses are divided by the usual number.
class WindowIncomplete : public RankRule {
 public:
  absl::string_view name() const override { return "window-incomplete"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override {
    return "two numbers a loss call in the step";
  }
  absl::string_view subject() const override {
    return "steps with different numbers of micro batches";
  }
  absl::string_view twin() const override {
    return "losses that are divided by the number of micro batches or targets "
           "of the step; sums of losses; a small last batch that weighs less "
           "on purpose: worth a look, no fault";
  }
  size_t LeastSteps() const override { return 2 * kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "token_weight");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      // What all targets of a step weigh, by the number of micro batches.
      std::map<size_t, std::vector<double>> weights;
      std::map<size_t, size_t> first;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<LossCall> calls = CallsAt(rank, i);
        if (calls.empty() || calls.size() != TrainingAt(rank, "loss", i).size())
          continue;
        double whole = 0;
        for (const LossCall& call : calls) whole += call.tokens * call.weight;
        weights[calls.size()].push_back(whole);
        first.try_emplace(calls.size(), i);
      }
      if (weights.size() < 2) continue;
      Judge();
      const auto& [most, full] = *weights.rbegin();
      if (full.size() < kLeast || !AreAll(full, 1)) continue;
      for (const auto& [count, few] : weights) {
        const double share =
            static_cast<double>(count) / static_cast<double>(most);
        if (count == most || few.size() < kLeast || !AreAll(few, share))
          continue;
        RankFinding finding;
        finding.step = input.steps[first[count]];
        if (input.ranks.size() > 1) finding.rank = rank.rank;
        finding.name = "Training.0.debug.token_weight";
        finding.exact = false;
        finding.what = absl::StrCat(
            "steps of ", count, " micro batches take ", share,
            " of the mean over their targets, and those of ", most,
            " all of it: the losses of an incomplete window are divided by ",
            most, ", too");
        return {finding};
      }
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 2;  // steps of each kind

  static bool AreAll(const std::vector<double>& values, double wanted) {
    return std::all_of(values.begin(), values.end(),
                       [&](double one) { return AreAlike(one, wanted); });
  }
};

}  // namespace

void AddMicroRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<MicroBatchesScaled>());
  rules->push_back(std::make_unique<WindowIncomplete>());
}

}  // namespace rankprobe::analysis
