// SPDX-License-Identifier: Apache-2.0
// Rules on shapes that PyTorch accepts and that no program intends: a broadcast
// in the loss, layers along the wrong dimension, padding that counts. They read
// what the monitor records of the graph of the first losses.
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/rules/shape_rule.h"

namespace rankprobe::analysis {
namespace {

constexpr char kPadding[] = "an Embedding with a padding_idx";

std::string Percent(double share) {
  return absl::StrCat(std::round(share * 1000) / 10, " %");
}

// [N, 1] and [N] make [N, N]: each prediction is compared with each target.
class LossBroadcast : public ShapeRule {
 public:
  absl::string_view name() const override { return "loss-broadcast"; }
  absl::string_view subject() const override {
    return "a loss of differences or products";
  }
  absl::string_view twin() const override {
    return "pairs on purpose: differences of scores, a distance of two sets "
           "of samples, unsqueeze() or transpose() of the prediction";
  }

 private:
  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found = TrainingAt(rank, "loss_broadcast", step);
    if (found.size() != 2) return std::nullopt;
    Judge();
    if (found[0] == 0) return std::nullopt;
    const absl::string_view how = found[0] == kLoss ? "the loss compares"
                                  : found[0] == kDifference
                                      ? "the loss is a mean of differences of"
                                      : "the loss is a mean of products of";
    RankFinding finding;
    finding.name = "Training.0.debug.loss_broadcast.0";
    if (found[0] == kSelected) {
      finding.what = absl::StrCat(
          "the loss compares each of ", found[1], " targets with ", found[1],
          " predictions: indexing with [:, index] selects all indices of each "
          "sample, [",
          found[1], ", ", found[1],
          "]. gather(1, index.unsqueeze(1)) selects one of each");
      return finding;
    }
    finding.what = absl::StrCat(
        how, " each of ", found[1], " values with each of ", found[1],
        " others, not only with its own: the shapes [", found[1], ", 1] and [",
        found[1], "] broadcast to [", found[1], ", ", found[1],
        "]. Give both one shape, by squeeze(-1) or unsqueeze(-1)");
    return finding;
  }

  static constexpr double kLoss = 1, kDifference = 2, kSelected = 4;
};

// Without batch_first=True a layer works along the batch.
class SequenceDimension : public ShapeRule {
 public:
  absl::string_view name() const override { return "sequence-dimension"; }
  absl::string_view subject() const override {
    return "an attention or a recurrent layer";
  }
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
    Judge();
    if (found[0] == 0) return std::nullopt;
    if (found[0] == kNextToken) {
      const std::vector<double> shares =
          TrainingAt(rank, "target_is_input", step);
      if (shares.size() < 3 || shares[1] < kNextTokens) return std::nullopt;
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
  absl::string_view subject() const override {
    return "a cross entropy of tokens";
  }
  absl::string_view twin() const override {
    return "ignore_index, a mask, weights of classes; one token of the padding "
           "between texts; padding that is learned on purpose: worth a look, "
           "no fault";
  }

 private:
  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found = TrainingAt(rank, "loss_padding", step);
    if (found.size() != 1) return std::nullopt;
    Judge();
    if (found[0] < kLeastShare) return std::nullopt;
    RankFinding finding;
    finding.name = "Training.0.debug.loss_padding";
    finding.exact = false;
    finding.what = absl::StrCat(
        Percent(found[0]),
        " of the targets of the cross entropy are at positions of padding (the "
        "embedding's padding_idx, or one token that only fills the ends of "
        "rows), and count in the loss: ignore_index, or -100 in the targets, "
        "leaves them out");
    return finding;
  }

  static constexpr double kLeastShare = 0.01;
};

// Tokens attend to places of padding.
class PaddingAttended : public ShapeRule {
 public:
  absl::string_view name() const override { return "padding-attended"; }
  absl::string_view subject() const override { return kPadding; }
  absl::string_view twin() const override {
    return "a mask of the padding; padding behind the tokens of a causal "
           "attention; one token of the padding between texts; padding that "
           "is attended to on purpose: worth a look, no fault";
  }

 private:
  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found =
        TrainingAt(rank, "padding_attended", step);
    if (found.size() != 2) return std::nullopt;
    Judge();
    if (found[0] < kLeastShare) return std::nullopt;
    RankFinding finding;
    finding.name = "Training.0.debug.padding_attended.0";
    finding.exact = found[0] > kInverted;
    finding.what =
        finding.exact
            ? "tokens attend to nothing but padding (the embedding's "
              "padding_idx, or one token that only fills the ends of rows): "
              "the padding mask is inverted"
            : absl::StrCat(
                  Percent(found[0]),
                  " of the attention of tokens is on positions of padding (the "
                  "embedding's padding_idx, or one token that only fills the "
                  "ends of rows): the padding mask is missing, or numbers 0 "
                  "and 1 are added to the scores");
    return finding;
  }

  static constexpr double kLeastShare = 0.01, kInverted = 0.999;
};

