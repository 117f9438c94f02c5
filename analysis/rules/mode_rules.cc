// SPDX-License-Identifier: Apache-2.0
// Rules for the mode and the settings of modules while the model is trained.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// model.eval() that is not undone, or model.train() that is not called.
class ModelInEval : public RankRule {
 public:
  absl::string_view name() const override { return "model-in-eval"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override {
    return "in each step, the mode of each dropout and BatchNorm until a loss "
           "finds it in training";
  }
  absl::string_view twin() const override {
    return "an evaluation between steps or before them; BatchNorm, or a frozen "
           "part, that alone is in evaluation; a model that is from the first "
           "step on, which is only worth a look";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "in_eval");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::optional<size_t> first, last;
      size_t asleep = 0, awake = 0;
      double switches = 0, switches_before = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> modes = TrainingAt(rank, "in_eval", i);
        if (modes.size() != 3) continue;
        if (modes[0] < modes[1] || modes[2] == 0) {
          ++awake;
          if (!first.has_value()) switches_before = modes[1];
          continue;
        }
        ++asleep;
        switches = modes[1];
        if (!first.has_value()) first = i;
        last = i;
      }
      if (asleep < kLeast) continue;
      RankFinding finding;
      finding.step = input.steps[*first];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = "Training.0.debug.in_eval.0";
      // Some train a complete model in evaluation on purpose, from the first
      // step on, or beside another model that is in training.
      finding.exact = switches_before == switches;
      finding.what = absl::StrCat(
          "the model is in evaluation (model.eval()) in ", asleep, " of ",
          asleep + awake, " steps that train it, from step ",
          input.steps[*first], " to ", input.steps[*last], ": ", switches,
          switches == 1 ? " dropout or BatchNorm is off"
                        : " dropouts and BatchNorms are off",
          finding.exact ? ". Before that it is in training: model.train() is "
                          "not called after an evaluation"
                        : ". model.train() is not called, or this is meant");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 3;  // steps
};

// A setting of a module that other frameworks define as 1 minus PyTorch's.
class InvertedSetting : public RankRule {
 public:
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override {
    return "in each step, one setting of each dropout and BatchNorm";
  }
  size_t LeastSteps() const override { return 1; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "in_eval");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> found = TrainingAt(rank, Setting(), i);
        if (found.size() != 1) continue;
        Judge();
        if (found[0] < Least()) continue;
        RankFinding finding;
        finding.step = input.steps[i];
        if (input.ranks.size() > 1) finding.rank = rank.rank;
        finding.name = absl::StrCat("Training.0.debug.", Setting());
        finding.exact = false;
        finding.what = What(found[0]);
        return {finding};
      }
    }
    return {};
  }

 private:
  virtual absl::string_view Setting() const = 0;
  virtual double Least() const = 0;
  virtual std::string What(double value) const = 0;
};

class InvertedDropout : public InvertedSetting {
 public:
  absl::string_view name() const override { return "dropout-inverted"; }
  absl::string_view subject() const override { return "a dropout"; }
  absl::string_view twin() const override {
    return "dropouts of less than 0.75; one that drops that much on purpose: "
           "worth a look, no fault";
  }

 private:
  absl::string_view Setting() const override { return "drop_probability"; }
  double Least() const override { return 0.75; }
  std::string What(double value) const override {
    return absl::StrCat(
        "a dropout drops ", std::round(value * 1000) / 10,
        " % of its numbers: p is the share that is dropped. Is p = ",
        std::round((1 - value) * 1e6) / 1e6, " meant?");
  }
};

class InvertedMomentum : public InvertedSetting {
 public:
  absl::string_view name() const override { return "momentum-inverted"; }
  absl::string_view subject() const override {
    return "a BatchNorm with running statistics";
  }
  absl::string_view twin() const override {
    return "a momentum of less than 0.9; none (None), or one that forgets on "
           "purpose: worth a look, no fault";
  }

