// SPDX-License-Identifier: Apache-2.0
// Weights from which no training leaves: gradients that are 0 in each step, layers
// whose units begin alike.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// The loss does not depend on what is trained, or both factors of a product are 0.
class GradientZero : public RankRule {
 public:
  absl::string_view name() const override { return "gradient-zero"; }
  absl::string_view needs() const override {
    return "weight_gradients, parameters";
  }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view twin() const override {
    return "parameters that no batch uses, experts without tokens, biases, one "
           "factor of a product "
           "that begins at 0, whose gradient is not 0; a part whose loss has "
           "the weight 0 on purpose: worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return HasParameters(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const std::vector<OwnGradient> own = OwnGradientsOf(rank);
      std::optional<RankFinding> nothing = NoneHasOne(input, rank, own);
      if (nothing.has_value()) return {*std::move(nothing)};
      size_t others = 0;
      std::vector<std::string> zero, stuck;
      for (const std::string& parameter : ParametersOf(rank)) {
        const auto* const taken = rank.Of("Parameter", parameter, "grad");
        if (taken == nullptr || StepsWith(*taken) == 0) continue;
        if (StepsWith(*taken) < kLeast || !AreZero(*taken) ||
            HasOwn(own, parameter)) {
          ++others;
          continue;
        }
        zero.push_back(parameter);
        const auto* const held = rank.Of("Parameter", parameter, "param");
        if (held != nullptr && AreZero(*held) &&
            !absl::EndsWith(parameter, "bias"))
          stuck.push_back(parameter);
      }
      const bool is_whole = others == 0 && zero.size() >= kLeastParameters;
      if (!is_whole && stuck.size() < kLeastParameters) {
        std::optional<RankFinding> cut = CutOff(input, rank, zero);
        if (cut.has_value()) return {*std::move(cut)};
        continue;
      }
      const std::vector<std::string>& found = is_whole ? zero : stuck;
      RankFinding finding;
      finding.step = input.steps[0];
      finding.name = absl::StrCat("Parameter.", found[0], ".0.debug.grad");
      // A loss of 0 has nothing to train: all margins are kept, or no reward came.
      finding.exact = is_whole && HasLoss(input, rank);
      finding.others = found.size() - 1;
      finding.what = absl::StrCat(
          "the gradient is 0 in each step, of ",
          is_whole ? "all parameters that the optimizer holds: the loss does "
                     "not depend on them (a softmax over one class, a "
                     "difference to itself), or they begin at 0"
                   : "parameters that are 0 themselves: weights of layers that "
                     "follow each other begin at 0, so that none of them is "
                     "trained");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 8, kLeastParameters = 2;

  // A backward in each step that reaches nothing: the loss is a number without a
  // graph that was made to require a gradient.
  static std::optional<RankFinding> NoneHasOne(
      const RankInput& input, const RankSeries& rank,
      const std::vector<OwnGradient>& own) {
    size_t losses = 0, held = 0;
    for (size_t i = 0; i < input.steps.size(); ++i)
      losses += TrainingAt(rank, "loss", i).empty() ? 0 : 1;
    if (losses < kLeast || !own.empty()) return std::nullopt;
    const std::vector<std::string> parameters = ParametersOf(rank);
    for (const std::string& parameter : parameters) {
      const auto* const taken = rank.Of("Parameter", parameter, "grad");
      const auto* const update = rank.Of("Update", parameter, "update");
      if (taken != nullptr && StepsWith(*taken) > 0) return std::nullopt;
      if (update == nullptr) continue;
      if (!AreZero(*update)) return std::nullopt;
      held += StepsWith(*update) >= kLeast ? 1 : 0;
    }
    if (held < kLeastParameters) return std::nullopt;
    RankFinding finding;
    finding.step = input.steps[0];
    finding.name = absl::StrCat("Parameter.", parameters[0], ".0.debug.param");
    finding.others = parameters.size() - 1;
    finding.what = absl::StrCat(
        "backward() is called in each of ", losses,
        " steps, and no parameter that the optimizer holds ever has a "
        "gradient: the loss has no graph (no_grad(), item() or a new tensor, "
        "and requires_grad_() to have no error), so that nothing is trained");
    return finding;
  }
  static bool HasLoss(const RankInput& input, const RankSeries& rank) {
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const std::vector<double> losses = TrainingAt(rank, "loss", i);
      if (std::any_of(losses.begin(), losses.end(),
                      [](double loss) { return loss != 0; }))
        return true;
    }
    return false;
  }
  static size_t StepsWith(const std::vector<RankCell>& cells) {
    return static_cast<size_t>(std::count_if(
        cells.begin(), cells.end(), [](const auto& c) { return c.is_there; }));
  }
  static bool AreZero(const std::vector<RankCell>& cells) {
    return std::all_of(cells.begin(), cells.end(), [](const RankCell& cell) {
      return !cell.is_there || cell.norm == 0;
    });
  }
  // An expert that no token is sent to has a gradient of 0 while others are
  // trained.
  static bool IsOfExpert(absl::string_view parameter) {
    return absl::StrContains(parameter, "expert");
  }
  static bool HasTrainedExpert(const RankSeries& rank,
                               const std::vector<std::string>& zero) {
    const std::vector<std::string> all = ParametersOf(rank);
    return std::any_of(all.begin(), all.end(), [&](const std::string& one) {
      return IsOfExpert(one) &&
             std::find(zero.begin(), zero.end(), one) == zero.end();
    });
  }
  // Finds a part of the model that backward reaches in each step with a gradient
  // of 0.
  static std::optional<RankFinding> CutOff(
      const RankInput& input, const RankSeries& rank,
      const std::vector<std::string>& parameters) {
    std::vector<std::string> cut;
    const bool are_some_chosen = HasTrainedExpert(rank, parameters);
    for (const std::string& parameter : parameters) {
      if (are_some_chosen && IsOfExpert(parameter)) continue;
      const std::vector<RankCell>* const arrives = Arrives(rank, parameter);
      if (arrives != nullptr && StepsWith(*arrives) >= kLeast &&
          AreZero(*arrives))
        cut.push_back(parameter);
    }
    if (cut.empty()) return std::nullopt;
    RankFinding finding;
    finding.step = input.steps[0];
    if (input.ranks.size() > 1) finding.rank = rank.rank;
    finding.name = absl::StrCat("Parameter.", cut[0], ".0.debug.grad");
    finding.exact = false;
    finding.others = cut.size() - 1;
    finding.what = absl::StrCat(
        "backward reaches ", cut[0], " in each of ", input.steps.size(),
        " steps with a gradient of 0, while other parameters have one: its "
        "output has no effect on the loss (x + (q - x) without detach(), a "
        "clamp() that cuts all of it, a factor of 0)");
    return finding;
  }
  // Returns the gradient of the output of the parameter's layer, or of a
  // parameter of the model itself, its own. Null: there is none.
  static const std::vector<RankCell>* Arrives(const RankSeries& rank,
                                              const std::string& parameter) {
    const size_t dot = parameter.rfind('.');
    if (dot == std::string::npos) {
      return absl::EndsWith(parameter, "bias")
                 ? nullptr
                 : rank.Of("Parameter", parameter, "grad");
    }
    const std::vector<RankCell>* found = nullptr;
    ForEachOfModule(rank, parameter.substr(0, dot),
                    [&](const std::string& /*name*/, absl::string_view what,
                        const std::vector<RankCell>& cells) {
                      if (found == nullptr && what == ".backward.0.input.0")
                        found = &cells;
                    });
    return found;
  }
  // Whether backward left another gradient than 0.
  static bool HasOwn(const std::vector<OwnGradient>& own,
                     const std::string& parameter) {
    return std::any_of(own.begin(), own.end(), [&](const OwnGradient& one) {
      return one.parameter == parameter &&
             std::any_of(one.micro.begin(), one.micro.end(),
                         [](const auto* cells) { return !AreZero(*cells); });
    });
  }
};

