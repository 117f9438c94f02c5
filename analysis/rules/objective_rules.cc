// SPDX-License-Identifier: Apache-2.0
// Rules on objectives that cannot be learned. They read what the monitor records
// of the graph of the first losses.
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/rules/shape_rule.h"

namespace rankprobe::analysis {
namespace {

// Logits that cannot be far apart make no probability large.
class LogitsBounded : public ShapeRule {
 public:
  absl::string_view name() const override { return "logits-bounded"; }
  absl::string_view subject() const override {
    return "a cross entropy whose graph has the logits";
  }
  absl::string_view twin() const override {
    return "cosines over a temperature below 1; logits that are cut at large "
           "numbers; two classes behind a tanh; a temperature of 1 on purpose: "
           "worth a look, no fault";
  }

 private:
  // A loss that can fall further is no concern. A temperature of 1 has a range
  // of 2.
  static constexpr double kLeastShare = 0.3, kLargestRange = 2.001;

  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found = TrainingAt(rank, "logits_range", step);
    if (found.size() != 2 || found[1] < 2) return std::nullopt;
    Judge();
    const double range = found[0], guess = std::log(found[1]);
    const double least = std::log1p((found[1] - 1) * std::exp(-range));
    if (range <= 0 || range > kLargestRange || least < kLeastShare * guess)
      return std::nullopt;
    RankFinding finding;
    finding.name = "Training.0.debug.logits_range.0";
    finding.exact = false;
    finding.what = absl::StrCat(
        "the logits of the cross entropy are at most ", range,
        " apart, because they are a sigmoid, a tanh or cosines without a "
        "temperature below 1: with ",
        found[1], " classes the loss cannot fall below ", least,
        ", and that of a guess is ", guess);
    return finding;
  }
};

// Images that are scaled twice, or not at all.
class InputScale : public ShapeRule {
 public:
  absl::string_view name() const override { return "input-scale"; }
  absl::string_view subject() const override {
    return "a convolution over images";
  }
  absl::string_view twin() const override {
    return "pixels between 0 and 1, or less a mean; maps of classes; a network "
           "whose own layers scale the pixels: worth a look, no fault";
  }

 private:
  // Of a byte. Less than half of it is no picture's brightest pixel.
  static constexpr double kByte = 255, kRounding = 1e-3;

  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found = TrainingAt(rank, "image_range", step);
    if (found.size() != 3) return std::nullopt;
    Judge();
    const double least = found[0], most = found[1];
    const bool is_raw = found[2] != 0 && most > kByte / 2 && most <= kByte;
    const bool is_twice = most <= (1 + kRounding) / kByte && most > 0.5 / kByte;
    if (least < 0 || (!is_raw && !is_twice)) return std::nullopt;
    RankFinding finding;
    finding.name = "Training.0.debug.image_range.1";
    finding.exact = false;
    finding.what = absl::StrCat(
        "the images that the first convolution takes are between ", least,
        " and ", most,
        is_raw ? ", all of them integers: pixels are not divided by 255"
               : ": pixels are divided by 255 twice (ToTensor() does it, too)");
    return finding;
  }
};

// Each sample of a contrastive loss belongs to its own partner.
class PairTargets : public ShapeRule {
 public:
  absl::string_view name() const override { return "pair-targets"; }
  absl::string_view subject() const override {
    return "a cross entropy of all pairs of a batch";
  }
  absl::string_view twin() const override {
    return "labels 0, 1, 2 ..; a diagonal that is masked; a column of partners "
           "before those of others, "
           "whose label is 0; a batch with one partner for all: worth a look, "
           "no fault";
  }

 private:
  // As the agent writes it; 1 is one label for all.
  static constexpr double kItself = 2, kOverSamples = 3, kInQueue = 4;

  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found = TrainingAt(rank, "pair_targets", step);
    if (found.size() != 1) return std::nullopt;
    Judge();
    if (found[0] == 0) return std::nullopt;
    RankFinding finding;
    finding.name = "Training.0.debug.pair_targets";
    finding.exact = false;
    finding.what =
        found[0] == kInQueue
            ? "the partner of each sample, in the first column of the logits, "
              "is among the other columns, too: the loss raises and lowers the "
              "same similarity. Enqueue the keys after the loss is computed"
        : found[0] == kOverSamples
            ? "the logits are the products of all pairs of a batch, and a part "
              "is divided by its norm over the samples (F.normalize(dim=0)): "
              "the features of a sample do not have the length 1, and depend "
              "on the other samples"
        : found[0] == kItself
            ? "the logits are the products of all pairs of a batch, of a "
              "sample "
              "with itself, too, which are the largest, and the labels are "
              "other samples: the diagonal is not masked"
            : "the logits are the products of all pairs of two halves of a "
              "batch, and the label of each is the same: all samples are drawn "
              "to one. Labels are torch.arange(N) where partners have one "
              "place";
    return finding;
  }
};