 private:
  absl::string_view Setting() const override { return "norm_momentum"; }
  double Least() const override { return 0.9; }
  std::string What(double value) const override {
    return absl::StrCat(
        "the running statistics of a BatchNorm are ",
        std::round(value * 1000) / 10,
        " % those of the newest batch, and an evaluation uses them: momentum "
        "is the weight of that batch. Is ",
        std::round((1 - value) * 1e6) / 1e6, " meant?");
  }
};

// Calls without gradients in which dropouts drop elements, or BatchNorms use
// the statistics of their batch.
class EvaluationInTraining : public RankRule {
 public:
  absl::string_view name() const override { return "evaluation-in-training"; }
  absl::string_view needs() const override {
    return "activations, activation gradients";
  }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view subject() const override {
    return "a dropout or BatchNorm that is called without gradients in some "
           "steps";
  }
  absl::string_view twin() const override {
    return "model.eval() around an evaluation; calls without gradients in half "
           "of the steps or more, as those of a generator or of recomputed "
           "blocks, unless the model's weights stay and no trained module "
           "takes what it makes; samples on purpose: worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return std::any_of(
        input.ranks.begin(), input.ranks.end(),
        [](const RankSeries& rank) { return !SwitchesOf(rank).empty(); });
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      for (const std::string& module : SwitchesOf(rank)) {
        const Calls calls = CallsOf(input, rank, module);
        const bool is_teacher = calls.trained == 0 && calls.steps >= kLeast &&
                                IsDropout(module) && IsFixed(rank, module);
        if (!is_teacher && (calls.trained < kLeast || calls.without == 0 ||
                            2 * calls.steps >= calls.trained))
          continue;
        Judge();
        if (calls.active < calls.without || calls.without < 2) continue;
        RankFinding finding;
        finding.step = input.steps[calls.first];
        if (input.ranks.size() > 1) finding.rank = rank.rank;
        finding.name = absl::StrCat(module, ".forward.0.output.0");
        finding.exact = false;
        const std::string where = absl::StrCat("in ", calls.steps, " of ",
                                               input.steps.size(), " steps ");
        finding.what =
            is_teacher
                ? absl::StrCat(where,
                               "a model whose weights stay is called without "
                               "gradients, and a dropout drops numbers in each "
                               "call: eval() of the teacher or reference is "
                               "missing, or this is meant")
                : absl::StrCat(
                      where, "the model is called ", calls.without,
                      " times without gradients, and is in training mode in "
                      "each: ",
                      IsDropout(module)
                          ? "a dropout drops numbers"
                          : "a BatchNorm uses the statistics of that batch and "
                            "keeps them",
                      ". model.eval() is missing before an evaluation, or this "
                      "is meant");
        return {finding};
      }
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 6;  // steps that train

  struct Calls {
    // Steps that train the module, and steps with calls without gradients.
    size_t trained = 0, steps = 0;
    // Calls without gradients, and how many of them were in training mode.
    size_t without = 0, active = 0;
    size_t first = 0;
  };