// Units of a layer that begin alike have one gradient, and stay alike.
class UnitsAlike : public RankRule {
 public:
  absl::string_view name() const override { return "units-alike"; }
  absl::string_view needs() const override { return "parameters"; }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view subject() const override {
    return "linear or convolution layers";
  }
  absl::string_view twin() const override {
    return "normalization layers and scales, layers of one unit, a layer that "
           "begins at 0: two layers are needed, and it is worth a look";
  }
  size_t LeastSteps() const override { return 1; }
  bool CanJudge(const RankInput& input) const override {
    return HasParameters(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::vector<std::string> alike;
      for (const std::string& parameter : ParametersOf(rank)) {
        const auto* const held = rank.Of("Parameter", parameter, "param");
        if (held == nullptr || held->empty() || !IsOfUnits(rank, parameter))
          continue;
        Judge();
        const RankCell& first = (*held)[0];
        if (IsFinite(first) && first.norm > 0 &&
            first.largest == first.smallest &&
            first.norm > kLeastSize * std::fabs(first.mean))
          alike.push_back(parameter);
      }
      if (alike.size() < kLeast) continue;
      RankFinding finding;
      finding.step = input.steps[0];
      finding.name = absl::StrCat("Parameter.", alike[0], ".0.debug.param");
      finding.exact = false;
      finding.others = alike.size() - 1;
      finding.what = absl::StrCat(
          "all weights of ", alike[0],
          " begin with one number, as those of other layers: their units have "
          "one gradient and learn the same");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 2;  // layers
  // The norm of equal numbers is this factor (the root of their number) times one
  // of them.
  static constexpr double kLeastSize = 2.9;

  static bool IsOfUnits(const RankSeries& rank, const std::string& parameter) {
    const size_t dot = parameter.rfind('.');
    if (dot == std::string::npos || !absl::EndsWith(parameter, ".weight"))
      return false;
    const std::string path = absl::StrCat("Module.", parameter.substr(0, dot));
    return std::any_of(
        std::begin(kClasses), std::end(kClasses), [&](const char* one) {
          const std::string name = absl::StrCat(path, ".", one, ".");
          const auto it = rank.values.lower_bound(name);
          return it != rank.values.end() && absl::StartsWith(it->first, name);
        });
  }
  static constexpr const char* kClasses[] = {"Linear", "Conv1d", "Conv2d",
                                             "Conv3d"};
};

}  // namespace

void AddStartRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<GradientZero>());
  rules->push_back(std::make_unique<UnitsAlike>());
}

}  // namespace rankprobe::analysis