// view() keeps the order of the numbers: it exchanges no dimensions.
class ViewMixes : public ShapeRule {
 public:
  absl::string_view name() const override { return "view-mixes"; }
  absl::string_view subject() const override {
    return "an attention or a recurrent layer";
  }
  absl::string_view twin() const override {
    return "transpose() or permute() before the view; one head, one layer; an "
           "attention over heads on purpose: worth a look, no fault";
  }

 private:
  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    if (TrainingAt(rank, "sequence_dims", step).size() == 3) Judge();
    const std::vector<double> found = TrainingAt(rank, "mixed_views", step);
    if (found.size() != 2 || found[0] < kResult || found[0] > kAll)
      return std::nullopt;
    Judge();
    RankFinding finding;
    finding.name = "Training.0.debug.mixed_views.0";
    finding.exact = found[0] != kHeads && found[0] != kAll;
    finding.what = absl::StrCat(
        "in ", found[1], found[1] == 1 ? " place" : " places", " ",
        found[0] == kResult
            ? "the result of an attention, [batch, heads, positions, "
              "features], is viewed as [batch, positions, heads * features]: "
              "heads and positions mix"
        : found[0] == kValues ? "[batch, positions, heads * features] is "
                                "viewed as [batch, heads, "
                                "positions, features] before an attention: "
                                "heads and positions mix"
        : found[0] == kHeads
            ? "an attention takes [batch, positions, heads, features] and "
              "works over the heads of one position"
        : found[0] == kStates
            ? "what a recurrent layer ends with, [layers, batch, features], is "
              "viewed as [batch, layers * features]: samples of a batch mix"
        : found[0] == kAll
            ? "a view() keeps no dimension of its tensor and no product of "
              "neighbours, as from [ranks, batch, positions, features] to "
              "[batch, positions, ranks * features]: samples mix"
            : "the logits of a cross entropy, [batch, classes, places], are "
              "viewed as [batch * places, classes]: places and classes mix",
        ". transpose() is missing: view() and reshape() exchange no "
        "dimensions");
    return finding;
  }

  // As the agent writes it.
  static constexpr double kResult = 1, kValues = 2, kHeads = 3, kStates = 4,
                          kClasses = 5, kAll = 6;
};

// No weights make a sigmoid 1.2.
class TargetUnreachable : public ShapeRule {
 public:
  absl::string_view name() const override { return "target-unreachable"; }
  absl::string_view subject() const override {
    return "a regression of what an activation makes, a loss of binary "
           "labels, signs or characters";
  }
  absl::string_view twin() const override {
    return "targets within the bounds; few beyond them; a prediction without "
           "an activation; binary labels that are off by less than 0.5";
  }

 private:
  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> kind =
        TrainingAt(rank, "undefined_targets", step);
    if (!kind.empty()) Judge();
    if (!kind.empty() && kind[0] > 0) return Undefined(kind[0]);
    const std::vector<double> found =
        TrainingAt(rank, "unreachable_targets", step);
    if (found.size() != 3) return std::nullopt;
    Judge();
    if (found[0] < kLeastShare) return std::nullopt;
    RankFinding finding;
    finding.name = "Training.0.debug.unreachable_targets.0";
    finding.exact = false;
    finding.what = absl::StrCat(
        Percent(found[0]),
        " of the targets of the regression are outside of what the prediction "
        "can be: its last layer is ",
        found[2] > 1   ? "a ReLU, which is never below 0"
        : found[1] < 0 ? "a tanh, which is between -1 and 1"
                       : "a sigmoid or softmax, which is between 0 and 1",
        ". The activation does not fit the targets, or these are not scaled");
    return finding;
  }
  static RankFinding Undefined(double kind) {
    RankFinding finding;
    finding.name = "Training.0.debug.undefined_targets";
    // Zeros may leave out pairs on purpose.
    finding.exact = kind != kSigns;
    finding.what =
        kind == kBinary
            ? "targets of the binary cross entropy are not between 0 and 1: "
              "the loss has no lower bound. Labels are -1 and 1, or numbers "
              "of classes, or are not scaled"
        : kind == kSigns
            ? "targets of a loss that expects -1 and 1 "
              "(cosine_embedding_loss, margin_ranking_loss, "
              "hinge_embedding_loss, soft_margin_loss) are 0: such pairs do "
              "not train the model. Labels are 0 and 1"
            : "targets of ctc_loss contain the number of the blank: that "
              "class cannot be distinguished from no output. Number the "
              "classes from "
              "1, or set blank";
    return finding;
  }

  // As the agent writes it; 3 is that of a blank.
  static constexpr double kBinary = 1, kSigns = 2;
  static constexpr double kLeastShare = 0.05;
};

// A mean over the places of a sample counts the padding, too.
class PaddingPooled : public ShapeRule {
 public:
  absl::string_view name() const override { return "padding-pooled"; }
  absl::string_view subject() const override {
    return "a mean over places of a sequence that has padding";
  }
  absl::string_view twin() const override {
    return "a sum that a mask was multiplied with, over the number of tokens; "
           "a mean of embeddings; a mean that includes padding on purpose: "
           "worth a look, no fault";
  }

