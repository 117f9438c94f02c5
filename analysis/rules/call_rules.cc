// SPDX-License-Identifier: Apache-2.0
// Rules that compare calls of one module within a step: a recomputation with its
// forward, and an evaluation with the training.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

using CallCells = std::vector<RankCell>;

// What a module takes and gives first in one of its calls, and what its backward
// takes. Null: not recorded.
struct Call {
  const CallCells* input = nullptr;
  const CallCells* output = nullptr;
  // Another output, of a name or behind the first.
  const CallCells* other_output = nullptr;
  const CallCells* backward = nullptr;
};

// The calls of a module in the order of their numbers.
using Calls = std::map<int64_t, Call>;

bool IsAt(const CallCells* cells, size_t step) {
  return cells != nullptr && IsFinite((*cells)[step]);
}

// By "Module.layers.0.Block".
std::map<std::string, Calls> CallsOf(const RankSeries& rank) {
  std::map<std::string, Calls> out;
  for (const auto& [name, cells] : rank.values) {
    if (!absl::StartsWith(name, "Module.")) continue;
    absl::string_view module = name;
    const CallCells* Call::*place = nullptr;
    if (absl::ConsumeSuffix(&module, ".output.0")) {
      place = &Call::output;
    } else if (absl::ConsumeSuffix(&module, ".input.0")) {
      place = &Call::input;
    } else if (const size_t at = module.find(".output.");
               at != absl::string_view::npos) {
      module = module.substr(0, at);
      place = &Call::other_output;
    } else {
      continue;
    }
    const size_t dot = module.rfind('.');
    int64_t number = 0;
    if (!absl::SimpleAtoi(module.substr(dot + 1), &number)) continue;
    module = module.substr(0, dot);
    if (absl::ConsumeSuffix(&module, ".backward")) {
      if (place != &Call::input) continue;
      place = &Call::backward;
    } else if (!absl::ConsumeSuffix(&module, ".forward")) {
      continue;
    }
    out[std::string(module)][number].*place = &cells;
  }
  return out;
}

// "layers.0" of "Module.layers.0.Block".
std::string PathOf(const std::string& module) {
  const size_t dot = module.rfind('.');
  return dot > 7 ? module.substr(7, dot - 7) : "";
}

// A block that is recomputed for its backward has to compute what it computed
// before.
class RecomputationDiffers : public RankRule {
 public:
  absl::string_view name() const override { return "recomputation-differs"; }
  absl::string_view needs() const override { return "activations"; }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view subject() const override {
    return "blocks that torch.utils.checkpoint(use_reentrant=False) recomputes";
  }
  absl::string_view twin() const override {
    return "sums in another order; two forwards of one batch with dropouts of "
           "their own, each of which has an output; reentrant checkpointing, "
           "and recomputations that are recorded to their end, are not judged";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return HasValueEnding(input, ".forward.1.input.0");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const std::map<std::string, Calls> modules = CallsOf(rank);
      std::map<std::string, std::set<size_t>> steps;
      std::optional<RankFinding> found;
      for (const auto& [block, calls] : modules) {
        if (calls.size() < 2) continue;
        for (size_t i = 0; i < input.steps.size(); ++i) {
          for (const auto& [forward, again] : RecomputedAt(calls, i))
            LookInside(modules, block, forward, again, i, &steps);
        }
      }
      for (const auto& [name, at] : steps) {
        if (at.size() < kLeast) continue;
        if (found.has_value()) {
          ++found->others;
          continue;
        }
        RankFinding finding;
        finding.step = input.steps[*at.begin()];
        if (input.ranks.size() > 1) finding.rank = rank.rank;
        finding.name = name;
        finding.what = absl::StrCat(
            "in ", at.size(),
            " steps a module takes in the recomputation of "
            "its block what it took in the forward, and gives something else: "
            "the backward is that of other numbers than the loss. The "
            "recomputation draws other random numbers "
            "(preserve_rng_state=False, "
            "a generator of the program's own), or depends on a state or mode "
            "that changed");
        found = finding;
      }
      if (found.has_value()) return {*found};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 3;  // steps

  // Forwards and their recomputations: what they take is equal, and PyTorch ends
  // the second before it gives anything, or has a backward of its own.
  static std::vector<std::pair<int64_t, int64_t>> RecomputedAt(
      const Calls& calls, size_t step) {
    std::vector<std::pair<int64_t, int64_t>> out;
    for (const auto& [again, second] : calls) {
      if (!IsAt(second.input, step) || IsAt(second.output, step) ||
          IsAt(second.other_output, step) || IsAt(second.backward, step))
        continue;
      for (const auto& [forward, first] : calls) {
        if (forward >= again) break;
        if (!IsAt(first.input, step) || !IsAt(first.output, step) ||
            !AreEqual((*first.input)[step], (*second.input)[step]))
          continue;
        out.emplace_back(forward, again);
        break;
      }
    }
    return out;
  }
  static size_t NumberAt(const Calls& calls, size_t step) {
    return static_cast<size_t>(std::count_if(
        calls.begin(), calls.end(),
        [&](const auto& call) { return IsAt(call.second.input, step); }));
  }
  // Adds the step to the outputs of modules in the block that differ.
  void LookInside(const std::map<std::string, Calls>& modules,
                  const std::string& block, int64_t forward, int64_t again,
                  size_t step,
                  std::map<std::string, std::set<size_t>>* steps) const {
    const size_t number = NumberAt(modules.at(block), step);
    const std::string prefix = absl::StrCat("Module.", PathOf(block), ".");
    for (auto it = modules.lower_bound(prefix);
         it != modules.end() && absl::StartsWith(it->first, prefix); ++it) {
      const auto first = it->second.find(forward);
      const auto second = it->second.find(again);
      // One that is called several times has other numbers.
      if (it->first == block || first == it->second.end() ||
          second == it->second.end() || NumberAt(it->second, step) != number ||
          !IsAt(first->second.input, step) ||
          !IsAt(second->second.input, step) ||
          !IsAt(first->second.output, step) ||
          !IsAt(second->second.output, step))
        continue;
      Judge();
      const RankCell& one = (*first->second.output)[step];
      const RankCell& other = (*second->second.output)[step];
      if (AreEqual((*first->second.input)[step],
                   (*second->second.input)[step]) &&
          DeviationOf(one, other) > kRounding)
        (*steps)[absl::StrCat(it->first, ".forward.", again, ".output.0")]
            .insert(step);
    }
  }
  static constexpr double kRounding = 1e-4;
};

// An evaluation that prepares its images in another way than the training.
class EvaluationInput : public RankRule {
 public:
  absl::string_view name() const override { return "evaluation-input"; }
  absl::string_view needs() const override {
    return "activations, activation gradients, weight_gradients";
  }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view subject() const override {
    return "a layer that takes data, with and without gradients";
  }
  absl::string_view twin() const override {
    return "augmentations, small batches, outliers; an evaluation of data of "
           "another kind on purpose: worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return HasParameters(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      for (const auto& [module, calls] : CallsOf(rank)) {
        const std::optional<double> factor = LeastFactor(module);
        if (!factor.has_value() || !IsOfData(rank, module)) continue;
        Data trained, judged;
        for (size_t i = 0; i < input.steps.size(); ++i) {
          for (const auto& [number, call] : calls) {
            if (!IsAt(call.input, i)) continue;
            (IsAt(call.backward, i) ? trained : judged)
                .Add((*call.input)[i], i, number);
          }
        }
        if (trained.number < kLeast || judged.number < kLeast) continue;
        Judge();
        if (!trained.IsApartFrom(judged, *factor)) continue;
        RankFinding finding;
        finding.step = input.steps[judged.first];
        if (input.ranks.size() > 1) finding.rank = rank.rank;
        finding.name =
            absl::StrCat(module, ".forward.", judged.call, ".input.0");
        finding.exact = false;
        finding.what = absl::StrCat(
            "in ", judged.number, " calls without gradients this layer takes ",
            "data from ", judged.low, " to ", judged.high, " with a mean of ",
            judged.least_mean, " to ", judged.most_mean,
            ", and in training data from ", trained.low, " to ", trained.high,
            " with a mean of ", trained.least_mean, " to ", trained.most_mean,
            ": an evaluation does not normalize its data as the training does, "
            "or this is meant");
        return {finding};
      }
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 4;  // calls

