// SPDX-License-Identifier: Apache-2.0
// Rules about the optimizer's averages of gradients from one step to the next.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// Factors of state, gradient and parameter (an L2 penalty).
using Factors = std::array<double, 3>;

// Means of a parameter in a step, relative to the norm of the next state. An
// average is linear, and so is the mean of its elements.
struct StateStep {
  size_t step = 0;  // index of the step that has the next state
  Factors given = {};
  double next = 0;
  double OffBy(const Factors& factors) const {
    double sum = -next;
    for (size_t i = 0; i < factors.size(); ++i) sum += factors[i] * given[i];
    return std::fabs(sum);
  }
};

// Least squares over the steps that `used` names, by the normal equations. Null:
// the numbers do not determine the factors.
std::optional<Factors> Fit(const std::vector<StateStep>& steps,
                           const std::vector<size_t>& used) {
  double matrix[3][4] = {};
  for (const size_t i : used) {
    const StateStep& at = steps[i];
    for (size_t r = 0; r < 3; ++r) {
      for (size_t c = 0; c < 3; ++c) matrix[r][c] += at.given[r] * at.given[c];
      matrix[r][3] += at.given[r] * at.next;
    }
  }
  // A parameter whose mean is 0 leaves its factor open.
  for (size_t i = 0; i < 3; ++i) {
    if (matrix[i][i] == 0) matrix[i][i] = 1;
  }
  for (size_t i = 0; i < 3; ++i) {
    size_t best = i;
    for (size_t r = i + 1; r < 3; ++r) {
      if (std::fabs(matrix[r][i]) > std::fabs(matrix[best][i])) best = r;
    }
    std::swap_ranges(matrix[i], matrix[i] + 4, matrix[best]);
    if (matrix[i][i] == 0) return std::nullopt;
    for (size_t r = 0; r < 3; ++r) {
      if (r == i) continue;
      const double factor = matrix[r][i] / matrix[i][i];
      for (size_t c = i; c < 4; ++c) matrix[r][c] -= factor * matrix[i][c];
    }
  }
  Factors out;
  for (size_t i = 0; i < 3; ++i) out[i] = matrix[i][3] / matrix[i][i];
  return out;
}

// The factors that fit three quarters of the steps best, so that a step that is
// wrong has no part in them.
std::optional<Factors> FitMost(const std::vector<StateStep>& steps) {
  const size_t kept = steps.size() - steps.size() / 4;
  std::optional<Factors> best;
  double least = std::numeric_limits<double>::infinity();
  // From all steps, the first half and the second.
  for (const auto& [from, to] :
       {std::pair<size_t, size_t>{0, steps.size()},
        std::pair<size_t, size_t>{0, steps.size() / 2},
        std::pair<size_t, size_t>{steps.size() / 2, steps.size()}}) {
    std::vector<size_t> used(to - from);
    std::iota(used.begin(), used.end(), from);
    for (size_t turn = 0; turn < 10; ++turn) {
      const std::optional<Factors> now = Fit(steps, used);
      if (!now.has_value()) break;
      used.resize(steps.size());
      std::iota(used.begin(), used.end(), 0);
      std::sort(used.begin(), used.end(), [&](size_t a, size_t b) {
        return steps[a].OffBy(*now) < steps[b].OffBy(*now);
      });
      used.resize(kept);
      const double off = steps[used.back()].OffBy(*now);
      if (off >= least) continue;
      least = off;
      best = now;
    }
  }
  return best;
}

// One average of one parameter on one rank, with the factors of most steps.
struct Average {
  std::string parameter;
  std::string state;  // "exp_avg"
  std::vector<StateStep> steps;
  Factors factors = {};
  double usual = 0;  // by how much three quarters of the steps are off at most
};

