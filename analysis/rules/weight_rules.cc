// SPDX-License-Identifier: Apache-2.0
// Rules about the weights of targets and of several losses.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/rules/loss_calls.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

constexpr char kCostOfWeights[] = "two numbers a loss call in the step";

// One target weighs more than another because fewer were with it.
class TokensWeighUnequally : public RankRule {
 public:
  absl::string_view name() const override { return "tokens-weigh-unequally"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return kCostOfWeights; }
  absl::string_view subject() const override {
    return "losses of different numbers of targets in a step";
  }
  absl::string_view twin() const override {
    return "losses divided by the number of all targets of the step; batches "
           "with as many targets each; two losses of one batch";
  }
  size_t LeastSteps() const override { return 2; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "token_weight");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const auto found = LookAt(input, {&rank}, "micro batches");
      if (found.has_value()) return {*found};
    }
    std::vector<const RankSeries*> ranks;
    ranks.reserve(input.ranks.size());
    for (const RankSeries& rank : input.ranks) ranks.push_back(&rank);
    const auto found = LookAt(input, ranks, "ranks");
    if (!found.has_value()) return {};
    return {*found};
  }

 private:
  std::optional<RankFinding> LookAt(const RankInput& input,
                                    const std::vector<const RankSeries*>& ranks,
                                    absl::string_view of) const {
    size_t steps = 0, equal = 0;
    std::optional<RankFinding> first;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      std::vector<LossCall> calls;
      for (const RankSeries* const rank : ranks) {
        const auto own = CallsAt(*rank, i);
        // Of several in a rank, micro batches are judged for themselves.
        if (ranks.size() > 1 && own.size() != 1) continue;
        // Several losses of one backward are no micro batches.
        if (own.size() != TrainingAt(*rank, "loss", i).size()) continue;
        calls.insert(calls.end(), own.begin(), own.end());
      }
      if (calls.size() < 2) continue;
      const auto [few, many] = std::minmax_element(
          calls.begin(), calls.end(),
          [](const auto& a, const auto& b) { return a.tokens < b.tokens; });
      if (AreAlike(few->tokens, many->tokens)) continue;
      Judge();
      const double each = few->tokens * few->weight;
      const bool of_means =
          std::all_of(calls.begin(), calls.end(), [&](const LossCall& call) {
            return AreAlike(call.tokens * call.weight, each);
          });
      if (!of_means) {
        ++equal;
        continue;
      }
      if (steps++ > 0) continue;
      first = RankFinding{
          input.steps[i], -1, "Training.0.debug.token_weight",
          absl::StrCat("a mean of the means of ", of,
                       " with different numbers of targets: a target weighs ",
                       few->weight, " where ", few->tokens, " count and ",
                       many->weight, " where ", many->tokens,
                       " do; the loss is divided by the count of its own batch "
                       "and not by that of all"),
          // Many train data-parallel in this way and know it.
          of == "micro batches", 0};
    }
    if (steps < 2 || equal > 0) return std::nullopt;
    return first;
  }
};

