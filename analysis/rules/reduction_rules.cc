// SPDX-License-Identifier: Apache-2.0
// Gradients that replicas take and that no reduction over the ranks made equal.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/rules/parting_place.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/scan/scan.h"

namespace rankprobe::analysis {
namespace {

// Replicas whose gradients differ part with the next step.
class GradientsNotReduced : public RankRule {
 public:
  absl::string_view name() const override { return "gradients-not-reduced"; }
  absl::string_view needs() const override {
    return "parameters, weight_gradients";
  }
  absl::string_view twin() const override {
    return "shards, whose parameters differ too, but for those that begin as "
           "one number; stages of a pipeline, experts and rows of a table that "
           "one seed has started; ranks that train alone and average their "
           "weights periodically (local SGD)";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return 1; }
  bool CanJudge(const RankInput& input) const override {
    return input.ranks.size() > 1 && !ParametersOf(input.ranks[0]).empty();
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    const std::vector<std::vector<size_t>> groups = WithoutStages(input);
    if (groups.size() == 1) return LookAtAll(input);
    for (const std::vector<size_t>& group : groups) {
      if (group.size() < 2) continue;
      RankInput of_group;
      of_group.steps = input.steps;
      for (const size_t r : group) of_group.ranks.push_back(input.ranks[r]);
      std::vector<RankFinding> found = LookAtAll(of_group);
      if (!found.empty()) return found;
    }
    return {};
  }

 private:
  static std::vector<RankFinding> LookAtAll(const RankInput& input) {
    std::vector<std::string> parameters = ParametersOf(input.ranks[0]);
    if (std::any_of(input.ranks.begin(), input.ranks.end(), ExchangesTokens))
      std::erase_if(parameters, IsOfExpert);
    // Gradients that begin to differ later are found by reduced-gradient-parts.
    for (size_t i = 0; i < input.steps.size(); ++i) {
      size_t looked = 0;
      const std::optional<RankFinding> found =
          LookAt(input, parameters, i, &looked);
      if (found.has_value()) return {*found};
      if (looked > 0) break;
    }
    return {};
  }

  static bool ExchangesTokens(const RankSeries& rank) {
    return std::any_of(
        rank.values.begin(), rank.values.end(),
        [](const auto& value) { return IsOfExchange(value.first); });
  }

  // looked: the number of parameters that could be compared.
  static std::optional<RankFinding> LookAt(
      const RankInput& input, const std::vector<std::string>& parameters,
      size_t step, size_t* looked) {
    std::vector<std::pair<std::string, double>> unlike;
    for (const std::string& parameter : parameters) {
      const std::optional<double> differ =
          GradientsDiffer(input, parameter, step);
      if (!differ.has_value()) continue;
      ++*looked;
      if (*differ > 0 && !IsPartOfRows(input, parameter, step))
        unlike.emplace_back(parameter, *differ);
    }
    if (*looked < 3 || unlike.empty() || AreAveraged(input, unlike))
      return std::nullopt;
    if (unlike.size() * 4 < *looked * 3) {
      // What a layer does by itself: it parts on the replicas, the others do
      // not.
      std::erase_if(unlike, [&](const auto& one) {
        return !PartsForGood(input, one.first, step);
      });
      if (unlike.empty() || unlike.size() * 2 > *looked) return std::nullopt;
    }
    return FindingOf(input, unlike, step, *looked);
  }

  // Whether no step has one gradient of this parameter on the ranks, and the
  // parameter itself, which was the same, is not any more.
  static bool PartsForGood(const RankInput& input, const std::string& parameter,
                           size_t step) {
    std::vector<size_t> all(input.ranks.size());
    std::iota(all.begin(), all.end(), size_t{0});
    const std::string value =
        absl::StrCat("Parameter.", parameter, ".0.debug.");
    bool parts = false;
    for (size_t i = step; i < input.steps.size(); ++i) {
      const HeldCells gradients = HeldAt(input, all, value + "grad", i);
      if (gradients.size() > 1 && AreAllEqual(gradients)) return false;
      const HeldCells held = HeldAt(input, all, value + "param", i);
      parts = parts || (held.size() > 1 && !AreAllEqual(held));
    }
    return parts;
  }

