// SPDX-License-Identifier: Apache-2.0
// Rules about the targets of a cross entropy.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "analysis/rules/loss_calls.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

constexpr char kCostOfLossRules[] =
    "two numbers a loss call in the step; in three steps a comparison of the "
    "targets with the tokens";

// Targets of a language model are the next tokens.
class LabelShift : public RankRule {
 public:
  absl::string_view name() const override { return "label-shift"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return kCostOfLossRules; }
  absl::string_view twin() const override {
    return "targets that are the next tokens; targets that are not tokens of "
           "the input";
  }
  size_t LeastSteps() const override { return 1; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "target_is_input");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      size_t steps = 0, same = 0, after_next = 0, rolled = 0;
      // Of the rows whose last target is their first token.
      double information = 0;
      int64_t first = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> shares =
            TrainingAt(rank, "target_is_input", i);
        if (shares.size() < 3) continue;
        if (steps++ == 0) first = input.steps[i];
        if (shares.size() > 3 && shares[1] > 0.999 && shares[3] > 0) {
          const std::vector<double> guess =
              TrainingAt(rank, "guessing_loss", i);
          information += guess.empty() ? 0 : shares[3] * guess[0];
          ++rolled;
        }
        if (shares[1] > 0.9) continue;
        if (shares[0] > 0.999) ++same;
        if (shares[2] > 0.999) ++after_next;
      }
      if (information < kLeastInformation) rolled = 0;
      if (steps == 0 || std::max({same, after_next, rolled}) < steps) continue;
      RankFinding finding;
      finding.step = first;
      finding.name = "Training.0.debug.target_is_input";
      // A model that is no language model may have them so on purpose.
      finding.exact = after_next == steps;
      finding.what =
          rolled == steps ? "the last target of each row is its first token: "
                            "labels are rolled, and what comes round at the "
                            "end (of a rank's part of the sequence, too) is "
                            "not ignored"
          : same == steps
              ? "the targets of the cross entropy are the tokens that went in, "
                "position by position: labels are not shifted"
              : "the targets of the cross entropy are the tokens after the "
                "next ones: labels are shifted twice";
      return {finding};
    }
    return {};
  }

 private:
  // In nats (natural logarithm). With less, rows may end with their first token
  // by chance.
  static constexpr double kLeastInformation = 20;
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
        finding.exact = found[0] != kCut && found[0] < kSeveral;
        finding.what = WhatOf(found[0]);
        return {finding};
      }
    }
    return {};
  }

 private:
  // As the agent writes it; 2 is that of logits.
  static constexpr double kOfLogarithms = 1, kOfAnother = 3, kCut = 4,
                          kNoLogarithms = 5, kOneClass = 6, kSeveral = 7,
                          kOfDivergence = 8, kDropped = 9;

  static const char* WhatOf(double kind) {
    if (kind == kOfLogarithms)
      return "the loss takes probabilities where it expects their logarithms: "
             "nll_loss, ctc_loss or kl_div of a softmax";
    if (kind == kOfAnother)
      return "the loss takes a softmax that is over another dimension than "
             "that of the classes (dim=0 is the batch): the probabilities of a "
             "sample do not sum to 1";
    if (kind == kNoLogarithms)
      return "nll_loss or ctc_loss expects logarithms of probabilities and "
             "takes what a layer makes: log_softmax is missing, or "
             "cross_entropy is meant";
    if (kind == kOneClass)
      return "the loss takes a softmax over one class, which is 1 whatever the "
             "model computes: a sigmoid is meant, or another dimension";
    if (kind == kOfDivergence)
      return "a distribution is multiplied by what a layer makes, as kl_div "
             "does "
             "with logarithms of probabilities: log_softmax is missing";
    if (kind == kSeveral)
      return "the targets of the cross entropy are 1 for several classes of a "
             "sample and are no probabilities: for labels that exclude no "
             "other, binary_cross_entropy_with_logits is meant";
    if (kind == kDropped)
      return "the loss takes logits some of which a dropout has set to 0, at "
             "random and whatever the model computes: remove the dropout "
             "after the last layer";
    if (kind == kCut)
      return "the loss expects logits of both signs and takes what a ReLU "
             "leaves: a class cannot be said to be less likely than 0 says";
    return "the loss expects logits and takes probabilities: a softmax or "
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

// Finds a parameter group whose learning rate becomes 0 while that of others
// does not, and a schedule that begins with many steps of 0.
class LearningRateZero : public RankRule {
 public:
  absl::string_view name() const override { return "learning-rate-zero"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return kCostOfLossRules; }
  absl::string_view subject() const override {
    return "a second parameter group";
  }
  absl::string_view twin() const override {
    return "a schedule that ends at 0 for all groups, or begins with a few "
           "steps of 0; a group that is frozen from the first step on, or for "
           "a time: worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast + 1; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "lr");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::optional<RankFinding> found;
    for (const RankSeries& rank : input.ranks) {
      std::optional<RankFinding> at_first = ZeroAtFirst(input, rank);
      if (at_first.has_value()) {
        Judge();
        return {*std::move(at_first)};
      }
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
  // Steps in which it is 0 and another is not; first steps in which all are 0.
  static constexpr size_t kLeast = 3, kLeastAtFirst = 8;

  // Finds a learning rate of 0 of all groups in each of the first steps. A
  // warm-up that begins with 0 leaves it in the next step.
  static std::optional<RankFinding> ZeroAtFirst(const RankInput& input,
                                                const RankSeries& rank) {
    size_t steps = 0;
    double behind = 0;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const std::vector<double> rates = TrainingAt(rank, "lr", i);
      if (rates.empty()) continue;
      behind = *std::max_element(rates.begin(), rates.end());
      if (behind > 0) break;
      ++steps;
    }
    if (steps < kLeastAtFirst || behind == 0 || input.steps[0] != 0)
      return std::nullopt;
    RankFinding finding;
    finding.step = input.steps[0];
    finding.name = "Training.0.debug.lr";
    finding.exact = false;
    finding.what = absl::StrCat("the learning rate is 0 in each of the first ",
                                steps, " steps and then ", behind,
                                ": nothing is trained in them. A warm-up that "
                                "divides integers (step // "
                                "warmup) is 0 up to its end");
    return finding;
  }
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
    finding.what =
        absl::StrCat("the learning rate of parameter group ", group,
                     " is 0 from this step on; before it was ", before,
                     ", while that of others is not (", others, ")");
    return finding;
  }
};

}  // namespace

void AddLossRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<LabelShift>());
  rules->push_back(std::make_unique<LossOfProbabilities>());
  rules->push_back(std::make_unique<WorseThanGuessing>());
  rules->push_back(std::make_unique<LearningRateZero>());
}

}  // namespace rankprobe::analysis