  // "teacher" of "Module.teacher.2.Dropout": the outermost module around it that
  // is called. "": it is the complete model.
  static std::string RootOf(const RankSeries& rank, const std::string& module) {
    const std::string path = module.substr(7, module.rfind('.') - 7);
    for (size_t dot = path.find('.'); dot != std::string::npos;
         dot = path.find('.', dot + 1)) {
      const std::string root = path.substr(0, dot);
      bool is_called = false;
      ForEachOfModule(rank, root,
                      [&](const std::string& /*name*/, absl::string_view what,
                          const std::vector<RankCell>& /*cells*/) {
                        is_called |= what == ".forward.0.output.0";
                      });
      if (is_called) return root;
    }
    return "";
  }
  // Whether the model around a module is a part of its own that no step changes,
  // and whose output no trained module takes: a frozen backbone's are.
  static bool IsFixed(const RankSeries& rank, const std::string& module) {
    const std::string root = RootOf(rank, module);
    if (root.empty()) return false;
    const std::string prefix = absl::StrCat("Module.", root, ".");
    bool has_weights = false;
    std::vector<const std::vector<RankCell>*> made, taken;
    for (const auto& [name, cells] : rank.values) {
      const bool is_of_root = absl::StartsWith(name, prefix);
      if (is_of_root && absl::StrContains(name, ".backward.")) return false;
      if (is_of_root && absl::StrContains(name, ".parameters.")) {
        has_weights = true;
        if (!AreOneValue(cells)) return false;
      }
      // A module of another name that encloses all, as of one model.
      if (IsOfWholeModel(name)) return false;
      if (!absl::StrContains(name, ".forward.")) continue;
      if (is_of_root && absl::EndsWith(name, ".output.0"))
        made.push_back(&cells);
      if (!is_of_root && absl::EndsWith(name, ".input.0"))
        taken.push_back(&cells);
    }
    return has_weights &&
           std::none_of(made.begin(), made.end(), [&](const auto* one) {
             return std::any_of(taken.begin(), taken.end(),
                                [&](const auto* other) {
                                  return one->front().is_there &&
                                         AreEqual(one->front(), other->front());
                                });
           });
  }
  // "Module.Net.forward.0.output.0"
  static bool IsOfWholeModel(absl::string_view name) {
    constexpr absl::string_view kMade = ".forward.0.output.0";
    return absl::StartsWith(name, "Module.") && absl::EndsWith(name, kMade) &&
           !absl::StrContains(name.substr(7, name.size() - kMade.size() - 7),
                              '.');
  }
  static bool AreOneValue(const std::vector<RankCell>& cells) {
    const auto begin = std::find_if(cells.begin(), cells.end(), IsFinite);
    return std::all_of(begin, cells.end(), [&](const RankCell& cell) {
      return !cell.is_there || AreEqual(cell, *begin);
    });
  }
  static bool IsDropout(absl::string_view module) {
    return absl::StrContains(module.substr(module.rfind('.') + 1), "Dropout");
  }
  // "Module.drop.Dropout"
  static std::vector<std::string> SwitchesOf(const RankSeries& rank) {
    std::vector<std::string> out;
    for (const auto& [name, cells] : rank.values) {
      const size_t at = name.find(".forward.0.output.0");
      if (at == std::string::npos || at + 19 != name.size()) continue;
      std::string module = name.substr(0, at);
      if (IsDropout(module) ||
          absl::StartsWith(module.substr(module.rfind('.') + 1), "BatchNorm"))
        out.push_back(std::move(module));
    }
    return out;
  }
  // The output of a BatchNorm that uses its batch has the mean of its bias.
  static bool IsActive(const RankSeries& rank, const std::string& module,
                       const std::string& call, size_t step) {
    const auto* const out = rank.Find(absl::StrCat(call, "output.0"));
    const auto* const other = rank.Find(
        absl::StrCat(call, IsDropout(module) ? "input.0" : "parameters.bias"));
    if (out == nullptr || other == nullptr || !IsFinite((*out)[step]) ||
        !IsFinite((*other)[step]) || (*out)[step].norm == 0)
      return false;
    if (IsDropout(module)) return !AreEqual((*out)[step], (*other)[step]);
    return std::fabs((*out)[step].mean - (*other)[step].mean) <
           1e-5 * LargestOf((*out)[step]);
  }
  static Calls CallsOf(const RankInput& input, const RankSeries& rank,
                       const std::string& module) {
    Calls calls;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      bool is_trained = false;
      size_t without = 0;
      for (size_t n = 0;; ++n) {
        const std::string call = absl::StrCat(module, ".forward.", n, ".");
        const auto* const out = rank.Find(absl::StrCat(call, "output.0"));
        if (out == nullptr) break;
        if (!(*out)[i].is_there) continue;
        const auto* const back =
            rank.Find(absl::StrCat(module, ".backward.", n, ".input.0"));
        if (back != nullptr && (*back)[i].is_there) {
          is_trained = true;
          continue;
        }
        if (without++ == 0 && calls.steps == 0) calls.first = i;
        if (IsActive(rank, module, call, i)) ++calls.active;
      }
      calls.trained += is_trained ? 1 : 0;
      calls.steps += without > 0 ? 1 : 0;
      calls.without += without;
    }
    return calls;
  }
};

