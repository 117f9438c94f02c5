// SPDX-License-Identifier: Apache-2.0
// What a cross entropy compares with, and what each of its targets weighs.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

constexpr char kCostOfLossRules[] =
    "two numbers a loss call in the step; in three steps a comparison of the "
    "targets with the tokens";

bool AreAlike(double a, double b) {
  return std::fabs(a - b) <= 1e-4 * std::max(std::fabs(a), std::fabs(b));
}

struct LossCall {
  int64_t rank = 0;
  double tokens = 0;
  double weight = 0;
};

std::vector<LossCall> CallsAt(const RankSeries& rank, size_t step) {
  const std::vector<double> tokens = TrainingAt(rank, "loss_tokens", step);
  const std::vector<double> weights = TrainingAt(rank, "token_weight", step);
  std::vector<LossCall> calls;
  for (size_t i = 0; i < tokens.size() && i < weights.size(); ++i) {
    if (tokens[i] > 0 && weights[i] != 0)
      calls.push_back({rank.rank, tokens[i], weights[i]});
  }
  return calls;
}

// One target weighs more than another because fewer were with it.
class TokensWeighUnequally : public RankRule {
 public:
  absl::string_view name() const override { return "tokens-weigh-unequally"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return kCostOfLossRules; }
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
  absl::string_view cost() const override { return kCostOfLossRules; }
  absl::string_view subject() const override {
    return "several micro batches in a step";
  }
  absl::string_view twin() const override {
    return "several losses of one batch, means and sums of different numbers "
           "of targets; data that is weighed on purpose: worth a look, no "
           "fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "token_weight") &&
           KnowsTraining(input, "target_checksum");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
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
      if (!same || steps < kLeast) continue;
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
  absl::string_view cost() const override { return kCostOfLossRules; }
  absl::string_view subject() const override {
    return "a cross entropy and three parameters whose gradients the optimizer "
           "takes";
  }
  absl::string_view twin() const override {
    return "losses that are sums on purpose, gradients that the program "
           "divides "
           "and then clips in each step: worth a look, no fault";
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
        if (ranks < group.size() || !factor.has_value()) continue;
        at.factor = *factor;
        at.norm = NormAt(input.ranks[group[0]], i);
        steps.push_back(at);
      }
      if (steps.size() < 3) continue;
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
    // Those with the largest norm are clipped, and those with the largest factor
    // are not.
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
    if (is(2)) return "it is counted twice";
    if (is(0.5)) return "half of it is lost";
    return "";
  }
};

// Targets of a language model are the next tokens.
class LabelShift : public RankRule {
 public:
  absl::string_view name() const override { return "label-shift"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return kCostOfLossRules; }
  absl::string_view twin() const override {
    return "targets that are the next tokens; targets that are no tokens of "
           "the input";
  }
  size_t LeastSteps() const override { return 1; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "target_is_input");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      size_t steps = 0, same = 0, after_next = 0;
      int64_t first = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> shares =
            TrainingAt(rank, "target_is_input", i);
        if (shares.size() != 3) continue;
        if (steps++ == 0) first = input.steps[i];
        if (shares[1] > 0.9) continue;
        if (shares[0] > 0.999) ++same;
        if (shares[2] > 0.999) ++after_next;
      }
      if (steps == 0 || (same < steps && after_next < steps)) continue;
      RankFinding finding;
      finding.step = first;
      finding.name = "Training.0.debug.target_is_input";
      // A model that is no language model may have them so on purpose.
      finding.exact = same < steps;
      finding.what =
          same == steps
              ? "the targets of the cross entropy are the tokens that went in, "
                "place by place: labels are not shifted"
              : "the targets of the cross entropy are the tokens after the "
                "next ones: labels are shifted twice";
      return {finding};
    }
    return {};
  }
};

// A softmax before a loss that has its own.
class LossOfProbabilities : public RankRule {
 public:
  absl::string_view name() const override { return "loss-of-probabilities"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override {
    return "a look at the graph before each loss call";
  }
  absl::string_view subject() const override { return "a cross entropy"; }
  absl::string_view twin() const override {
    return "logits, logarithms of probabilities, an attention behind which the "
           "loss stands";
  }
  size_t LeastSteps() const override { return 1; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "loss");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    if (KnowsTraining(input, "loss_tokens")) Judge();
    for (const RankSeries& rank : input.ranks) {
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const auto found = TrainingAt(rank, "loss_of_probabilities", i);
        if (found.empty() || found[0] == 0) continue;
        Judge();
        RankFinding finding;
        finding.step = input.steps[i];
        finding.name = "Training.0.debug.loss_of_probabilities";
        finding.exact = found[0] != kCut;
        finding.what = WhatOf(found[0]);
        return {finding};
      }
    }
    return {};
  }

 private:
  // As the agent writes it; 2 is that of logits.
  static constexpr double kOfLogarithms = 1, kOfAnother = 3, kCut = 4,
                          kNoLogarithms = 5, kOneClass = 6;

  static const char* WhatOf(double kind) {
    if (kind == kOfLogarithms)
      return "the loss takes probabilities where it wants their logarithms: "
             "nll_loss or kl_div of a softmax";
    if (kind == kOfAnother)
      return "the loss takes a softmax that is over another dimension than "
             "that of the classes (dim=0 is the batch): the probabilities of a "
             "sample do not sum to 1";
    if (kind == kNoLogarithms)
      return "nll_loss wants logarithms of probabilities and takes what a "
             "layer makes: log_softmax is missing, or cross_entropy is meant";
    if (kind == kOneClass)
      return "the loss takes a softmax over one class, which is 1 whatever the "
             "model computes: a sigmoid is meant, or another dimension";
    if (kind == kCut)
      return "the loss wants logits of both signs and takes what a ReLU "
             "leaves: a class cannot be said to be less likely than 0 says";
    return "the loss wants logits and takes probabilities: a softmax or "
           "sigmoid is applied before a loss that applies its own";
  }
};