// A state that was restored from an old checkpoint, lost in part or written.
class StateNotContinued : public RankRule {
 public:
  absl::string_view name() const override { return "state-not-continued"; }
  absl::string_view needs() const override {
    return "weight_gradients, parameters, optimizer";
  }
  absl::string_view cost() const override {
    return "a fit of three numbers for each parameter";
  }
  absl::string_view twin() const override {
    return "optimizers whose averages are not linear, or whose betas change; "
           "gradients that the optimizer itself clips, which changes all "
           "averages by one factor";
  }
  size_t LeastSteps() const override { return kLeast + 1; }
  bool NeedsEachStep() const override { return true; }
  bool CanJudge(const RankInput& input) const override {
    return std::any_of(
        input.ranks.begin(), input.ranks.end(), [](const RankSeries& rank) {
          const std::vector<std::string> parameters = ParametersOf(rank);
          return std::any_of(
              parameters.begin(), parameters.end(), [&](const auto& one) {
                return rank.Of("Parameter", one, "grad") != nullptr &&
                       !StateOf(rank, one).empty();
              });
        });
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::optional<RankFinding> found;
    for (const RankSeries& rank : input.ranks) {
      std::vector<Average> averages;
      for (const std::string& parameter : ParametersOf(rank)) {
        std::optional<Average> one = AverageOf(input, rank, parameter);
        if (one.has_value()) averages.push_back(*std::move(one));
      }
      KeepEarliest(LookAt(input, rank, averages), &found);
    }
    if (!found.has_value()) return {};
    // One finding, even if several ranks have it.
    return {*found};
  }

 private:
  static constexpr size_t kLeast = 8;  // pairs of steps
  // Relative to the norm. Rounding of float32 is below 1e-7.
  static constexpr double kRounding = 1e-7;
  static constexpr double kWrong = 1e-5;

  static std::string StateOf(const RankSeries& rank,
                             const std::string& parameter) {
    for (const char* const state : {"exp_avg", "momentum_buffer"}) {
      if (rank.Of("Parameter", parameter, state) != nullptr) return state;
    }
    return "";
  }

  // Null: it cannot be judged, or is not linear.
  static std::optional<Average> AverageOf(const RankInput& input,
                                          const RankSeries& rank,
                                          const std::string& parameter) {
    Average out;
    out.parameter = parameter;
    out.state = StateOf(rank, parameter);
    const auto* const grad = rank.Of("Parameter", parameter, "grad");
    const auto* const held = rank.Of("Parameter", parameter, "param");
    // Two steps of optimizers in one step of the training.
    if (out.state.empty() || grad == nullptr ||
        rank.Find(absl::StrCat("Parameter.", parameter, ".1.debug.grad")) !=
            nullptr)
      return std::nullopt;
    const std::vector<RankCell>& state =
        *rank.Of("Parameter", parameter, out.state);
    for (size_t i = 0; i + 1 < input.steps.size(); ++i) {
      if (input.steps[i + 1] != input.steps[i] + 1 || !IsFinite(state[i]) ||
          !IsFinite(state[i + 1]) || !IsFinite((*grad)[i]) ||
          !IsFinite((*held)[i]))
        continue;
      const double size =
          std::max({state[i].norm, state[i + 1].norm, (*grad)[i].norm});
      if (size == 0) continue;
      // The optimizer made no step: a program may leave one out.
      if (state[i].mean == state[i + 1].mean &&
          state[i].norm == state[i + 1].norm)
        continue;
      out.steps.push_back({i + 1,
                           {state[i].mean / size, (*grad)[i].mean / size,
                            (*held)[i].mean / size},
                           state[i + 1].mean / size});
    }
    if (out.steps.size() < kLeast) return std::nullopt;
    const std::optional<Factors> factors = FitMost(out.steps);
    if (!factors.has_value()) return std::nullopt;
    out.factors = *factors;
    std::vector<double> off;
    off.reserve(out.steps.size());
    for (const StateStep& at : out.steps) off.push_back(at.OffBy(out.factors));
    std::sort(off.begin(), off.end());
    out.usual = off[off.size() - 1 - off.size() / 4];
    if (out.usual > kRounding) return std::nullopt;
    return out;
  }