  // unlike: parameters, and how far their gradients differ.
  static RankFinding FindingOf(
      const RankInput& input,
      const std::vector<std::pair<std::string, double>>& unlike, size_t step,
      size_t looked) {
    // The one whose gradients differ most stands for all.
    const auto most = std::max_element(
        unlike.begin(), unlike.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    RankFinding finding;
    finding.deviation = most->second;
    finding.name = absl::StrCat("Parameter.", most->first, ".0.debug.grad");
    finding.step = input.steps[step];
    finding.others = unlike.size() - 1;
    finding.what = absl::StrCat(
        "the parameters are the same on the ranks, and the gradients that the "
        "optimizer takes are not, of ",
        unlike.size(), " of ", looked, " parameters: ");
    if (unlike.size() * 4 < looked * 3) {
      absl::StrAppend(&finding.what,
                      "those of the others are; these parameters are left out "
                      "of the reduction over the ranks, and part");
      return finding;
    }
    const std::string factors = FactorsText(input, step);
    std::string place =
        factors.empty() ? PartingPlace(input, step) : std::string();
    const std::string own = factors.empty() && place.empty()
                                ? OwnWeightPlace(input, step)
                                : std::string();
    absl::StrAppend(
        &finding.what,
        !factors.empty()
            ? absl::StrCat(factors,
                           ": they are reduced, and a rank clips or "
                           "scales its own by itself")
        : !own.empty()
            ? absl::StrCat(own.substr(0, own.rfind(".output.")),
                           " takes the same on the ranks and has other weights "
                           "on each: copies that the ranks began with seeds of "
                           "their own, or parts whose results are not put "
                           "together")
        : place.empty()
            ? "they are not reduced over the ranks, or are computed of "
              "activations that a collective should have made equal"
            : absl::StrCat("what ", place.substr(0, place.rfind(".output.")),
                           " takes is the same on the ranks, and what it "
                           "gives is not: a sum over the ranks is missing in "
                           "it, or comes too late"));
    // Where it began says more than the parameter that differs most.
    if (place.empty()) place = own;
    if (!place.empty()) finding.name = place;
    return finding;
  }

  // Names ranks whose gradients are those of the first rank times one factor,
  // in all parameters. Empty where that is not so of each rank.
  static std::string FactorsText(const RankInput& input, size_t step) {
    std::string text;
    size_t others = 0;
    for (size_t r = 1; r < input.ranks.size(); ++r) {
      const std::optional<double> factor =
          FactorOf(input.ranks[0], input.ranks[r], step);
      if (!factor.has_value()) return "";
      if (std::abs(*factor - 1) <= kSpread || ++others > kMostNamed) continue;
      absl::StrAppend(&text, text.empty() ? "" : ", ", "those of rank ",
                      input.ranks[r].rank, " are ", *factor,
                      " times those of rank ", input.ranks[0].rank);
    }
    if (others > kMostNamed) {
      absl::StrAppend(&text, " (and of ", others - kMostNamed, " other ranks)");
    }
    return text;
  }
  static std::optional<double> FactorOf(const RankSeries& first,
                                        const RankSeries& other, size_t step) {
    double least = std::numeric_limits<double>::infinity(), most = 0;
    size_t seen = 0;
    for (const std::string& parameter : ParametersOf(first)) {
      const auto* const a = first.Of("Parameter", parameter, "grad");
      const auto* const b = other.Of("Parameter", parameter, "grad");
      const auto* const held = first.Of("Parameter", parameter, "param");
      const auto* const copy = other.Of("Parameter", parameter, "param");
      // Gradients of parts are those of other numbers.
      if (a == nullptr || b == nullptr || !IsFinite((*a)[step]) ||
          !IsFinite((*b)[step]) || (*a)[step].norm == 0 || copy == nullptr ||
          !AreEqual((*held)[step], (*copy)[step]))
        continue;
      const double factor = (*b)[step].norm / (*a)[step].norm;
      least = std::min(least, factor);
      most = std::max(most, factor);
      ++seen;
    }
    if (seen < 3 || least <= 0 || most - least > kSpread * most)
      return std::nullopt;
    return (least + most) / 2;
  }
  // Largest relative distance of equal factors, after rounding to 16 bits.
  static constexpr double kSpread = 0.004;
  // Ranks that are named.
  static constexpr size_t kMostNamed = 4;

  // Whether ranks train alone and average their weights periodically (local
  // SGD): most parameters that differ become equal again, twice or more often.
  static bool AreAveraged(
      const RankInput& input,
      const std::vector<std::pair<std::string, double>>& parted) {
    std::vector<size_t> all(input.ranks.size());
    std::iota(all.begin(), all.end(), size_t{0});
    size_t averaged = 0;
    for (const auto& [parameter, differ] : parted) {
      size_t times = 0;
      bool has_parted = false;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const HeldCells held =
            HeldAt(input, all,
                   absl::StrCat("Parameter.", parameter, ".0.debug.param"), i);
        if (held.size() < 2) continue;
        const bool are_one = AreAllEqual(held);
        if (are_one && has_parted) ++times;
        has_parted = !are_one;
      }
      if (times >= 2) ++averaged;
    }
    return averaged * 2 > parted.size();
  }

