// SPDX-License-Identifier: Apache-2.0
// The weights that forwards use, beside those that the optimizer holds.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

constexpr absl::string_view kOf = ".forward.0.parameters.";

// "layers.0.fc.weight" of
// "Module.layers.0.fc.Linear.forward.0.parameters.weight".
std::string ParameterOfForward(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "Module.")) return "";
  const size_t at = name.find(kOf);
  if (at == absl::string_view::npos) return "";
  absl::string_view path = name.substr(0, at);
  const size_t dot = path.rfind('.');
  path = dot == absl::string_view::npos ? "" : path.substr(0, dot);
  return absl::StrCat(path, path.empty() ? "" : ".",
                      name.substr(at + kOf.size()));
}

// The optimizer finds the weights that the forward used.
class ForwardParameter : public RankRule {
 public:
  absl::string_view name() const override { return "weight-after-forward"; }
  absl::string_view needs() const override { return "activations, parameters"; }
  absl::string_view twin() const override {
    return "a program that changes its weights between forward and optimizer "
           "in every step; weights that are gathered for the forward";
  }
  size_t LeastSteps() const override { return 2; }
  bool CanJudge(const RankInput& input) const override {
    return !input.ranks.empty() && !ParametersOf(input.ranks[0]).empty();
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      size_t same = 0;
      std::vector<std::pair<size_t, std::string>> changed;
      for (const auto& [name, cells] : rank.values) {
        const std::string parameter = ParameterOfForward(name);
        const auto* const held = parameter.empty()
                                     ? nullptr
                                     : rank.Of("Parameter", parameter, "param");
        if (held == nullptr) continue;
        for (size_t i = 0; i < input.steps.size(); ++i) {
          if (!IsFinite(cells[i]) || !IsFinite((*held)[i])) continue;
          if (AreEqual(cells[i], (*held)[i]) ||
              IsUsedLater(rank, name, i, (*held)[i])) {
            ++same;
          } else {
            changed.emplace_back(i, parameter);
          }
        }
      }
      if (changed.empty() || same < 10 || changed.size() * 10 > same) continue;
      std::sort(changed.begin(), changed.end());
      RankFinding finding;
      finding.step = input.steps[changed[0].first];
      finding.rank = input.ranks.size() > 1 ? rank.rank : -1;
      finding.name =
          absl::StrCat("Parameter.", changed[0].second, ".0.debug.param");
      finding.others = changed.size() - 1;
      finding.what =
          "the weight that the optimizer finds is not the one that the forward "
          "of this step used, as it is in the other steps";
      return {finding};
    }
    return {};
  }

 private:
  // Whether a further forward of the step used `held`: the first one may be an
  // evaluation with averaged weights.
  static bool IsUsedLater(const RankSeries& rank, absl::string_view first,
                          size_t step, const RankCell& held) {
    const size_t at = first.find(kOf);
    for (size_t call = 1;; ++call) {
      const auto* const cells = rank.Find(
          absl::StrCat(first.substr(0, at), ".forward.", call, ".parameters.",
                       first.substr(at + kOf.size())));
      if (cells == nullptr) return false;
      if (AreEqual((*cells)[step], held)) return true;
    }
  }
};

// Weights that are perturbed for a second backward are put back before the
// optimizer's step.
class PerturbationKept : public RankRule {
 public:
  absl::string_view name() const override { return "perturbation-kept"; }
  absl::string_view needs() const override {
    return "activations, parameters, weight_gradients, training";
  }
  absl::string_view subject() const override {
    return "weights that differ between two forwards of a step";
  }
  absl::string_view twin() const override {
    return "weights that are put back (adversarial training, SAM); steps of "
           "several optimizers; weights that a program moves by itself before "
           "the optimizer: worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "fresh_optimizers") && HasOwnGradients(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::optional<RankFinding> found;
    for (const RankSeries& rank : input.ranks) {
      for (const auto& [name, cells] : rank.values) {
        std::optional<RankFinding> one = LookAt(input, rank, name, cells);
        if (one.has_value() && input.ranks.size() > 1) one->rank = rank.rank;
        KeepEarliest(std::move(one), &found);
      }
    }
    if (!found.has_value()) return {};
    return {*found};
  }

 private:
  static constexpr size_t kLeast = 6;  // steps

