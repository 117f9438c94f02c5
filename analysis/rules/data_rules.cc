// SPDX-License-Identifier: Apache-2.0
// Rules for values that must change from step to step, and for frozen weights
// that must not.
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// The same input for all targets: a cache, a view of one buffer, an index that
// does not move.
class InputConstant : public RankRule {
 public:
  absl::string_view name() const override { return "input-constant"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override {
    return "in three steps, a checksum of what the first layers take";
  }
  absl::string_view subject() const override {
    return "a cross entropy whose targets differ from step to step";
  }
  absl::string_view twin() const override {
    return "one batch in all steps on purpose, whose targets stay, too; a "
           "model that learns the distribution of its targets alone: worth a "
           "look, no fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "input_checksum") &&
           KnowsTraining(input, "target_checksum");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::set<double> inputs, targets;
      size_t steps = 0, first = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const auto in = TrainingAt(rank, "input_checksum", i);
        const auto out = TrainingAt(rank, "target_checksum", i);
        if (in.size() != 1 || out.empty()) continue;
        if (steps++ == 0) first = i;
        inputs.insert(in[0]);
        targets.insert(out[0]);
      }
      if (steps < kLeast || targets.size() < steps) continue;
      Judge();
      if (inputs.size() > 1) continue;
      RankFinding finding;
      finding.step = input.steps[first];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = "Training.0.debug.input_checksum";
      finding.exact = false;
      finding.what = absl::StrCat(
          "what the first layers take is the same in each of ", steps,
          " steps, and the targets differ: the data set gives one sample for "
          "all targets (a cache, a buffer that is used again, an index that "
          "does not move)");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 3;
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
           "gradients that a program makes by itself";
  }
  size_t LeastSteps() const override { return 2 * kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return HasParameters(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::optional<RankFinding> found;
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

}  // namespace

void AddDataRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<InputConstant>());
  rules->push_back(std::make_unique<LossConstant>());
  rules->push_back(std::make_unique<FrozenMoves>());
}

}  // namespace rankprobe::analysis