  // Whether the layer gives the same on the ranks, and gets the same gradient:
  // it adds up what the ranks have, and each has other rows of a table, which
  // one seed may have started.
  static bool IsPartOfRows(const RankInput& input, const std::string& parameter,
                           size_t step) {
    const size_t dot = parameter.rfind('.');
    if (dot == std::string::npos) return false;
    std::vector<size_t> all(input.ranks.size());
    std::iota(all.begin(), all.end(), size_t{0});
    size_t looked = 0, alike = 0;
    ForEachOfModule(
        input.ranks[0], parameter.substr(0, dot),
        [&](const std::string& name, absl::string_view what,
            const std::vector<RankCell>& /*cells*/) {
          if (what != ".forward.0.output.0" && what != ".backward.0.input.0")
            return;
          ++looked;
          const HeldCells held = HeldAt(input, all, name, step);
          if (held.size() == all.size() && AreAllEqual(held)) ++alike;
        });
    return looked == 2 && alike == 2;
  }

  // How much, of a parameter that is the same on the ranks that have it.
  static std::optional<double> GradientsDiffer(const RankInput& input,
                                               const std::string& parameter,
                                               size_t step) {
    std::vector<std::pair<const RankCell*, const RankCell*>> held;
    for (const RankSeries& rank : input.ranks) {
      const auto* const param = rank.Of("Parameter", parameter, "param");
      const auto* const grad = rank.Of("Parameter", parameter, "grad");
      if (param == nullptr && grad == nullptr) continue;
      if (param == nullptr || grad == nullptr || !IsFinite((*param)[step]) ||
          !IsFinite((*grad)[step]))
        return std::nullopt;
      held.emplace_back(&(*param)[step], &(*grad)[step]);
    }
    if (held.size() < 2 || held[0].second->norm == 0 ||
        held[0].first->largest == held[0].first->smallest)
      return std::nullopt;
    double differ = 0;
    for (const auto& [param, grad] : held) {
      if (!AreEqual(*param, *held[0].first)) return std::nullopt;
      differ = std::max(differ, DeviationOf(*grad, *held[0].second));
    }
    return differ;
  }
};

// Ranks that call their collectives in different orders add up gradients of
// different parameters.
class GradientsMismatched : public RankRule {
 public:
  absl::string_view name() const override { return "gradients-mismatched"; }
  absl::string_view needs() const override {
    return "parameters, weight_gradients";
  }
  absl::string_view twin() const override {
    return "tied weights, gradients of one number, gradients that are the same "
           "in a few steps";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return kLeast; }
  bool CanJudge(const RankInput& input) const override {
    return input.ranks.size() > 1 && !ParametersOf(input.ranks[0]).empty();
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::optional<RankFinding> found;
    Gradients before = GradientsOf(input.ranks[0]);
    for (size_t r = 1; r < input.ranks.size(); ++r) {
      Gradients own = GradientsOf(input.ranks[r]);
      for (RankFinding& one :
           LookAt(input, input.ranks[r - 1], before, input.ranks[r], own))
        KeepEarliest(std::move(one), &found);
      before = std::move(own);
    }
    if (!found.has_value()) return {};
    return {*std::move(found)};
  }