  struct Data {
    size_t number = 0, first = 0;
    int64_t call = 0;
    double low = std::numeric_limits<double>::infinity(), high = -low;
    double least_mean = low, most_mean = -low;

    void Add(const RankCell& cell, size_t step, int64_t of_call) {
      if (number++ == 0) {
        first = step;
        call = of_call;
      }
      low = std::min(low, cell.smallest);
      high = std::max(high, cell.largest);
      least_mean = std::min(least_mean, cell.mean);
      most_mean = std::max(most_mean, cell.mean);
    }
    double Spread() const { return high - low; }
    // Whether the distance of the means of the two is large compared with the
    // changes of each, and the spreads differ by `factor`.
    bool IsApartFrom(const Data& other, double factor) const {
      const double changes =
          std::max(most_mean - least_mean, other.most_mean - other.least_mean);
      const double gap =
          std::max(other.least_mean - most_mean, least_mean - other.most_mean);
      const double ratio =
          Spread() > 0 && other.Spread() > 0 ? other.Spread() / Spread() : 1;
      return gap > kFar * changes &&
             (ratio > factor || (factor == kFactor && 1 / ratio > factor));
    }
  };
  static constexpr double kFar = 3, kFactor = 1.8, kLinearFactor = 5;

  // Returns by how much the spreads must differ; nullopt for other layers. The
  // factor of a linear layer is larger, since a held-out part of its data may
  // have another range than the training data.
  static std::optional<double> LeastFactor(absl::string_view module) {
    for (const absl::string_view images : {".Conv1d", ".Conv2d", ".Conv3d"}) {
      if (absl::EndsWith(module, images)) return kFactor;
    }
    return absl::EndsWith(module, ".Linear") ? std::make_optional(kLinearFactor)
                                             : std::nullopt;
  }
  // Whether it is trained, and its input needs no gradient. The names of its
  // backwards are below ".backward/", as '/' follows '.'.
  static bool IsOfData(const RankSeries& rank, const std::string& module) {
    return rank.Find(absl::StrCat(module, ".parameters_grad.0.weight")) !=
               nullptr &&
           std::none_of(
               rank.values.lower_bound(absl::StrCat(module, ".backward.")),
               rank.values.lower_bound(absl::StrCat(module, ".backward/")),
               [](const auto& value) {
                 return absl::EndsWith(value.first, ".output.0");
               });
  }
};

}  // namespace

void AddCallRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<RecomputationDiffers>());
  rules->push_back(std::make_unique<EvaluationInput>());
}

}  // namespace rankprobe::analysis
