// SPDX-License-Identifier: Apache-2.0
// Rules about clipping by norm, from gradients before and behind it.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "analysis/rules/clipped_means.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// Relative, of float32.
constexpr double kSameFactor = 1e-5;

struct Factor {
  std::string parameter;
  double value = 0;
};

// By which each gradient was multiplied between backward and optimizer on this
// rank. Of what was reduced in between the factors are of all kinds.
std::vector<Factor> FactorsAt(const std::vector<OwnGradient>& gradients,
                              const RankSeries& rank, size_t step) {
  std::vector<Factor> out;
  for (const OwnGradient& own : gradients) {
    const auto* const taken = rank.Of("Parameter", own.parameter, "grad");
    if (taken == nullptr) continue;
    const RankCell& before = (*own.micro.back())[step];
    const RankCell& now = (*taken)[step];
    if (!IsFinite(before) || !IsFinite(now) || before.norm == 0) continue;
    out.push_back({own.parameter, now.norm / before.norm});
  }
  return out;
}

// The factor of at least half of them.
std::optional<double> FactorOfMost(const std::vector<Factor>& factors) {
  std::vector<double> values;
  values.reserve(factors.size());
  for (const Factor& factor : factors) values.push_back(factor.value);
  const double median = MedianOf(values);
  const auto same =
      std::count_if(values.begin(), values.end(), [&](double value) {
        return std::fabs(value - median) <= kSameFactor * median;
      });
  if (static_cast<size_t>(same) * 2 < values.size()) return std::nullopt;
  return median;
}

double SpreadOf(const std::vector<double>& norms) {
  const auto [least, most] = std::minmax_element(norms.begin(), norms.end());
  return *most > 0 ? (*most - *least) / *most : 0;
}

bool IsOne(double factor) { return std::fabs(factor - 1) <= 1e-6; }

// A list of parameters for the clipping that lacks some of them.
class ClipUneven : public RankRule {
 public:
  absl::string_view name() const override { return "clip-uneven"; }
  absl::string_view needs() const override { return "weight_gradients"; }
  absl::string_view subject() const override {
    return "gradients that are clipped";
  }
  absl::string_view twin() const override {
    return "gradients that are reduced between backward and optimizer; a "
           "clipping that does nothing in that step; one of several models (a "
           "loss with weights) that is not clipped; a clipping of a part of "
           "the model on all ranks, which is only worth a look";
  }
  size_t LeastSteps() const override { return 2; }
  bool CanJudge(const RankInput& input) const override {
    return HasOwnGradients(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::optional<RankFinding> found;
    size_t ranks = 0;
    for (const RankSeries& rank : input.ranks) {
      const std::vector<OwnGradient> gradients = OwnGradientsOf(rank);
      std::optional<RankFinding> first;
      size_t steps = 0;
      bool is_model = false;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<Factor> factors = FactorsAt(gradients, rank, i);
        const std::optional<double> most = FactorOfMost(factors);
        // Clipping does not make gradients 0.
        if (factors.size() < 4 || !most.has_value() || IsOne(*most) ||
            *most >= 1 || *most == 0)
          continue;
        Judge();
        std::vector<const Factor*> left_out;
        for (const Factor& factor : factors) {
          if (IsOne(factor.value)) left_out.push_back(&factor);
        }
        if (left_out.empty()) continue;
        ++steps;
        if (first.has_value()) continue;
        is_model = AreAnotherModel(factors);
        first = RankFinding{
            input.steps[i],
            rank.rank,
            absl::StrCat("Parameter.", left_out[0]->parameter, ".0.debug.grad"),
            absl::StrCat("the gradients of this rank are multiplied by ", *most,
                         " between backward and optimizer, as clipping does, "
                         "and those of ",
                         left_out.size(), " of ", factors.size(),
                         " parameters are not"),
            true,
            left_out.size() - 1};
      }
      // Once is a coincidence of numbers.
      if (steps < 2 || (is_model && input.ranks.size() == 1)) continue;
      ++ranks;
      if (!found.has_value() || first->step < found->step) found = first;
    }
    if (!found.has_value()) return {};
    // A program that clips a part of its model does so on all ranks.
    found->exact = ranks < input.ranks.size();
    return {*found};
  }