// Finds labels that do not begin at rank * N although the logits have the
// features of all ranks.
class LabelsOfOneRank : public RankRule {
 public:
  absl::string_view name() const override { return "labels-of-one-rank"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override {
    return "in each step, a checksum of the targets of a cross entropy";
  }
  absl::string_view subject() const override {
    return "a cross entropy of a rank's samples and those of all ranks";
  }
  absl::string_view twin() const override {
    return "labels from rank * N on; a rank's own features first, whose losses "
           "fall on all ranks";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return input.ranks.size() > 1 && KnowsTraining(input, "target_checksum") &&
           KnowsTraining(input, "loss");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::optional<double> labels;
    // The smallest losses, relative to that of a guess.
    std::vector<double> lowest(input.ranks.size(), HUGE_VAL);
    size_t steps = 0;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      for (size_t r = 0; r < input.ranks.size(); ++r) {
        const RankSeries& rank = input.ranks[r];
        const auto loss = TrainingAt(rank, "loss", i);
        const auto guess = TrainingAt(rank, "guessing_loss", i);
        if (loss.empty() || guess.empty()) continue;
        for (const double one : TrainingAt(rank, "target_checksum", i)) {
          if (one != labels.value_or(one)) return {};
          labels = one;
        }
        // As many classes as all ranks have samples.
        for (const double tokens : TrainingAt(rank, "loss_tokens", i)) {
          if (std::fabs(guess[0] -
                        std::log(tokens * static_cast<double>(lowest.size()))) >
              1e-6)
            return {};
        }
        steps += r == 0 ? 1 : 0;
        lowest[r] = std::min(lowest[r], loss[0] / guess[0]);
      }
    }
    if (steps < kLeast || !labels.has_value()) return {};
    Judge();
    const auto worst = std::max_element(lowest.begin(), lowest.end());
    if (*std::min_element(lowest.begin(), lowest.end()) > kLearned ||
        *worst < kGuessed)
      return {};
    RankFinding finding;
    finding.step = input.steps[0];
    finding.rank =
        input.ranks[static_cast<size_t>(worst - lowest.begin())].rank;
    finding.name = "Training.0.debug.target_checksum";
    finding.what = absl::StrCat(
        "the labels of a cross entropy over the samples of all ranks are the "
        "same on all ranks and in all ",
        steps, " steps, and the loss of rank ", finding.rank,
        " never falls below ", *worst,
        " times that of a guess: its samples have partners of another rank. "
        "Labels begin at rank * N");
    return {finding};
  }

 private:
  static constexpr size_t kLeast = 8;  // steps
  static constexpr double kLearned = 0.9, kGuessed = 0.95;
};

// A likelihood whose minus is missing.
class LikelihoodMinimised : public ShapeRule {
 public:
  absl::string_view name() const override { return "likelihood-minimised"; }
  absl::string_view subject() const override {
    return "a loss that is one mean of log-likelihoods";
  }
  absl::string_view twin() const override {
    return "log-probabilities that are weighed by rewards; losses with other "
           "terms; a model that unlearns on purpose: worth a look, no fault";
  }

 private:
  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found =
        TrainingAt(rank, "minimised_likelihood", step);
    if (found.size() != 1) return std::nullopt;
    Judge();
    if (found[0] == 0) return std::nullopt;
    RankFinding finding;
    finding.name = "Training.0.debug.minimised_likelihood";
    finding.exact = false;
    finding.what =
        "the loss grows with the log-probability of the targets: the optimizer "
        "makes them unlikely. The minus is missing, or there is one too many";
    return finding;
  }
};

// A term of the loss that has the sign of its opposite.
class TermInverted : public ShapeRule {
 public:
  absl::string_view name() const override { return "term-inverted"; }
  absl::string_view subject() const override {
    return "a loss with a divergence, or with an entropy beside a policy "
           "gradient";
  }
  absl::string_view twin() const override {
    return "a divergence that is added, an entropy that is subtracted; an "
           "entropy that is minimised without a policy gradient; an adversary, "
           "or a model that unlearns, on purpose: worth a look, no fault";
  }

 private:
  // As the agent writes it; 1 is a divergence.
  static constexpr double kEntropy = 2;

  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found = TrainingAt(rank, "inverted_term", step);
    if (found.size() != 1) return std::nullopt;
    Judge();
    if (found[0] == 0) return std::nullopt;
    RankFinding finding;
    finding.name = "Training.0.debug.inverted_term";
    finding.exact = false;
    finding.what =
        found[0] == kEntropy
            ? "the loss of a policy grows with the entropy of its choices: the "
              "optimizer makes them certain before it has explored. An entropy "
              "that is a bonus is subtracted from the loss"
            : "the loss falls as a divergence grows: the optimizer makes the "
              "distribution unlike the one that it is compared with, without a "
              "bound. A divergence is added to the loss";
    return finding;
  }
};

// autocast keeps the casts of weights until its outermost context ends.
class CastStale : public ShapeRule {
 public:
  absl::string_view name() const override { return "cast-stale"; }
  absl::string_view subject() const override {
    return "layers that use casts of their weights";
  }
  absl::string_view twin() const override {
    return "one autocast for each forward; casts that are not cached";
  }

 private:
  std::optional<RankFinding> LookAt(const RankSeries& rank,
                                    size_t step) const override {
    const std::vector<double> found = TrainingAt(rank, "stale_casts", step);
    if (found.size() != 2) return std::nullopt;
    Judge();
    if (found[0] == 0) return std::nullopt;
    RankFinding finding;
    finding.name = "Training.0.debug.stale_casts.0";
    finding.what = absl::StrCat(
        found[0], " of ", found[1],
        " layers compute with a cast of their weight that is not what the "
        "weight is now: one autocast encloses several steps and keeps the "
        "casts of an earlier one, or the weight is changed behind the forward. "
        "Each forward has its own autocast");
    return finding;
  }
};

}  // namespace

void AddObjectiveRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<LogitsBounded>());
  rules->push_back(std::make_unique<PairTargets>());
  rules->push_back(std::make_unique<LabelsOfOneRank>());
  rules->push_back(std::make_unique<LikelihoodMinimised>());
  rules->push_back(std::make_unique<InputScale>());
  rules->push_back(std::make_unique<TermInverted>());
  rules->push_back(std::make_unique<CastStale>());
}

}  // namespace rankprobe::analysis