  static std::optional<RankFinding> LookAt(
      const RankInput& input, const RankSeries& rank,
      const std::vector<Average>& averages) {
    for (size_t i = 1; i < input.steps.size(); ++i) {
      const Average* worst = nullptr;
      double most = 0;
      size_t wrong = 0;
      bool is_smaller_gradient = true;
      std::vector<double> multiples;
      for (const Average& average : averages) {
        const StateStep* const at = At(average, i);
        if (at == nullptr) continue;
        const double multiple = MultipleOf(average.factors, *at);
        if (multiple != 0) multiples.push_back(multiple);
        const double off = at->OffBy(average.factors);
        if (off < kWrong || off < 50 * average.usual) continue;
        ++wrong;
        is_smaller_gradient &= multiple > 0 && multiple < 1;
        if (off <= most) continue;
        most = off;
        worst = &average;
      }
      if (worst == nullptr || AreClipped(multiples)) continue;
      RankFinding finding;
      finding.step = input.steps[i];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = absl::StrCat("Parameter.", worst->parameter, ".0.debug.",
                                  worst->state);
      finding.others = wrong - 1;
      finding.deviation = most;
      // An optimizer may clip the gradient of each parameter by itself.
      finding.exact = !is_smaller_gradient && !IsWrongIn(*worst, i + 1);
      finding.what = absl::StrCat(
          "the optimizer's state is not what its last step made of it: its "
          "mean is off by ",
          most, " of its norm from ", worst->factors[0],
          " times what it was and ", worst->factors[1],
          " times the gradient, and by at most ", worst->usual,
          " in most steps: it was lost, restored from an old checkpoint, or "
          "written");
      return finding;
    }
    return std::nullopt;
  }
  // A factor that was changed is off in each step from then on.
  static bool IsWrongIn(const Average& average, size_t step) {
    const StateStep* const at = At(average, step);
    return at != nullptr && at->OffBy(average.factors) >= kWrong;
  }
  // Null: that step cannot be judged.
  static const StateStep* At(const Average& average, size_t step) {
    const auto at = std::lower_bound(
        average.steps.begin(), average.steps.end(), step,
        [](const StateStep& one, size_t wanted) { return one.step < wanted; });
    return at != average.steps.end() && at->step == step ? &*at : nullptr;
  }
  // By which the gradient would have to be multiplied to explain the state; 0: it
  // is not known.
  static double MultipleOf(const Factors& factors, const StateStep& at) {
    const double gradient = factors[1] * at.given[1];
    if (std::fabs(gradient) < kRounding) return 0;
    return (at.next - factors[0] * at.given[0] - factors[2] * at.given[2]) /
           gradient;
  }
  // Whether the optimizer's own step multiplied nearly all gradients by one number.
  static bool AreClipped(const std::vector<double>& multiples) {
    const double middle = MedianOf(multiples);
    const auto alike =
        std::count_if(multiples.begin(), multiples.end(), [&](double multiple) {
          return std::fabs(multiple - middle) <= 0.02 * std::fabs(middle);
        });
    return std::fabs(middle - 1) > 0.02 && multiples.size() >= 3 &&
           static_cast<size_t>(alike) * 5 >= multiples.size() * 4;
  }
};

// An update that is smaller than half a place of a 16-bit weight has no effect.
class UpdatesRounded : public RankRule {
 public:
  absl::string_view name() const override { return "updates-rounded"; }
  absl::string_view needs() const override { return "updates, training"; }
  absl::string_view cost() const override {
    return "two counts for each parameter of 16 bits";
  }
  absl::string_view subject() const override {
    return "parameters of 16 bits that an optimizer holds";
  }
  absl::string_view twin() const override {
    return "an optimizer that keeps weights of 32 bits; a learning rate of 0; "
           "an optimizer that keeps what rounding drops, or rounds at random: "
           "worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "rounded_updates");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::vector<double> shares;
      std::optional<size_t> first;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const auto found = TrainingAt(rank, "rounded_updates", i);
        const auto rates = TrainingAt(rank, "lr", i);
        if (found.size() != 2 || found[1] == 0 || rates.empty() ||
            std::find(rates.begin(), rates.end(), 0) != rates.end())
          continue;
        if (!first.has_value()) first = i;
        shares.push_back(found[0] / found[1]);
      }
      if (shares.size() < kLeast) continue;
      Judge();
      const double share = MedianOf(shares);
      if (share < kMost) continue;
      RankFinding finding;
      finding.step = input.steps[*first];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = "Training.0.debug.rounded_updates.0";
      finding.exact = false;
      finding.what = absl::StrCat(
          std::round(1000 * share) / 10,
          " % of the numbers of the 16-bit weights that have a gradient are "
          "the same after the optimizer's step (median of ",
          shares.size(),
          " steps): their updates are less than half of the last place and are "
          "lost. Weights of 32 bits, or a larger learning rate, keep "
          "them");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 8;  // steps
  static constexpr double kMost = 0.75;
};

}  // namespace

void AddStateRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<StateNotContinued>());
  rules->push_back(std::make_unique<UpdatesRounded>());
}

}  // namespace rankprobe::analysis