// Micro batches that count differently in the step, for no reason that the
// number of their targets gives.
class MicroBatchWeights : public RankRule {
 public:
  absl::string_view name() const override { return "micro-batch-weights"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return kCostOfWeights; }
  absl::string_view subject() const override {
    return "several micro batches in a step";
  }
  absl::string_view twin() const override {
    return "several losses of one batch or of several heads, means and sums of "
           "different numbers of targets; data that is weighed on purpose: "
           "worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "token_weight") &&
           KnowsTraining(input, "target_checksum");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::optional<RankFinding> unscaled = NotScaled(input, rank);
      if (unscaled.has_value()) return {*std::move(unscaled)};
      std::optional<size_t> first;
      // Relative to the first micro batch.
      std::vector<double> shares;
      size_t steps = 0;
      bool same = true;
      for (size_t i = 0; same && i < input.steps.size(); ++i) {
        const std::vector<LossCall> calls = CallsAt(rank, i);
        if (calls.size() < 2) continue;
        Judge();
        const std::optional<std::vector<double>> now = SharesOf(rank, calls, i);
        same = now.has_value() && (!first.has_value() || Are(*now, shares));
        if (!same) break;
        ++steps;
        if (!first.has_value()) {
          first = i;
          shares = *now;
        }
      }
      if (!same || steps < kLeast || !MayBeMicroBatches(input, rank)) continue;
      RankFinding finding;
      finding.step = input.steps[*first];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = "Training.0.debug.token_weight";
      finding.exact = false;
      finding.what = absl::StrCat(
          "a target of one micro batch weighs more than one of another, in "
          "each of ",
          steps, " steps the same: relative to the first ",
          absl::StrJoin(shares, ", "));
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 3;  // steps

  // Some of the losses of each step have the GradScaler's factor, and others do
  // not.
  std::optional<RankFinding> NotScaled(const RankInput& input,
                                       const RankSeries& rank) const {
    size_t steps = 0;
    std::optional<RankFinding> first;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const std::vector<LossCall> calls = CallsAt(rank, i);
      const std::vector<double> scale = TrainingAt(rank, "loss_scale", i);
      if (calls.size() < 2 || scale.size() != 1 || scale[0] < kLeastScale)
        continue;
      const auto [least, most] = std::minmax_element(
          calls.begin(), calls.end(), [](const auto& a, const auto& b) {
            return a.tokens * a.weight < b.tokens * b.weight;
          });
      const double ratio =
          most->tokens * most->weight / (least->tokens * least->weight);
      if (!AreAlike(ratio, scale[0])) return std::nullopt;
      if (steps++ > 0) continue;
      first =
          RankFinding{input.steps[i], -1, "Training.0.debug.token_weight", ""};
      first->what = absl::StrCat(
          "of the ", calls.size(), " losses of the step one weighs ", ratio,
          " times another, which is the factor of the GradScaler: its "
          "backward is without scaler.scale(), and it counts for nothing");
    }
    if (steps < kLeast) return std::nullopt;
    Judge();
    if (input.ranks.size() > 1) first->rank = rank.rank;
    return first;
  }
  static constexpr double kLeastScale = 16;

  static bool Are(const std::vector<double>& a, const std::vector<double>& b) {
    return a.size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin(), AreAlike);
  }
  // Null: they are no micro batches, or weigh as they should.
  static std::optional<std::vector<double>> SharesOf(
      const RankSeries& rank, const std::vector<LossCall>& calls, size_t step) {
    std::vector<double> checksums = TrainingAt(rank, "target_checksum", step);
    if (checksums.size() != calls.size() ||
        calls.size() != TrainingAt(rank, "loss", step).size())
      return std::nullopt;
    std::sort(checksums.begin(), checksums.end());
    if (std::adjacent_find(checksums.begin(), checksums.end()) !=
        checksums.end())
      return std::nullopt;
    std::vector<double> shares;
    bool differ = false;
    for (const LossCall& call : calls) {
      // Means of different numbers of targets are tokens-weigh-unequally.
      if (!AreAlike(call.tokens, calls[0].tokens)) return std::nullopt;
      shares.push_back(std::round(call.weight / calls[0].weight * 1e4) / 1e4);
      differ |= !AreAlike(call.weight, calls[0].weight);
    }
    if (!differ) return std::nullopt;
    return shares;
  }
};

