// SPDX-License-Identifier: Apache-2.0
// Rules on objectives that cannot be learned. They read what the monitor records
// of the graph of the first losses.
#include <cmath>
#include <optional>
#include <utility>

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
  static constexpr double kItself = 2;

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
        found[0] == kItself
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

}  // namespace

void AddObjectiveRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<LogitsBounded>());
  rules->push_back(std::make_unique<PairTargets>());
  rules->push_back(std::make_unique<LikelihoodMinimised>());
}

}  // namespace rankprobe::analysis
