// SPDX-License-Identifier: Apache-2.0
// Rules for values that must change from step to step, and for frozen weights
// that must not.
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/rules/rule.h"

namespace rankprobe::analysis {
namespace {

// A value that must differ from step to step, beside one that does.
class Constant : public RankRule {
 public:
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override {
    return "in three steps, a checksum of what the first layers take, of "
           "targets and of dropouts";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, Value()) && KnowsTraining(input, Beside());
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::set<double> values, others;
      size_t steps = 0, first = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const auto value = TrainingAt(rank, Value(), i);
        const auto other = TrainingAt(rank, Beside(), i);
        // 0: the agent has found that it says nothing.
        if (value.size() != 1 || value[0] == 0 || other.empty()) continue;
        if (steps++ == 0) first = i;
        values.insert(value[0]);
        others.insert(other[0]);
      }
      if (steps < kLeast || others.size() < steps) continue;
      Judge();
      if (values.size() > 1) continue;
      RankFinding finding;
      finding.step = input.steps[first];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = absl::StrCat("Training.0.debug.", Value());
      finding.exact = false;
      finding.what =
          absl::StrCat(What(), " in each of ", steps, " steps, and ", Cause());
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 3;

  // Names of two values of Training.
  virtual absl::string_view Value() const = 0;
  virtual absl::string_view Beside() const = 0;
  virtual absl::string_view What() const = 0;
  virtual absl::string_view Cause() const = 0;
};

// The same input for all targets: a cache, a view of one buffer, an index that
// does not move.
class InputConstant : public Constant {
 public:
  absl::string_view name() const override { return "input-constant"; }
  absl::string_view subject() const override {
    return "a cross entropy whose targets differ from step to step";
  }
  absl::string_view twin() const override {
    return "one batch in all steps on purpose, whose targets stay, too; a "
           "model that learns the distribution of its targets alone: worth a "
           "look, no fault";
  }

 private:
  absl::string_view Value() const override { return "input_checksum"; }
  absl::string_view Beside() const override { return "target_checksum"; }
  absl::string_view What() const override {
    return "what the first layers take is the same";
  }
  absl::string_view Cause() const override {
    return "the targets differ: the data set gives one sample for all targets "
           "(a cache, a buffer that is used again, an index that does not "
           "move)";
  }
};

// The noise of a diffusion model that is drawn once, or with one seed.
class TargetConstant : public Constant {
 public:
  absl::string_view name() const override { return "target-constant"; }
  absl::string_view subject() const override {
    return "a regression whose inputs differ from step to step";
  }
  absl::string_view twin() const override {
    return "targets of one or two numbers, as labels of a discriminator; one "
           "batch in all steps on purpose; one target for all inputs on "
           "purpose (an image that is restored from noise): worth a look, no "
           "fault";
  }

 private:
  absl::string_view Value() const override { return "regression_checksum"; }
  absl::string_view Beside() const override { return "input_checksum"; }
  absl::string_view What() const override {
    return "the target of the regression is the same";
  }
  absl::string_view Cause() const override {
    return "the inputs differ: noise is drawn once or with the same seed in "
           "each step, or the data set gives one target for all samples";
  }
};

// A seed that is set in each step.
class RandomRepeats : public Constant {
 public:
  absl::string_view name() const override { return "random-repeats"; }
  absl::string_view subject() const override {
    return "dropouts of batches that differ from step to step";
  }
  absl::string_view twin() const override {
    return "one batch in all steps, recomputed blocks; one mask on purpose: "
           "worth a look, no fault";
  }