// The gradient of the step is a multiple of that of the mean loss.
class GradientMultiple : public RankRule {
 public:
  absl::string_view name() const override { return "gradient-multiple"; }
  absl::string_view needs() const override {
    return "training, weight_gradients, parameters";
  }
  absl::string_view cost() const override { return kCostOfWeights; }
  absl::string_view subject() const override {
    return "a cross entropy and three parameters whose gradients the optimizer "
           "takes";
  }
  absl::string_view twin() const override {
    return "losses that are sums on purpose, gradients that the program "
           "divides and then clips in each step: worth a look, no fault; "
           "losses of several heads, each with a backward of its own; one "
           "loss of the samples of all ranks, which each of them computes";
  }
  size_t LeastSteps() const override { return 3; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "token_weight") &&
           !ParametersOf(input.ranks[0]).empty();
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const std::vector<size_t>& group : ReplicasOf(input)) {
      std::vector<At> steps;
      steps.reserve(input.steps.size());
      size_t most_calls = 1;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        At at;
        size_t ranks = 0;
        for (const size_t r : group) {
          const auto calls = CallsAt(input.ranks[r], i);
          // Several losses of one backward may be a sum on purpose.
          if (calls.size() != TrainingAt(input.ranks[r], "loss", i).size())
            continue;
          most_calls = std::max(most_calls, calls.size());
          ranks += calls.empty() ? 0 : 1;
          for (const LossCall& call : calls)
            at.weights += call.tokens * call.weight;
        }
        const std::optional<double> factor = FactorAt(input, group, i);
        if (ranks < group.size() || !factor.has_value() ||
            IsOneLoss(input, group, i))
          continue;
        at.factor = *factor;
        at.norm = NormAt(input.ranks[group[0]], i);
        steps.push_back(at);
      }
      if (steps.size() < 3 ||
          (most_calls > 1 && !MayBeMicroBatches(input, input.ranks[group[0]])))
        continue;
      Judge();
      const std::optional<Multiple> multiple = MultipleOf(steps, group.size());
      if (!multiple.has_value()) continue;
      const std::string why = Why(multiple->value, group.size(), most_calls);
      if (why.empty()) continue;
      RankFinding finding;
      finding.step = input.steps[0];
      finding.name = "Training.0.debug.token_weight";
      finding.exact = false;
      finding.what = absl::StrCat(
          "the gradient ",
          multiple->is_clipped ? "before the clipping, which hides it, is "
                               : "that the optimizer takes is ",
          std::round(multiple->value * 1e6) / 1e6,
          " times that of the mean over all targets, in each of ", steps.size(),
          " steps: ", why);
      return {finding};
    }
    return {};
  }

 private:
  struct At {
    double weights = 0;  // of all targets in the losses
    double factor = 0;   // by which the gradients are multiplied
    double norm = 0;     // of the gradients that the optimizer takes
  };

  struct Multiple {
    double value = 0;
    bool is_clipped = false;
  };

  // Whether the ranks compute one loss of the samples of all of them. How its
  // gradient has to be scaled depends on whether the gathering has one.
  static bool IsOneLoss(const RankInput& input,
                        const std::vector<size_t>& group, size_t step) {
    return group.size() > 1 &&
           std::all_of(group.begin(), group.end(), [&](size_t r) {
             const RankSeries &one = input.ranks[r],
                              &first = input.ranks[group[0]];
             return TrainingAt(one, "loss", step) ==
                        TrainingAt(first, "loss", step) &&
                    !TrainingAt(one, "target_checksum", step).empty() &&
                    TrainingAt(one, "target_checksum", step) ==
                        TrainingAt(first, "target_checksum", step);
           });
  }
  static double NormAt(const RankSeries& rank, size_t step) {
    double squares = 0;
    for (const std::string& parameter : ParametersOf(rank)) {
      const auto* const taken = rank.Of("Parameter", parameter, "grad");
      if (taken == nullptr || !IsFinite((*taken)[step])) continue;
      squares += (*taken)[step].norm * (*taken)[step].norm;
    }
    return std::sqrt(squares);
  }
  static bool IsConstant(const std::vector<double>& values) {
    const double middle = MedianOf(values);
    return std::all_of(values.begin(), values.end(), [&](double value) {
      return std::fabs(value - middle) < 1e-3 * middle;
    });
  }
  // Of the gradient before any clipping. Null: it differs from step to step.
  static std::optional<Multiple> MultipleOf(const std::vector<At>& steps,
                                            size_t ranks) {
    std::vector<double> multiples, weights;
    multiples.reserve(steps.size());
    weights.reserve(steps.size());
    double whole = 0, most = 0;
    for (const At& at : steps) {
      multiples.push_back(at.weights * at.factor);
      weights.push_back(at.weights);
      whole = std::max(whole, at.factor);
      most = std::max(most, at.norm);
    }
    if (IsConstant(multiples)) return Multiple{MedianOf(multiples), false};
    if (whole <= 0 || !IsConstant(weights)) return std::nullopt;
    // Those with the largest norm are clipped, and those with the largest
    // factor are not.
    size_t clipped = 0, left = 0;
    for (const At& at : steps) {
      const bool is_whole = at.factor > whole * (1 - 1e-3);
      const bool is_clipped = at.norm > most * (1 - 1e-3);
      if (!is_whole && !is_clipped) return std::nullopt;
      left += is_whole ? 1 : 0;
      clipped += is_clipped ? 1 : 0;
    }
    // Where each step is clipped, it is not known what they were divided by
    // before: by the ranks, as is usual.
    if (clipped == steps.size()) {
      whole = 1 / static_cast<double>(ranks);
    } else if (clipped < 2 || left < 2) {
      return std::nullopt;
    }
    return Multiple{MedianOf(weights) * whole, true};
  }

  // What the optimizer takes over the sum of the ranks' own.
  static std::optional<double> FactorAt(const RankInput& input,
                                        const std::vector<size_t>& group,
                                        size_t step) {
    std::map<std::string, std::pair<double, double>> sums;  // own, taken
    std::map<std::string, size_t> count;
    std::map<std::string, double> size;
    for (const size_t r : group) {
      const RankSeries& rank = input.ranks[r];
      for (const OwnGradient& own : OwnGradientsOf(rank)) {
        const auto* const taken = rank.Of("Parameter", own.parameter, "grad");
        const RankCell* const last = LastMicro(own, step);
        if (taken == nullptr || last == nullptr || !IsFinite((*taken)[step]))
          continue;
        sums[own.parameter].first += last->mean;
        sums[own.parameter].second = (*taken)[step].mean;
        size[own.parameter] = std::max(size[own.parameter], last->norm);
        ++count[own.parameter];
      }
    }
    std::vector<double> factors;
    for (const auto& [parameter, sum] : sums) {
      if (count[parameter] == group.size() &&
          std::fabs(sum.first) > 1e-3 * size[parameter])
        factors.push_back(sum.second / sum.first);
    }
    if (factors.size() < 3) return std::nullopt;
    return MedianOf(std::move(factors));
  }

  static std::string Why(double multiple, size_t ranks, size_t calls) {
    const auto r = static_cast<double>(ranks), c = static_cast<double>(calls);
    const auto is = [&](double value) {
      return std::fabs(multiple - value) < 2e-3 * value;
    };
    if (is(1)) return "";
    if (ranks > 1 && is(r)) return "the sum over ranks is not divided";
    if (ranks > 1 && is(1 / r))
      return absl::StrCat("it is divided by the ", ranks, " ranks twice");
    if (calls > 1 && is(c)) return "the sum over micro batches is not divided";
    if (calls > 1 && is(1 / c))
      return absl::StrCat("it is divided by the ", calls,
                          " micro batches twice");
    if (ranks > 1 && calls > 1 && is(r * c))
      return "the sum over ranks and micro batches is not divided";
    if (ranks > 1 && is(r * r))
      return "the loss is multiplied by the number of ranks, and the sum over "
             "ranks is not divided";
    if (is(2)) return "it is counted twice";
    if (is(0.5)) return "half of it is lost";
    return "";
  }
};

}  // namespace

void AddWeightRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<TokensWeighUnequally>());
  rules->push_back(std::make_unique<MicroBatchWeights>());
  rules->push_back(std::make_unique<GradientMultiple>());
}

}  // namespace rankprobe::analysis