 private:
  // Several models are numbered: "1.weight" is that of the second. The list for
  // the clipping is often that of the first.
  static bool AreAnotherModel(const std::vector<Factor>& factors) {
    const auto model_of = [](const Factor& factor) {
      return *absl::StrSplit(factor.parameter, '.').begin();
    };
    return std::none_of(
        factors.begin(), factors.end(), [&](const Factor& left_out) {
          return IsOne(left_out.value) &&
                 std::any_of(
                     factors.begin(), factors.end(), [&](const Factor& other) {
                       return !absl::ascii_isdigit(static_cast<unsigned char>(
                                  left_out.parameter[0])) ||
                              (!IsOne(other.value) &&
                               model_of(other) == model_of(left_out));
                     });
        });
  }
};

// Clipping leaves a norm that is the same in each step that it works in.
class ClipNorm : public RankRule {
 public:
  absl::string_view name() const override { return "clip-norm"; }
  absl::string_view needs() const override {
    return "weight_gradients, parameters";
  }
  absl::string_view cost() const override { return "that of clip-uneven"; }
  absl::string_view subject() const override {
    return "a model in parts on several ranks";
  }
  absl::string_view twin() const override {
    return "clipping by the norm of the complete model, which makes that norm "
           "the same in each step; no clipping, which makes no norm the same";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return input.ranks.size() > 1 && !ParametersOf(input.ranks[0]).empty();
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    // One rank of each group of replicas holds the complete model together.
    std::vector<const RankSeries*> whole;
    for (const auto& group : ReplicasOf(input)) {
      std::optional<RankFinding> early = ClippedBeforeMean(input, group);
      if (early.has_value()) {
        Judge();
        return {*std::move(early)};
      }
      whole.push_back(&input.ranks[group[0]]);
    }
    if (whole.size() < 2) return {};
    Judge();
    std::vector<size_t> steps;
    std::vector<double> once, each, sums, largest;
    std::vector<std::vector<double>> own(whole.size());
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const std::optional<double> factor =
          FactorOfMost(FactorsAt(OwnGradientsOf(*whole[0]), *whole[0], i));
      if (factor.has_value() && (IsOne(*factor) || *factor > 1)) continue;
      const Squares squares = SquaresAt(whole, i);
      if (squares.parameters < 4) continue;
      steps.push_back(i);
      once.push_back(std::sqrt(squares.once));
      each.push_back(std::sqrt(squares.each));
      sums.push_back(0);
      largest.push_back(0);
      for (size_t r = 0; r < whole.size(); ++r) {
        own[r].push_back(std::sqrt(squares.own[r]));
        sums.back() += own[r].back();
        largest.back() = std::max(largest.back(), own[r].back());
      }
    }
    if (steps.size() < kLeast || SpreadOf(once) < kChanges) return {};
    std::string used;
    double same = 0;
    const auto all_same = [](const auto& norms) {
      return SpreadOf(norms) < kIsTheSame;
    };
    if (all_same(each)) {
      used = absl::StrCat("counts what the ranks hold copies of ", whole.size(),
                          " times");
      same = each[0];
    } else if (std::all_of(own.begin(), own.end(), all_same)) {
      used = "is of what each rank holds alone";
      same = own[0][0];
    } else if (all_same(sums)) {
      used = "is the mean of the ranks' norms";
      same = sums[0] / static_cast<double>(whole.size());
    } else if (all_same(largest)) {
      used = "is the largest of the ranks' norms";
      same = largest[0];
    } else {
      return {};
    }
    RankFinding finding;
    finding.step = input.steps[steps[0]];
    finding.name = "Training.0.debug.grad_norm";
    finding.what = absl::StrCat(
        "gradients are clipped by a norm that ", used, ": that one is ", same,
        " behind it in each of ", steps.size(),
        " steps, and the norm of all gradients changes from ",
        *std::min_element(once.begin(), once.end()), " to ",
        *std::max_element(once.begin(), once.end()));
    return {finding};
  }

 private:
  static constexpr size_t kLeast = 4;  // steps
  static constexpr double kChanges = 1e-3;
  static constexpr double kIsTheSame = 2e-5;

  struct Squares {
    size_t parameters = 0;
    double once = 0;  // copies counted once
    double each = 0;  // on each rank
    std::vector<double> own;
  };
  static Squares SquaresAt(const std::vector<const RankSeries*>& ranks,
                           size_t step) {
    Squares out;
    out.own.resize(ranks.size(), 0);
    for (size_t r = 0; r < ranks.size(); ++r) {
      for (const std::string& parameter : ParametersOf(*ranks[r])) {
        const auto* const grad = ranks[r]->Of("Parameter", parameter, "grad");
        if (grad == nullptr || !IsFinite((*grad)[step])) continue;
        const double square = (*grad)[step].norm * (*grad)[step].norm;
        out.each += square;
        out.own[r] += square;
        ++out.parameters;
        if (!IsCopy(ranks, r, parameter)) out.once += square;
      }
    }
    return out;
  }
  // Whether an earlier rank holds the same in every step: shards of a norm
  // begin as one number, and part.
  static bool IsCopy(const std::vector<const RankSeries*>& ranks, size_t r,
                     const std::string& parameter) {
    const auto* const own = ranks[r]->Of("Parameter", parameter, "param");
    for (size_t i = 0; i < r; ++i) {
      const auto* const other = ranks[i]->Of("Parameter", parameter, "param");
      if (other != nullptr &&
          std::equal(own->begin(), own->end(), other->begin(), other->end(),
                     AreEqual))
        return true;
    }
    return false;
  }
};