 private:
  absl::string_view Value() const override { return "dropout_checksum"; }
  absl::string_view Beside() const override { return "input_checksum"; }
  absl::string_view What() const override {
    return "the dropouts drop the same numbers";
  }
  absl::string_view Cause() const override {
    return "the inputs differ: the seed is set in the training loop "
           "(manual_seed()), so that all random numbers of a step repeat";
  }
};

// A loss that compares the model with itself.
class LossConstant : public RankRule {
 public:
  absl::string_view name() const override { return "loss-constant"; }
  absl::string_view needs() const override {
    return "training, parameters, weight_gradients, optimizer";
  }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view subject() const override {
    return "one loss a step and gradients that are not 0";
  }
  absl::string_view twin() const override {
    return "a loss that is divided by itself, or less itself, which is an "
           "integer; gradients that are 0; a loss that is constant for another "
           "reason: worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "loss") && HasParameters(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::vector<double> losses;
      size_t first = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> loss = TrainingAt(rank, "loss", i);
        if (loss.size() != 1 || !Moves(rank, i)) continue;
        if (losses.empty()) first = i;
        losses.push_back(loss[0]);
      }
      if (losses.size() < kLeast) continue;
      Judge();
      const double one = losses[0];
      const bool is_whole = std::fabs(one - std::round(one)) < kSame;
      const bool is_same =
          std::all_of(losses.begin(), losses.end(), [&](double loss) {
            return std::fabs(loss - one) <= kSame * std::fabs(one);
          });
      if (is_whole || !is_same) continue;
      RankFinding finding;
      finding.step = input.steps[first];
      finding.name = "Training.0.debug.loss";
      finding.exact = false;
      finding.what = absl::StrCat(
          "the loss is ", one, " in each of ", losses.size(),
          " steps, although gradients are not 0 and the optimizer changes the "
          "weights: it compares the model with itself (a reference or a "
          "teacher that is not a copy), or does not depend on what is learned");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 8;
  static constexpr double kSame = 1e-6;