// Who knows nothing has the logarithm of the number of classes.
class WorseThanGuessing : public RankRule {
 public:
  absl::string_view name() const override { return "worse-than-guessing"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return kCostOfLossRules; }
  absl::string_view subject() const override {
    return "one loss a step that is the mean of a cross entropy";
  }
  absl::string_view twin() const override {
    return "large logits of an untrained model, which pass within some steps: "
           "worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "guessing_loss");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::vector<double> over;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const auto guess = TrainingAt(rank, "guessing_loss", i);
        const auto loss = TrainingAt(rank, "loss", i);
        const auto calls = CallsAt(rank, i);
        // The loss has to be a mean, and one.
        if (guess.empty() || loss.size() != 1 || calls.size() != 1 ||
            !AreAlike(calls[0].tokens * calls[0].weight, 1))
          continue;
        over.push_back(loss[0] / guess[0]);
      }
      if (over.size() < kLeast) continue;
      Judge();
      // Large logits of the first step pass; a small model learns slowly.
      const double late =
          MedianOf(std::vector<double>(over.end() - 5, over.end()));
      if (late < (over.size() < kMany ? 1.4 : 1.1)) continue;
      if (over.size() < kMany && late < kFalls * over.front()) continue;
      RankFinding finding;
      finding.step = input.steps[0];
      finding.name = "Training.0.debug.loss";
      finding.exact = false;
      finding.what = absl::StrCat(
          "the loss is ", over.front(),
          " times that of a guess (the logarithm of the number of classes) in "
          "the first step and ",
          late,
          " times in the last: logits, targets or the loss "
          "are not what they should be");
      return {finding};
    }
    return {};
  }

 private:
  // Steps.
  static constexpr size_t kLeast = 8;
  static constexpr size_t kMany = 100;
  // A loss that falls to this share of the first is learned.
  static constexpr double kFalls = 0.75;
};

// Finds a parameter group whose learning rate becomes 0 while that of others does
// not.
class LearningRateZero : public RankRule {
 public:
  absl::string_view name() const override { return "learning-rate-zero"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return kCostOfLossRules; }
  absl::string_view subject() const override {
    return "a second parameter group";
  }
  absl::string_view twin() const override {
    return "a schedule that ends at 0 for all groups; a group that is frozen "
           "from the first step on, or for a time: worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast + 1; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "lr");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::optional<RankFinding> found;
    for (const RankSeries& rank : input.ranks) {
      if (Of(rank, 1) != nullptr) Judge();
      for (size_t group = 0; Of(rank, group) != nullptr; ++group) {
        std::optional<RankFinding> one = LookAt(input, rank, group);
        // All ranks have the same schedule.
        if (one.has_value() && found.has_value() && one->name == found->name)
          continue;
        KeepEarliest(std::move(one), &found);
      }
    }
    if (!found.has_value()) return {};
    return {*found};
  }

 private:
  // Steps in which it is 0 and another is not.
  static constexpr size_t kLeast = 3;

  static const std::vector<RankCell>* Of(const RankSeries& rank, size_t group) {
    return rank.Find(absl::StrCat("Training.0.debug.lr.", group));
  }
  static std::optional<RankFinding> LookAt(const RankInput& input,
                                           const RankSeries& rank,
                                           size_t group) {
    const std::vector<RankCell>& own = *Of(rank, group);
    // The step from which on it is 0, and what it was before.
    std::optional<size_t> first;
    double before = 0;
    for (size_t i = 0; i < own.size(); ++i) {
      if (!IsFinite(own[i])) continue;
      if (own[i].norm != 0) {
        before = own[i].norm;
        first.reset();
      } else if (!first.has_value()) {
        first = i;
      }
    }
    if (!first.has_value() || before == 0) return std::nullopt;
    size_t steps = 0;
    std::string others;
    for (size_t i = *first; i < own.size(); ++i) {
      for (size_t other = 0; Of(rank, other) != nullptr; ++other) {
        const RankCell& cell = (*Of(rank, other))[i];
        if (!IsFinite(own[i]) || !IsFinite(cell) || cell.norm == 0) continue;
        if (steps++ == 0)
          others = absl::StrCat("group ", other, ": ", cell.norm);
        break;
      }
    }
    if (steps < kLeast) return std::nullopt;
    RankFinding finding;
    finding.step = input.steps[*first];
    finding.name = absl::StrCat("Training.0.debug.lr.", group);
    finding.exact = false;
    finding.what = absl::StrCat("the learning rate of parameter group ", group,
                                " is 0 from here on, and was ", before,
                                ", while that of others is not (", others, ")");
    return finding;
  }
};

}  // namespace

void AddLossRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<LabelShift>());
  rules->push_back(std::make_unique<TokensWeighUnequally>());
  rules->push_back(std::make_unique<MicroBatchWeights>());
  rules->push_back(std::make_unique<GradientMultiple>());
  rules->push_back(std::make_unique<LossOfProbabilities>());
  rules->push_back(std::make_unique<WorseThanGuessing>());
  rules->push_back(std::make_unique<LearningRateZero>());
}

}  // namespace rankprobe::analysis