 private:
  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found = TrainingAt(rank, "padding_pooled", step);
    if (found.size() != 1) return std::nullopt;
    Judge();
    if (found[0] < kLeastShare) return std::nullopt;
    RankFinding finding;
    finding.name = "Training.0.debug.padding_pooled";
    finding.exact = false;
    finding.what = absl::StrCat(
        Percent(found[0]),
        " of the places that a mean over the sequence includes are padding "
        "(the embedding's padding_idx, or one token that only fills the ends "
        "of rows): the result of a sample depends on how far it is padded. "
        "Multiply by the mask, and divide by the number of tokens");
    return finding;
  }

  static constexpr double kLeastShare = 0.05;
};

// F.normalize() and F.cosine_similarity() are over the second dimension.
class NormOverPlaces : public ShapeRule {
 public:
  absl::string_view name() const override { return "norm-over-places"; }
  absl::string_view subject() const override {
    return "features that are divided by their norm";
  }
  absl::string_view twin() const override {
    return "a norm over the last dimension; a product with a norm over the "
           "places (global response normalization); features that are to be "
           "divided by it: worth a look, no fault";
  }

 private:
  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found = TrainingAt(rank, "norms_of_places", step);
    if (found.size() != 1) return std::nullopt;
    Judge();
    if (found[0] == 0) return std::nullopt;
    RankFinding finding;
    finding.name = "Training.0.debug.norms_of_places";
    finding.exact = false;
    finding.what =
        "what a linear layer makes, [batch, places, features], is divided by "
        "its norm over the places: F.normalize() and F.cosine_similarity() are "
        "over dim=1 unless dim=-1 is given";
    return finding;
  }
};

// Layers in a list of Python are no part of the model.
class LayersUntrained : public ShapeRule {
 public:
  absl::string_view name() const override { return "layers-untrained"; }
  absl::string_view subject() const override {
    return "parameters in the graph of a loss";
  }
  absl::string_view twin() const override {
    return "an own model before or behind what is trained, as a fixed judge "
           "or a backbone; parameters that another optimizer holds; a model in "
           "the middle that is left as it is: worth a look, no fault";
  }

 private:
  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found = TrainingAt(rank, "untrained", step);
    if (found.size() != 2) return std::nullopt;
    Judge();
    if (found[0] == 0) return std::nullopt;
    RankFinding finding;
    finding.name = "Training.0.debug.untrained.0";
    finding.exact = false;
    finding.what = absl::StrCat(
        found[0], found[0] == 1 ? " parameter" : " parameters", " of ",
        found[1],
        " numbers between or behind layers that are trained require a "
        "gradient, and belong neither to the model nor to an optimizer: layers "
        "in a list or dict of Python, instead of an nn.ModuleList, are not "
        "registered, and the optimizer does not get the parameters of a loss "
        "unless the program passes them on");
    return finding;
  }
};

// A target that follows the prediction.
class TargetMoves : public ShapeRule {
 public:
  absl::string_view name() const override { return "target-moves"; }
  absl::string_view subject() const override {
    return "a regression whose target has a graph, or an advantage that has "
           "one";
  }
  absl::string_view twin() const override {
    return "detach() or no_grad() of the target; losses between two parts that "
           "are both trained; residual gradients on purpose: worth a look, no "
           "fault";
  }

 private:
  // As the agent writes it; 1 is a target.
  static constexpr double kAdvantage = 2;

  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found = TrainingAt(rank, "moving_target", step);
    if (found.size() != 1) return std::nullopt;
    Judge();
    if (found[0] == 0) return std::nullopt;
    RankFinding finding;
    finding.name = "Training.0.debug.moving_target";
    finding.exact = false;
    finding.what =
        found[0] == kAdvantage
            ? "the advantage (a return less the value) that weighs the "
              "log-probabilities has a graph: the policy's loss trains the "
              "value, too. detach() is missing"
            : "the target of the regression (a reward plus the value of the "
              "next state) has a graph, and the gradient changes it, too: "
              "detach() or no_grad() is missing";
    return finding;
  }
};

}  // namespace

void AddShapeRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<LossBroadcast>());
  rules->push_back(std::make_unique<SequenceDimension>());
  rules->push_back(std::make_unique<PaddingInLoss>());
  rules->push_back(std::make_unique<PaddingAttended>());
  rules->push_back(std::make_unique<PaddingPooled>());
  rules->push_back(std::make_unique<NormOverPlaces>());
  rules->push_back(std::make_unique<ViewMixes>());
  rules->push_back(std::make_unique<TargetUnreachable>());
  rules->push_back(std::make_unique<LayersUntrained>());
  rules->push_back(std::make_unique<TargetMoves>());
}

}  // namespace rankprobe::analysis
