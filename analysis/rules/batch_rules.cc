// SPDX-License-Identifier: Apache-2.0
// Rules about the batches that ranks and steps train on.
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// Replicas that compute the same gradient before it is reduced.
class SameBatchOnRanks : public RankRule {
 public:
  absl::string_view name() const override { return "same-batch-on-ranks"; }
  absl::string_view needs() const override {
    return "parameters, weight_gradients, training";
  }
  absl::string_view subject() const override { return "replicas of one model"; }
  absl::string_view twin() const override {
    return "shards, whose parameters differ; gradients that are recorded after "
           "their reduction, with losses that differ; one batch on all ranks "
           "on purpose: worth a look, no fault";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return input.ranks.size() > 1 && KnowsTraining(input, "loss") &&
           !OwnGradientsOf(input.ranks[0]).empty();
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const std::vector<size_t>& group : ReplicasOf(input)) {
      if (group.size() < 2) continue;
      Judge();
      std::vector<std::vector<OwnGradient>> own;
      own.reserve(group.size());
      for (const size_t r : group)
        own.push_back(OwnGradientsOf(input.ranks[r]));
      std::optional<size_t> first;
      size_t steps = 0;
      bool same = true;
      for (size_t i = 0; same && i < input.steps.size(); ++i) {
        const std::optional<bool> is_same = IsSame(input, group, own, i);
        if (!is_same.has_value()) continue;
        same = *is_same;
        if (!first.has_value()) first = i;
        ++steps;
      }
      if (!same || steps < kLeast) continue;
      RankFinding finding;
      finding.step = input.steps[*first];
      finding.name = "Training.0.debug.loss";
      finding.exact = false;
      std::vector<int64_t> ranks;
      ranks.reserve(group.size());
      for (const size_t r : group) ranks.push_back(input.ranks[r].rank);
      finding.what = absl::StrCat(
          "ranks ", absl::StrJoin(ranks, ", "),
          " have the same loss and the same gradients before the reduction in "
          "each of ",
          steps,
          " steps: they train on the same batch. A DistributedSampler is "
          "missing, or all ranks draw their data with one seed");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 3;

  // Null where a rank has no loss or no gradient in the step. `gradients`: those
  // of each rank of the group.
  static std::optional<bool> IsSame(
      const RankInput& input, const std::vector<size_t>& group,
      const std::vector<std::vector<OwnGradient>>& gradients, size_t step) {
    const std::vector<double> losses =
        TrainingAt(input.ranks[group[0]], "loss", step);
    if (losses.empty()) return std::nullopt;
    for (const size_t r : group) {
      if (TrainingAt(input.ranks[r], "loss", step) != losses) return false;
    }
    size_t looked = 0;
    const std::vector<OwnGradient>& own = gradients[0];
    for (const std::vector<OwnGradient>& other : gradients) {
      if (&other == &own) continue;
      if (other.size() != own.size()) return std::nullopt;
      for (size_t p = 0; p < own.size(); ++p) {
        if (own[p].parameter != other[p].parameter ||
            own[p].micro.size() != other[p].micro.size())
          return std::nullopt;
        for (size_t m = 0; m < own[p].micro.size(); ++m) {
          const RankCell& a = (*own[p].micro[m])[step];
          const RankCell& b = (*other[p].micro[m])[step];
          if (!IsFinite(a) || !IsFinite(b)) continue;
          if (!AreEqual(a, b)) return false;
          if (a.norm != 0) ++looked;
        }
      }
    }
    if (looked < 3) return std::nullopt;
    return true;
  }
};

// A replica that called backward() once more than the others before the
// optimizer's step: it left one step out, and its later steps are other
// iterations than theirs.
class OptimizerStepSkipped : public RankRule {
 public:
  absl::string_view name() const override { return "optimizer-step-skipped"; }
  absl::string_view needs() const override {
    return "parameters, weight_gradients, training";
  }
  absl::string_view subject() const override { return "replicas of one model"; }
  absl::string_view twin() const override {
    return "different numbers of micro batches on ranks, whose reduced "
           "gradients are the same";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return kAgreed + 1; }
  bool CanJudge(const RankInput& input) const override {
    return input.ranks.size() > 1 && KnowsTraining(input, "loss") &&
           !ParametersOf(input.ranks[0]).empty();
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const std::vector<size_t>& group : ReplicasOf(input)) {
      size_t agreed = 0;
      if (group.size() > 1) Judge();
      for (size_t i = 0; group.size() > 1 && i < input.steps.size(); ++i) {
        const auto [few, many] = CallsOf(input, group, i);
        if (few.calls == 0) continue;
        if (few.calls == many.calls) {
          ++agreed;
          continue;
        }
        if (agreed < kAgreed || !GradientsDiffer(input, group, i)) break;
        RankFinding finding;
        finding.step = input.steps[i];
        finding.rank = many.rank;
        finding.name = "Training.0.debug.loss";
        finding.what = absl::StrCat(
            "rank ", many.rank, " calls backward() ", many.calls,
            " times before the optimizer's step and rank ", few.rank, " ",
            few.calls, few.calls == 1 ? " time" : " times",
            "; before, all ranks called it equally often. Rank ", many.rank,
            " leaves out a step of the optimizer: from here on, steps with the "
            "same number are different iterations on the ranks");
        return {finding};
      }
    }
    return {};
  }