 private:
  static constexpr size_t kLeast = 5;  // steps

  struct Pair {
    size_t steps = 0, first = 0;
  };
  using Key = std::tuple<double, double, double, double>;
  // By parameter.
  using Gradients = std::map<std::string, const std::vector<RankCell>*>;

  static Gradients GradientsOf(const RankSeries& rank) {
    Gradients gradients;
    for (const std::string& parameter : ParametersOf(rank)) {
      const auto* const cells = rank.Of("Parameter", parameter, "grad");
      if (cells != nullptr) gradients.emplace(parameter, cells);
    }
    return gradients;
  }

  static std::vector<RankFinding> LookAt(const RankInput& input,
                                         const RankSeries& one,
                                         const Gradients& of_one,
                                         const RankSeries& other,
                                         const Gradients& of_other) {
    std::map<std::pair<std::string, std::string>, Pair> pairs;
    std::map<std::string, size_t> with_gradient;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      std::map<Key, std::string> known;
      for (const auto& [parameter, cells] : of_one) {
        if (IsDistinct((*cells)[i]))
          known.emplace(KeyOf((*cells)[i]), parameter);
      }
      for (const auto& [parameter, cells] : of_other) {
        const RankCell& cell = (*cells)[i];
        if (!IsDistinct(cell)) continue;
        ++with_gradient[parameter];
        const auto own = of_one.find(parameter);
        if (own != of_one.end() && IsDistinct((*own->second)[i]) &&
            AreEqual((*own->second)[i], cell))
          continue;
        const auto it = known.find(KeyOf(cell));
        if (it == known.end() || AreTied(one, it->second, other, parameter, i))
          continue;
        Pair& pair = pairs[{parameter, it->second}];
        if (pair.steps++ == 0) pair.first = i;
      }
    }
    std::vector<RankFinding> out;
    for (const auto& [names, pair] : pairs) {
      const auto& [parameter, partner] = names;
      if (pair.steps < kLeast || pair.steps * 2 < with_gradient[parameter])
        continue;
      RankFinding finding;
      finding.step = input.steps[pair.first];
      finding.rank = other.rank;
      finding.name = absl::StrCat("Parameter.", parameter, ".0.debug.grad");
      finding.what = absl::StrCat(
          "the optimizer of rank ", other.rank, " takes for ", parameter,
          " what that of rank ", one.rank, " takes for ", partner, ", in ",
          pair.steps,
          " steps: the ranks reduce their gradients in different orders, so "
          "that one message has different parameters. A rank leaves out "
          "parameters without a gradient, or sorts them in another way");
      out.push_back(std::move(finding));
    }
    return out;
  }

  // Whether the two are one weight, as the embedding and the output layer in
  // stages of a pipeline are, or are not parameters of one model.
  static bool AreTied(const RankSeries& one, const std::string& of_one,
                      const RankSeries& other, const std::string& of_other,
                      size_t step) {
    const auto* const a = one.Of("Parameter", of_one, "param");
    const auto* const b = other.Of("Parameter", of_other, "param");
    return a == nullptr || b == nullptr ||
           one.Of("Parameter", of_other, "param") == nullptr ||
           other.Of("Parameter", of_one, "param") == nullptr ||
           AreEqual((*a)[step], (*b)[step]);
  }

  // Whether equal numbers mean the same gradient: it is not 0 and has several
  // values.
  static bool IsDistinct(const RankCell& cell) {
    return IsFinite(cell) && cell.norm != 0 && cell.largest != cell.smallest;
  }
  static Key KeyOf(const RankCell& cell) {
    return {cell.norm, cell.mean, cell.largest, cell.smallest};
  }
};

}  // namespace

void AddReductionRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<GradientsNotReduced>());
  rules->push_back(std::make_unique<GradientsMismatched>());
}

}  // namespace rankprobe::analysis