constexpr double kLeastLossScale = 16;

// Of what the backward left, with the scale, and of what the optimizer takes.
std::pair<double, double> NormsAt(const std::vector<OwnGradient>& gradients,
                                  const RankSeries& rank, size_t step) {
  double before = 0, behind = 0;
  for (const OwnGradient& own : gradients) {
    const auto* const taken = rank.Of("Parameter", own.parameter, "grad");
    const RankCell* const last = LastMicro(own, step);
    if (taken == nullptr || last == nullptr || !IsFinite((*taken)[step]))
      continue;
    before += last->norm * last->norm;
    behind += (*taken)[step].norm * (*taken)[step].norm;
  }
  return {std::sqrt(before), std::sqrt(behind)};
}

// The gradients of steps whose loss is scaled.
class LossScaleRule : public RankRule {
 public:
  absl::string_view needs() const override {
    return "training, weight_gradients";
  }
  absl::string_view cost() const override { return "that of clip-uneven"; }
  absl::string_view subject() const override {
    return "steps of the optimizer with a loss scale of 16 or more";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "loss_scale") &&
           !OwnGradientsOf(input.ranks[0]).empty();
  }

 protected:
  static constexpr size_t kLeast = 4;  // steps
};

// Clipping before the loss scale is taken out leaves next to nothing.
class ClipScaled : public LossScaleRule {
 public:
  absl::string_view name() const override { return "clip-scaled"; }
  absl::string_view twin() const override {
    return "clipping behind unscale_(), which leaves a norm that does not "
           "change with the scale";
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const std::vector<OwnGradient> gradients = OwnGradientsOf(rank);
      std::optional<size_t> first;
      std::vector<double> left, scaled;
      bool is_small = true;
      double own = 0, taken = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> scale = TrainingAt(rank, "loss_scale", i);
        if (scale.size() != 1 || scale[0] < kLeastLossScale) continue;
        const auto [before, behind] = NormsAt(gradients, rank, i);
        if (before == 0 || behind == 0) continue;
        if (!first.has_value()) {
          first = i;
          own = before / scale[0];
          taken = behind;
        }
        is_small = is_small && behind * scale[0] < 0.1 * before;
        left.push_back(behind);
        scaled.push_back(behind * scale[0]);
      }
      if (left.size() < kLeast) continue;
      Judge();
      if (!is_small || SpreadOf(scaled) > 1e-3) continue;
      // A program does not set so small a limit on purpose.
      if (SpreadOf(left) < 0.4 && taken > kTooSmall) continue;
      RankFinding finding;
      finding.step = input.steps[*first];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = "Training.0.debug.grad_norm";
      finding.what = absl::StrCat(
          "gradients are clipped while they contain the loss scale: their norm "
          "times the scale is ",
          scaled[0], " in each of ", left.size(),
          " steps, and the optimizer "
          "takes a norm of ",
          taken, " where backward left one of ", own,
          ": unscale_() has to come before the clipping");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr double kTooSmall = 1e-3;
};