 private:
  // Steps in which all have as many.
  static constexpr size_t kAgreed = 2;
  struct Calls {
    int64_t rank = 0;
    size_t calls = 0;
  };

  // Those with the fewest and the most losses; 0: one has none.
  static std::pair<Calls, Calls> CallsOf(const RankInput& input,
                                         const std::vector<size_t>& group,
                                         size_t step) {
    std::vector<Calls> all;
    all.reserve(group.size());
    for (const size_t r : group) {
      all.push_back({input.ranks[r].rank,
                     TrainingAt(input.ranks[r], "loss", step).size()});
    }
    const auto [few, many] = std::minmax_element(
        all.begin(), all.end(),
        [](const Calls& a, const Calls& b) { return a.calls < b.calls; });
    return {*few, *many};
  }
  static bool GradientsDiffer(const RankInput& input,
                              const std::vector<size_t>& group, size_t step) {
    const std::vector<std::string> parameters =
        ParametersOf(input.ranks[group[0]]);
    return std::any_of(
        parameters.begin(), parameters.end(), [&](const std::string& one) {
          return !AreAllEqual(
              HeldAt(input, group,
                     absl::StrCat("Parameter.", one, ".0.debug.grad"), step));
        });
  }
};

// Finds batches that come again in the next step, or in the next micro batch.
class BatchRepeated : public RankRule {
 public:
  absl::string_view name() const override { return "batch-repeated"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override {
    return "a checksum of the targets of each loss call";
  }
  absl::string_view subject() const override {
    return "losses with enough targets to distinguish batches";
  }
  absl::string_view twin() const override {
    return "a batch that is changed, or whose weights are, before its second "
           "backward (adversarial training, SAM); one batch in all steps or in "
           "many of them on purpose: worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool NeedsEachStep() const override { return true; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "target_checksum");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::optional<RankFinding> found;
    for (const RankSeries& rank : input.ranks) {
      std::vector<std::vector<double>> batches;
      batches.reserve(input.steps.size());
      for (size_t i = 0; i < input.steps.size(); ++i)
        batches.push_back(BatchesAt(rank, i));
      if (std::any_of(batches.begin(), batches.end(),
                      [](const auto& batch) { return !batch.empty(); }))
        Judge();
      for (std::optional<RankFinding> one :
           {InSteps(input, batches), InMicroBatches(input, rank, batches)}) {
        if (!one.has_value()) continue;
        if (input.ranks.size() > 1) one->rank = rank.rank;
        KeepEarliest(std::move(one), &found);
      }
    }
    if (!found.has_value()) return {};
    found->others = 0;
    return {*found};
  }

 private:
  static constexpr size_t kLeast = 8;

  // Checksums of the loss calls of a step; empty where few targets may be the
  // same by chance.
  static std::vector<double> BatchesAt(const RankSeries& rank, size_t step) {
    const std::vector<double> tokens = TrainingAt(rank, "loss_tokens", step);
    const std::vector<double> guess = TrainingAt(rank, "guessing_loss", step);
    // Natural logarithms: as much as 64 bits.
    constexpr double kLeastInformation = 44;
    if (guess.empty() || tokens.empty()) return {};
    for (const double count : tokens) {
      if (count * guess[0] < kLeastInformation) return {};
    }
    // A loss with a backward each; several losses of one backward have one batch.
    if (tokens.size() != TrainingAt(rank, "loss", step).size()) return {};
    return TrainingAt(rank, "target_checksum", step);
  }
  static RankFinding Finding(const RankInput& input, size_t step) {
    RankFinding finding;
    finding.step = input.steps[step];
    finding.name = "Training.0.debug.target_checksum";
    finding.exact = false;
    return finding;
  }
  static std::optional<RankFinding> InSteps(
      const RankInput& input, const std::vector<std::vector<double>>& batches) {
    size_t pairs = 0, same = 0;
    std::optional<size_t> first;
    for (size_t i = 1; i < batches.size(); ++i) {
      if (batches[i - 1].empty() || batches[i].empty()) continue;
      ++pairs;
      if (batches[i - 1] != batches[i]) continue;
      ++same;
      if (!first.has_value()) first = i;
    }
    if (pairs + 1 < kLeast || same == 0 || same * 4 >= pairs)
      return std::nullopt;
    RankFinding finding = Finding(input, *first);
    finding.what = absl::StrCat(
        "the targets of this step are those of the step before, in ", same,
        " of ", pairs, " pairs of steps: a batch is repeated");
    return finding;
  }
  // Whether the first two forwards of the step have other weights, or no input
  // in common: the second backward is of a perturbation of the first.
  static bool IsPerturbed(const RankSeries& rank, size_t step) {
    size_t inputs = 0, same = 0;
    for (const auto& [name, cells] : rank.values) {
      const size_t at = name.find(".forward.0.");
      if (at == std::string::npos || !absl::StartsWith(name, "Module."))
        continue;
      const std::string call = name.substr(at + 11);
      const bool is_weight = absl::StartsWith(call, "parameters.");
      if (!is_weight && call != "input.0") continue;
      const auto* const other =
          rank.Find(absl::StrCat(name.substr(0, at), ".forward.1.", call));
      if (other == nullptr || !cells[step].is_there || !(*other)[step].is_there)
        continue;
      const bool is_same = AreClose(cells[step], (*other)[step]);
      if (is_weight && !is_same) return true;
      if (is_weight) continue;
      ++inputs;
      if (is_same) ++same;
    }
    return inputs > 0 && same == 0;
  }
  static std::optional<RankFinding> InMicroBatches(
      const RankInput& input, const RankSeries& rank,
      const std::vector<std::vector<double>>& batches) {
    size_t steps = 0;
    std::optional<size_t> first;
    for (size_t i = 0; i < batches.size(); ++i) {
      const std::vector<double>& calls = batches[i];
      if (calls.size() < 2) continue;
      if (std::count(calls.begin(), calls.end(), calls[0]) !=
          static_cast<int64_t>(calls.size()))
        return std::nullopt;
      if (IsPerturbed(rank, i)) return std::nullopt;
      // One batch for all of the training is on purpose.
      if (first.has_value() && calls == batches[*first]) return std::nullopt;
      ++steps;
      if (!first.has_value()) first = i;
    }
    if (steps < kLeast) return std::nullopt;
    RankFinding finding = Finding(input, *first);
    finding.what = absl::StrCat(
        "all micro batches of a step have the same targets, in each of ", steps,
        " steps");
    return finding;
  }
};

// Samples that are sorted by their class and not shuffled.
class BatchesOfOneClass : public RankRule {
 public:
  absl::string_view name() const override { return "batches-of-one-class"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override {
    return "the largest and the smallest target of each cross entropy";
  }
  absl::string_view subject() const override {
    return "one cross entropy of eight targets or more in each step";
  }
  absl::string_view twin() const override {
    return "targets that are one class in all steps (the partner of a "
           "contrastive loss), in turns (a discriminator), or in some steps; "
           "batches of one class on purpose: worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "one_class");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      size_t steps = 0, alike = 0, changes = 0;
      std::optional<size_t> first;
      std::set<double> classes;
      double before = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> one = TrainingAt(rank, "one_class", i);
        const std::vector<double> tokens = TrainingAt(rank, "loss_tokens", i);
        const std::vector<double> sum = TrainingAt(rank, "target_checksum", i);
        if (one.size() != 1 || tokens.size() != 1 || sum.size() != 1 ||
            tokens[0] < kLeastTargets)
          continue;
        ++steps;
        if (one[0] == 0) continue;
        if (alike++ == 0) first = i;
        if (sum[0] != before) ++changes;
        before = sum[0];
        classes.insert(sum[0]);
      }
      if (steps < kLeast) continue;
      Judge();
      // In turns they change in each step.
      if (alike * 3 < steps || classes.size() < 3 || changes * 3 > alike * 2)
        continue;
      RankFinding finding;
      finding.step = input.steps[*first];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = "Training.0.debug.one_class";
      finding.exact = false;
      finding.what = absl::StrCat(
          "in ", alike, " of ", steps,
          " steps all targets are one class, and the class changes ",
          changes - 1,
          " times: the samples are sorted by class and not shuffled, so that "
          "the model forgets each class while it learns the next");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 10;  // steps
  static constexpr double kLeastTargets = 8;
};

// Ranks that each hold a part of the layers compute one loss of one batch.
class LossesPart : public RankRule {
 public:
  absl::string_view name() const override { return "losses-part"; }
  absl::string_view needs() const override { return "parameters, training"; }
  absl::string_view subject() const override {
    return "ranks that take one batch and hold parts of a model";
  }
  absl::string_view twin() const override {
    return "replicas, ranks that take other data, and models that have no "
           "weight in common; other targets on each rank; dropouts";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return input.ranks.size() > 1 && KnowsTraining(input, "loss") &&
           KnowsTraining(input, "input_checksum");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    const RankSeries& first = input.ranks[0];
    for (const RankSeries& other : input.ranks) {
      if (&other == &first || !HoldParts(input, first, other)) continue;
      size_t steps = 0, apart = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> data = TrainingAt(first, "input_checksum", i);
        if (data.empty()) continue;
        if (data != TrainingAt(other, "input_checksum", i) ||
            TrainingAt(first, "target_checksum", i) !=
                TrainingAt(other, "target_checksum", i) ||
            !TrainingAt(first, "dropout_checksum", i).empty()) {
          steps = 0;
          break;
        }
        ++steps;
        apart +=
            AreApart(TrainingAt(first, "loss", i), TrainingAt(other, "loss", i))
                ? 1
                : 0;
      }
      if (steps < kLeast) continue;
      Judge();
      if (apart < steps) continue;
      RankFinding finding;
      finding.step = input.steps[0];
      finding.name = "Training.0.debug.loss";
      finding.exact = false;
      finding.what = absl::StrCat(
          "ranks ", first.rank, " and ", other.rank,
          " take the same data and hold parts of one model, and their losses "
          "differ in each of ",
          steps,
          " steps: between the parts and the loss a sum (or a maximum) over "
          "the ranks is missing, as that of the exponentials of a "
          "cross entropy whose classes are on several ranks");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 3;  // steps
  static constexpr double kRounding = 1e-4;

  static bool AreApart(const std::vector<double>& a,
                       const std::vector<double>& b) {
    return a.size() == 1 && b.size() == 1 &&
           std::fabs(a[0] - b[0]) >
               kRounding * std::max(std::fabs(a[0]), std::fabs(b[0]));
  }
  // Whether they have weights in common that stay so, and others that are not.
  static bool HoldParts(const RankInput& input, const RankSeries& a,
                        const RankSeries& b) {
    size_t common = 0, own = 0;
    for (const std::string& parameter : ParametersOf(a)) {
      const auto* const of_a = a.Of("Parameter", parameter, "param");
      const auto* const of_b = b.Of("Parameter", parameter, "param");
      if (of_a == nullptr || of_b == nullptr) continue;
      const size_t last = input.steps.size() - 1;
      if (!IsFinite((*of_a)[0]) || !IsFinite((*of_b)[0])) continue;
      if (!AreEqual((*of_a)[0], (*of_b)[0])) {
        ++own;
      } else if (AreEqual((*of_a)[last], (*of_b)[last]) &&
                 !AreEqual((*of_a)[0], (*of_a)[last])) {
        ++common;
      }
    }
    return common > own && own > 0;
  }
};

}  // namespace

void AddBatchRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<BatchesOfOneClass>());
  rules->push_back(std::make_unique<SameBatchOnRanks>());
  rules->push_back(std::make_unique<OptimizerStepSkipped>());
  rules->push_back(std::make_unique<BatchRepeated>());
  rules->push_back(std::make_unique<LossesPart>());
}

}  // namespace rankprobe::analysis