  std::optional<RankFinding> LookAt(const RankInput& input,
                                    const RankSeries& rank,
                                    absl::string_view name,
                                    const std::vector<RankCell>& used) const {
    const std::string parameter = ParameterOfForward(name);
    if (parameter.empty()) return std::nullopt;
    const auto* const held = rank.Of("Parameter", parameter, "param");
    const absl::string_view module = name.substr(0, name.find(kOf));
    const absl::string_view weight = name.substr(module.size() + kOf.size());
    const auto of = [&](absl::string_view what) {
      return rank.Find(absl::StrCat(module, what, weight));
    };
    const auto* const second = of(".forward.1.parameters.");
    const auto* const first_gradient = of(".parameters_grad.0.");
    const auto* const gradient = of(".parameters_grad.1.");
    if (held == nullptr || second == nullptr || first_gradient == nullptr ||
        gradient == nullptr)
      return std::nullopt;
    size_t kept = 0;
    std::optional<size_t> first;
    for (size_t i = 0; i < used.size(); ++i) {
      const auto optimizers = TrainingAt(rank, "fresh_optimizers", i);
      if (!IsFinite(used[i]) || !IsFinite((*held)[i]) ||
          !IsFinite((*second)[i]) || !IsFinite((*gradient)[i]) ||
          !IsFinite((*first_gradient)[i]) || optimizers.size() != 2 ||
          optimizers[1] != 1 || AreEqual(used[i], (*second)[i]))
        continue;
      Judge();
      if (!AreEqual((*second)[i], (*held)[i])) return std::nullopt;
      if (kept++ == 0) first = i;
    }
    if (kept < kLeast) return std::nullopt;
    RankFinding finding;
    finding.step = input.steps[*first];
    finding.name = absl::StrCat("Parameter.", parameter, ".0.debug.param");
    finding.exact = false;
    finding.what = absl::StrCat(
        "the weight is changed between the two backwards of each of ", kept,
        " steps, and the optimizer finds it changed: a perturbation "
        "(adversarial training) is not taken back before the step");
    return finding;
  }
};

// Where each rank's optimizer holds a part of the parameters, the others get
// what it makes of them.
class PartNotSent : public RankRule {
 public:
  absl::string_view name() const override { return "part-not-sent"; }
  absl::string_view needs() const override { return "activations, parameters"; }
  absl::string_view subject() const override {
    return "weights that all ranks use and the optimizer of one of them holds";
  }
  absl::string_view twin() const override {
    return "weights that are the same on all ranks in each step; shards; "
           "experts";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return 3; }
  bool CanJudge(const RankInput& input) const override {
    return input.ranks.size() > 1 && HasParameters(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::vector<size_t> all(input.ranks.size());
    std::iota(all.begin(), all.end(), 0);
    size_t alike = 0;
    std::optional<RankFinding> found;
    for (const auto& [name, cells] : input.ranks[0].values) {
      const std::string parameter = ParameterOfForward(name);
      if (parameter.empty()) continue;
      int64_t owner = -1;
      size_t owners = 0;
      for (const RankSeries& rank : input.ranks) {
        if (rank.Of("Parameter", parameter, "param") == nullptr) continue;
        owner = rank.rank;
        ++owners;
      }
      if (owners != 1) continue;
      Judge();
      const std::optional<size_t> parting = PartingOf(input, all, name);
      if (!parting.has_value()) continue;
      if (*parting == input.steps.size()) {
        ++alike;
        continue;
      }
      RankFinding finding;
      finding.step = input.steps[*parting];
      finding.rank = owner;
      finding.name = name;
      finding.what = absl::StrCat(
          parameter, " is updated by the optimizer of rank ", owner,
          " alone, and the other ranks go on with their old one: it is not "
          "sent (broadcast, all_gather) as the other parameters are");
      KeepEarliest(std::move(finding), &found);
    }
    if (!found.has_value() || alike < kLeastAlike) return {};
    return {*found};
  }

 private:
  static constexpr size_t kLeastAlike = 3;

  // The step from which on a weight that was the same on all ranks differs to
  // the end; the number of steps if there is none. Null: it never changes, or
  // was not the same in the first step.
  static std::optional<size_t> PartingOf(const RankInput& input,
                                         const std::vector<size_t>& all,
                                         absl::string_view name) {
    std::optional<size_t> parting;
    HeldCells first;
    bool moves = false;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      HeldCells held = HeldAt(input, all, name, i);
      if (held.size() < all.size()) continue;
      const bool is_same = AreAllEqual(held);
      if (first.empty()) {
        if (!is_same) return std::nullopt;
        first = std::move(held);
        continue;
      }
      for (size_t r = 0; r < held.size(); ++r)
        moves |= !AreEqual(*held[r].second, *first[r].second);
      if (is_same) parting.reset();
      if (!is_same && !parting.has_value()) parting = i;
    }
    if (!moves) return std::nullopt;
    return parting.value_or(input.steps.size());
  }
};

}  // namespace

void AddForwardRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<ForwardParameter>());
  rules->push_back(std::make_unique<PerturbationKept>());
  rules->push_back(std::make_unique<PartNotSent>());
}

}  // namespace rankprobe::analysis