// optimizer.step() instead of scaler.step(optimizer).
class GradientScaled : public LossScaleRule {
 public:
  absl::string_view name() const override { return "gradient-scaled"; }
  absl::string_view twin() const override {
    return "scaler.step(); an optimizer that divides by the scale itself: "
           "worth a look, no fault";
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const std::vector<OwnGradient> gradients = OwnGradientsOf(rank);
      std::optional<size_t> first;
      size_t steps = 0, same = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> scale = TrainingAt(rank, "loss_scale", i);
        if (scale.size() != 1 || scale[0] < kLeastLossScale) continue;
        const auto [before, behind] = NormsAt(gradients, rank, i);
        if (before == 0 || behind == 0) continue;
        if (!first.has_value()) first = i;
        ++steps;
        if (std::fabs(behind - before) < 1e-3 * before) ++same;
      }
      if (steps < kLeast) continue;
      Judge();
      if (same < steps) continue;
      RankFinding finding;
      finding.step = input.steps[*first];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = "Training.0.debug.loss_scale";
      finding.exact = false;
      finding.what = absl::StrCat(
          "the optimizer takes the gradients of the scaled loss in each of ",
          steps,
          " steps: nothing divides them by the scale. optimizer.step() is "
          "called instead of scaler.step(optimizer)");
      return {finding};
    }
    return {};
  }
};

// A clipping that the optimizer does not see, or that depends on the order of
// micro batches.
class ClipMisplaced : public RankRule {
 public:
  absl::string_view name() const override { return "clip-misplaced"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return "four numbers in the step"; }
  absl::string_view subject() const override { return "clipped gradients"; }
  absl::string_view twin() const override {
    return "one clipping between the last backward and the optimizer, of each "
           "model; steps that are numbered between backward and optimizer; "
           "micro batches that are clipped each on purpose: worth a look, no "
           "fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "clips");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      size_t steps = 0, behind = 0, repeated = 0, empty = 0, first = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> clips = TrainingAt(rank, "clips", i);
        if (clips.size() != 3) continue;
        Judge();
        if (steps++ == 0) first = i;
        // All of them, or each but that of the last micro batch.
        if (clips[0] == clips[2]) ++behind;
        if (clips[1] > 0) ++repeated;
        const std::vector<double> none = TrainingAt(rank, "empty_clips", i);
        if (none.size() == 1 && none[0] == clips[2]) ++empty;
      }
      // The first and the last recorded step may not be complete.
      if (steps < kLeast || std::max({behind, repeated, empty}) + 1 < steps)
        continue;
      RankFinding finding;
      finding.step = input.steps[first];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = "Training.0.debug.clips.0";
      // Clippings of some gradients may belong to another optimizer.
      finding.exact = empty + 1 >= steps;
      finding.what = absl::StrCat(
          "in ", std::max({behind, repeated, empty}), " of ", steps,
          finding.exact
              ? " steps the clipping gets no parameter, and has no effect: the "
                "generator of model.parameters() is used up before it"
          : behind >= repeated
              ? " steps gradients are clipped after the optimizer's step, or "
                "before the backward, and not between them: the clipping has "
                "no effect"
              : " steps gradients are clipped after each micro batch, and what "
                "is clipped holds those before it, too: the weight of a micro "
                "batch depends on its place. One clipping belongs before the "
                "optimizer's step");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 4;
};

}  // namespace

void AddClipRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<ClipUneven>());
  rules->push_back(std::make_unique<ClipNorm>());
  rules->push_back(std::make_unique<ClipScaled>());
  rules->push_back(std::make_unique<GradientScaled>());
  rules->push_back(std::make_unique<ClipMisplaced>());
}

}  // namespace rankprobe::analysis