// Hooks that are registered in the training loop and never removed.
class HooksGrow : public RankRule {
 public:
  absl::string_view name() const override { return "hooks-grow"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override {
    return "in each step, the number of hooks of each module and parameter";
  }
  absl::string_view subject() const override { return "hooks of the program"; }
  absl::string_view twin() const override {
    return "hooks that are registered once, or removed in each step";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool NeedsEachStep() const override { return true; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "hooks");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::vector<double> hooks;
      std::vector<size_t> at;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const std::vector<double> found = TrainingAt(rank, "hooks", i);
        if (found.size() != 1) continue;
        hooks.push_back(found[0]);
        at.push_back(i);
      }
      if (hooks.empty() || hooks.back() == 0) continue;
      Judge();
      size_t grown = 0;
      for (size_t i = hooks.size() - 1; i > 0 && hooks[i] > hooks[i - 1]; --i)
        ++grown;
      if (grown < kLeast) continue;
      RankFinding finding;
      finding.step = input.steps[at[hooks.size() - 1 - grown]];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = "Training.0.debug.hooks";
      finding.exact = false;
      finding.what = absl::StrCat(
          "a module or parameter has more hooks in each of ", grown,
          " steps, and ", hooks.back(),
          " in the last: a hook is registered in the training loop and not "
          "removed, and all of them are called, one after the other");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 6;
};

// A moving average of weights without the running statistics of BatchNorms.
class StatisticsLeft : public RankRule {
 public:
  absl::string_view name() const override { return "statistics-left"; }
  absl::string_view needs() const override { return "training, activations"; }
  absl::string_view cost() const override {
    return "in each step, a comparison of the statistics of each BatchNorm in "
           "evaluation";
  }
  absl::string_view subject() const override {
    return "a BatchNorm in evaluation";
  }
  absl::string_view twin() const override {
    return "statistics that are copied or learned; a frozen model whose "
           "weights stay; an average that no forward uses";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "unlearned_norms");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      size_t steps = 0, last = 0;
      double norms = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const auto found = TrainingAt(rank, "unlearned_norms", i);
        if (found.size() != 2) continue;
        Judge();
        // In the first steps there may be nothing that was learned.
        steps = found[0] > 0 ? steps + 1 : 0;
        norms = found[0];
        last = i;
      }
      const std::optional<std::string> norm = UsedAverage(rank);
      if (steps < kLeast || !norm.has_value()) continue;
      RankFinding finding;
      finding.step = input.steps[last];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = absl::StrCat(*norm, ".forward.0.output.0");
      finding.exact = false;
      finding.what = absl::StrCat(
          norms, norms == 1 ? " BatchNorm" : " BatchNorms",
          " of a model that follows another one by its weights uses a mean of "
          "0 and a variance of 1: buffers (running_mean, running_var) are not "
          "copied with the parameters");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 6;

  // A BatchNorm that is called, has no gradient, and whose weights change.
  static std::optional<std::string> UsedAverage(const RankSeries& rank) {
    constexpr absl::string_view kWeight = ".forward.0.parameters.weight";
    for (const auto& [name, cells] : rank.values) {
      if (!absl::EndsWith(name, kWeight)) continue;
      const std::string module = name.substr(0, name.size() - kWeight.size());
      if (!absl::StartsWith(module.substr(module.rfind('.') + 1),
                            "BatchNorm") ||
          rank.Find(absl::StrCat(module, ".parameters_grad.0.weight")) !=
              nullptr)
        continue;
      const RankCell* first = nullptr;
      for (const RankCell& cell : cells) {
        if (!IsFinite(cell)) continue;
        if (first != nullptr && !AreEqual(*first, cell)) return module;
        first = first == nullptr ? &cell : first;
      }
    }
    return std::nullopt;
  }
};

}  // namespace

void AddModeRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<ModelInEval>());
  rules->push_back(std::make_unique<InvertedDropout>());
  rules->push_back(std::make_unique<InvertedMomentum>());
  rules->push_back(std::make_unique<EvaluationInTraining>());
  rules->push_back(std::make_unique<HooksGrow>());
  rules->push_back(std::make_unique<StatisticsLeft>());
}

}  // namespace rankprobe::analysis
