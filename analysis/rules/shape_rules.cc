// SPDX-License-Identifier: Apache-2.0
// Rules on shapes that PyTorch accepts and that no program intends: a broadcast
// in the loss, layers along the wrong dimension, padding that counts. They read
// what the monitor records of the graph of the first losses.
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// The first recorded value that shows the fault is the finding. The agent records
// these values in the first steps; the first number says how the fault is known.
class ShapeRule : public RankRule {
 public:
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override {
    return "in three steps a reading of the graph of each loss";
  }
  size_t LeastSteps() const override { return 1; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "loss");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      for (size_t i = 0; i < input.steps.size(); ++i) {
        std::optional<RankFinding> found = LookAt(rank, i);
        if (!found.has_value()) continue;
        found->step = input.steps[i];
        return {*std::move(found)};
      }
    }
    return {};
  }

 private:
  virtual std::optional<RankFinding> LookAt(const RankSeries& rank,
                                            size_t step) const = 0;
};

// [N, 1] and [N] make [N, N]: each prediction is compared with each target.
class LossBroadcast : public ShapeRule {
 public:
  absl::string_view name() const override { return "loss-broadcast"; }
  absl::string_view twin() const override {
    return "pairs on purpose: differences of scores, a distance of two sets "
           "of samples, unsqueeze() or transpose() of the prediction";
  }

 private:
  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found = TrainingAt(rank, "loss_broadcast", step);
    if (found.size() != 2 || found[0] == 0) return std::nullopt;
    const absl::string_view how = found[0] == kLoss ? "the loss compares"
                                  : found[0] == kDifference
                                      ? "the loss is a mean of differences of"
                                      : "the loss is a mean of products of";
    RankFinding finding;
    finding.name = "Training.0.debug.loss_broadcast.0";
    finding.what = absl::StrCat(
        how, " each of ", found[1], " values with each of ", found[1],
        " others, not only with its own: the shapes [", found[1], ", 1] and [",
        found[1], "] broadcast to [", found[1], ", ", found[1],
        "]. Give both one shape, by squeeze(-1) or unsqueeze(-1)");
    return finding;
  }

  static constexpr double kLoss = 1, kDifference = 2;
};

// Without batch_first=True a layer works along the batch.
class SequenceDimension : public ShapeRule {
 public:
  absl::string_view name() const override { return "sequence-dimension"; }
  absl::string_view twin() const override {
    return "transpositions in between; layers that attend along both "
           "dimensions; a mean over the second dimension, or a place in it, "
           "of which it is not known that it is the sequence: worth a look";
  }

 private:
  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found = TrainingAt(rank, "sequence_dims", step);
    if (found.size() != 3) return std::nullopt;
    if (found[0] == kNextToken) {
      const std::vector<double> shares =
          TrainingAt(rank, "target_is_input", step);
      if (shares.size() != 3 || shares[1] < kNextTokens) return std::nullopt;
    }
    RankFinding finding;
    finding.name = "Training.0.debug.sequence_dims.0";
    finding.exact = found[0] != kPooled;
    finding.what = absl::StrCat(
        "attention or recurrent layers work along the first dimension (",
        found[1], "), and ",
        found[0] == kNextToken ? "the targets are the next tokens along"
        : found[0] == kTaken   ? "what is taken of their result is a token of"
                               : "their result is averaged, or one is taken, "
                                 "along",
        " the second (", found[2],
        "): samples of a batch are mixed, and batch_first=True is missing");
    return finding;
  }

  static constexpr double kPooled = 1, kTaken = 2, kNextToken = 3;
  static constexpr double kNextTokens = 0.9;
};

// Places of padding count in the loss.
class PaddingInLoss : public ShapeRule {
 public:
  absl::string_view name() const override { return "padding-in-loss"; }
  absl::string_view twin() const override {
    return "ignore_index, a mask, weights of classes; one token of the padding "
           "between texts; padding that is learned on purpose: worth a look, "
           "no fault";
  }

 private:
  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found = TrainingAt(rank, "loss_padding", step);
    if (found.size() != 1 || found[0] < kLeastShare) return std::nullopt;
    RankFinding finding;
    finding.name = "Training.0.debug.loss_padding";
    finding.exact = false;
    finding.what = absl::StrCat(
        std::round(found[0] * 1000) / 10,
        " % of the targets of the cross entropy are at places whose input is "
        "the embedding's padding_idx, and count in the loss: ignore_index, or "
        "-100 in the targets, leaves them out");
    return finding;
  }

  static constexpr double kLeastShare = 0.01;
};

}  // namespace

void AddShapeRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<LossBroadcast>());
  rules->push_back(std::make_unique<SequenceDimension>());
  rules->push_back(std::make_unique<PaddingInLoss>());
}

}  // namespace rankprobe::analysis
