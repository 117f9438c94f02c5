// SPDX-License-Identifier: Apache-2.0
// In which mode the modules are while the model is trained.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// model.eval() that nobody undoes, or model.train() that nobody calls.
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
      // Some train a complete model in evaluation on purpose, from the first step
      // on, or beside another model that is in training.
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

}  // namespace

void AddModeRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<ModelInEval>());
  rules->push_back(std::make_unique<InvertedDropout>());
  rules->push_back(std::make_unique<InvertedMomentum>());
}

}  // namespace rankprobe::analysis