  // Returns whether a parameter has a gradient and an update other than 0 in
  // the step.
  static bool Moves(const RankSeries& rank, size_t step) {
    const auto is_there = [&](const std::vector<RankCell>* cells) {
      return cells != nullptr && IsFinite((*cells)[step]) &&
             (*cells)[step].norm > 0;
    };
    const std::vector<std::string> parameters = ParametersOf(rank);
    return std::any_of(parameters.begin(), parameters.end(),
                       [&](const std::string& one) {
                         return is_there(rank.Of("Parameter", one, "grad")) &&
                                is_there(rank.Of("Update", one, "update"));
                       });
  }
};

// The optimizer changes a parameter that requires no gradient, by weight decay
// or by its averages.
class FrozenMoves : public RankRule {
 public:
  absl::string_view name() const override { return "frozen-moves"; }
  absl::string_view needs() const override {
    return "parameters, weight_gradients, optimizer";
  }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view subject() const override {
    return "a parameter that is frozen while the optimizer holds it";
  }
  absl::string_view twin() const override {
    return "frozen parameters without a gradient, which no optimizer changes; "
           "gradients that a program makes by itself; frozen weights that "
           "follow others in each step; adapters that are reset after a "
           "merge";
  }
  size_t LeastSteps() const override { return 2 * kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return HasParameters(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::optional<RankFinding> found = BaseMoves(input, rank);
      if (found.has_value()) {
        Judge();
        return {*std::move(found)};
      }
      for (const std::string& parameter : ParametersOf(rank)) {
        const std::optional<size_t> since = MovesSince(input, rank, parameter);
        if (!since.has_value()) continue;
        if (found.has_value()) {
          ++found->others;
          continue;
        }
        found = RankFinding{
            input.steps[*since], -1,
            absl::StrCat("Parameter.", parameter, ".0.debug.param"), ""};
        if (input.ranks.size() > 1) found->rank = rank.rank;
        found->what = absl::StrCat(
            parameter,
            " requires no gradient from here on, its gradient is 0, and the "
            "optimizer still changes it, by its averages or by decay: "
            "to freeze it, set its grad to None or leave it out of the "
            "optimizer");
      }
      if (found.has_value()) return {*std::move(found)};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 3;

  // Finds a weight that no optimizer holds, in a layer with weights that one
  // holds, which changes in a few steps and stays changed: adapters are merged
  // into it, are not unmerged again, and are trained on.
  static std::optional<RankFinding> BaseMoves(const RankInput& input,
                                              const RankSeries& rank) {
    constexpr absl::string_view kUsed = ".forward.0.parameters.";
    std::optional<RankFinding> found;
    for (const auto& [name, cells] : rank.values) {
      const size_t at = absl::string_view(name).find(kUsed);
      if (at == std::string::npos || !absl::StartsWith(name, "Module."))
        continue;
      const std::string path = name.substr(7, name.rfind('.', at - 1) - 7);
      if (rank.Of("Parameter",
                  absl::StrCat(path, ".", name.substr(at + kUsed.size())),
                  "param") != nullptr ||
          !IsAdapted(rank, path))
        continue;
      std::optional<size_t> last, first;
      size_t steps = 0, changes = 0;
      for (size_t i = 0; i < cells.size(); ++i) {
        // A temperature or a step count is one number.
        if (!IsFinite(cells[i]) || cells[i].largest == cells[i].smallest)
          continue;
        ++steps;
        if (last.has_value() &&
            DeviationOf(cells[i], cells[*last]) > kRounding) {
          if (!GoesOn(rank, path, i)) break;
          if (changes++ == 0) first = i;
        }
        last = i;
      }
      if (changes == 0 || changes * 4 > steps || steps < 2 * kLeast) continue;
      RankFinding one;
      one.step = input.steps[*first];
      if (input.ranks.size() > 1) one.rank = rank.rank;
      one.name = name;
      one.exact = false;
      one.what = absl::StrCat(
          "a weight that no optimizer holds changes in ", changes, " of ",
          steps,
          " steps, while the same layer has weights that are trained: "
          "adapters are merged into it (by eval(), for a checkpoint) and not "
          "unmerged again, so that they count twice");
      KeepEarliest(std::move(one), &found);
    }
    return found;
  }
  // Whether an optimizer holds a parameter of the layer itself, or of a layer in
  // it.
  static bool IsAdapted(const RankSeries& rank, const std::string& path) {
    const std::string prefix = absl::StrCat("Parameter.", path, ".");
    const auto it = rank.values.lower_bound(prefix);
    return it != rank.values.end() && absl::StartsWith(it->first, prefix);
  }
  // Whether the trained weights of the layer are what the optimizer left. Those
  // of adapters that are reset after a merge (ReLoRA) are not.
  static bool GoesOn(const RankSeries& rank, const std::string& path,
                     size_t step) {
    const std::string prefix = absl::StrCat("Parameter.", path, ".");
    for (auto it = rank.values.lower_bound(prefix);
         it != rank.values.end() && absl::StartsWith(it->first, prefix); ++it) {
      const std::string parameter =
          ParameterOf(it->first, "Parameter", "param");
      const auto* const left =
          parameter.empty() ? nullptr : rank.Of("Update", parameter, "param");
      if (left != nullptr && step > 0 && IsFinite((*left)[step - 1]) &&
          IsFinite(it->second[step]) &&
          !AreClose((*left)[step - 1], it->second[step]))
        return false;
    }
    return true;
  }
  // Of the norm. What is added and subtracted again is off by less.
  static constexpr double kRounding = 1e-5;

  // Returns the first of the last steps in which the parameter is frozen and
  // changes, if it was trained before.
  std::optional<size_t> MovesSince(const RankInput& input,
                                   const RankSeries& rank,
                                   const std::string& parameter) const {
    const auto* const grad = rank.Of("Parameter", parameter, "grad");
    const auto* const before = rank.Of("Parameter", parameter, "param");
    const auto* const after = rank.Of("Update", parameter, "param");
    // An update is recorded only for a parameter that requires a gradient.
    const auto* const update = rank.Of("Update", parameter, "update");
    if (grad == nullptr || before == nullptr || after == nullptr ||
        update == nullptr)
      return std::nullopt;
    size_t trained = 0, frozen = 0, moved = 0, first = 0;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      if (!IsFinite((*before)[i]) || !IsFinite((*after)[i])) continue;
      if ((*update)[i].is_there) {
        ++trained;
        frozen = moved = 0;
        continue;
      }
      if (frozen++ == 0) first = i;
      const bool is_without = (*grad)[i].is_there && (*grad)[i].norm == 0;
      if (is_without && !AreEqual((*before)[i], (*after)[i])) ++moved;
    }
    if (trained < kLeast || frozen < kLeast) return std::nullopt;
    Judge();
    if (moved < frozen) return std::nullopt;
    return first;
  }
};

// The optimizer steps twice for one backward.
class GradientReused : public RankRule {
 public:
  absl::string_view name() const override { return "gradient-reused"; }
  absl::string_view needs() const override {
    return "weight_gradients, training, activation gradients";
  }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view subject() const override {
    return "steps of the optimizer without a backward";
  }
  absl::string_view twin() const override {
    return "an optimizer of other parameters that steps after this one; a "
           "method that takes a gradient several times on purpose: worth a "
           "look, no fault";
  }
  size_t LeastSteps() const override { return 2 * kLeast; }
  bool NeedsEachStep() const override { return true; }
  bool CanJudge(const RankInput& input) const override {
    return HasOwnGradients(input) && KnowsTraining(input, "loss");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const std::vector<OwnGradient> own = OwnGradientsOf(rank);
      std::vector<size_t> again;
      for (size_t i = 1; i < input.steps.size(); ++i) {
        if (!TrainingAt(rank, "loss", i).empty()) continue;
        Judge();
        if (AreThoseBefore(rank, own, i)) again.push_back(i);
      }
      if (again.size() < kLeast) continue;
      RankFinding finding;
      finding.step = input.steps[again[0]];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name =
          absl::StrCat("Parameter.", own[0].parameter, ".0.debug.grad");
      finding.exact = false;
      finding.others = own.size() - 1;
      finding.what = absl::StrCat(
          "in ", again.size(), " of ", input.steps.size(),
          " steps there is no backward, and the optimizer takes the gradients "
          "of the step before once more: step() is called twice, as by the "
          "program and by its trainer");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 3;  // steps

  static bool AreThoseBefore(const RankSeries& rank,
                             const std::vector<OwnGradient>& own, size_t step) {
    size_t same = 0;
    for (const OwnGradient& one : own) {
      const auto* const taken = rank.Of("Parameter", one.parameter, "grad");
      if (taken == nullptr || !(*taken)[step].is_there) continue;
      const RankCell* const fresh = LastMicro(one, step);
      if (fresh != nullptr && fresh->is_there) return false;
      if (!AreEqual((*taken)[step], (*taken)[step - 1])) return false;
      if ((*taken)[step].norm > 0) ++same;
    }
    return same > 0;
  }
};

// An optimizer that is made in the training loop has no averages.
class OptimizerAnew : public RankRule {
 public:
  absl::string_view name() const override { return "optimizer-anew"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return "two numbers in the step"; }
  absl::string_view subject() const override {
    return "an optimizer with a state";
  }
  absl::string_view twin() const override {
    return "the first step; an optimizer that is made again now and then; one "
           "for inner steps beside one that stays; one of a single step on "
           "purpose: worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool NeedsEachStep() const override { return true; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, kValue);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      size_t steps = 0, anew = 0, first = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> fresh = TrainingAt(rank, kValue, i);
        if (fresh.size() != 2) continue;
        if (steps++ == 0) first = i;
        if (fresh[0] > 0) Judge();
        if (fresh[0] == fresh[1]) ++anew;
      }
      if (steps < kLeast || anew < steps) continue;
      RankFinding finding;
      finding.step = input.steps[first];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = absl::StrCat("Training.0.debug.", kValue, ".0");
      finding.exact = false;
      finding.what = absl::StrCat(
          "the optimizer's state begins empty in each of ", steps,
          " steps: it is made in the training loop, so that its averages "
          "(momentum, those of Adam) hold one gradient each");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr char kValue[] = "fresh_optimizers";
  static constexpr size_t kLeast = 5;  // steps
};

}  // namespace

void AddDataRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<InputConstant>());
  rules->push_back(std::make_unique<TargetConstant>());
  rules->push_back(std::make_unique<RandomRepeats>());
  rules->push_back(std::make_unique<LossConstant>());
  rules->push_back(std::make_unique<GradientReused>());
  rules->push_back(std::make_unique<OptimizerAnew>());
  rules->push_back(std::make_unique<FrozenMoves>());
}

}  // namespace rankprobe::analysis
