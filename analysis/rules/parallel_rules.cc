// SPDX-License-Identifier: Apache-2.0
// Rules for models whose parts are on several ranks: what collectives add up,
// and how gradients of parts are scaled beside those of copies.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "analysis/rules/collective_rule.h"

namespace rankprobe::analysis {
namespace {

constexpr size_t kLeastParallelSteps = 3;

bool AreAllClose(const Members& members, const RankCell* Member::*side) {
  return std::all_of(members.begin(), members.end(), [&](const Member& one) {
    return AreClose(*(one.*side), *(members[0].*side));
  });
}

// An all_reduce of tensors that are equal on the ranks: the result is too large
// by the number of ranks.
class CopiesSummed : public CollectiveRule {
 public:
  absl::string_view name() const override { return "copies-summed"; }
  absl::string_view needs() const override {
    return "communication, activations";
  }
  absl::string_view twin() const override {
    return "sums of parts; gradients of parameters and counts that are the "
           "same on the ranks, whose sum is divided; sums that no module takes";
  }
  size_t LeastSteps() const override { return kLeastParallelSteps; }

 protected:
  bool IsOfRule(absl::string_view function) const override {
    return function == "all_reduce";
  }
  std::optional<RankFinding> LookAt(const RankInput& input,
                                    const std::string& name) const override {
    std::vector<size_t> steps;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const Members members = MembersAt(input, name, i, {"0", "tensor"});
      if (members.size() < 2) continue;
      if (!IsSumOfCopies(members)) return std::nullopt;
      steps.push_back(i);
    }
    if (steps.size() < kLeastParallelSteps) return std::nullopt;
    const std::vector<RankCell>& sum = *input.ranks[0].Find(name);
    const std::string taken_by = TakenBy(
        input.ranks[0], steps,
        [&](const RankCell& cell, size_t i) { return AreClose(cell, sum[i]); });
    if (taken_by.empty()) return std::nullopt;
    RankFinding finding;
    finding.step = input.steps[steps[0]];
    finding.name = name;
    finding.exact = false;
    finding.what = absl::StrCat(
        "the sum over ranks is of tensors that are the same on each of them, "
        "in each of ",
        steps.size(), " steps, and ", taken_by,
        " takes it undivided: it is as many times too large as there are "
        "ranks. What was summed before is summed again, or a gradient that "
        "each rank has in full is taken for a part");
    return finding;
  }

 private:
  static bool IsSumOfCopies(const Members& members) {
    const RankCell &in = *members[0].in, &out = *members[0].out;
    const double sum = in.norm * static_cast<double>(members.size());
    // A single number, or many that are the same, may be a count.
    return in.norm > 0 && in.largest != in.smallest &&
           AreAllClose(members, &Member::in) &&
           AreAllClose(members, &Member::out) &&
           std::fabs(out.norm - sum) <= 1e-5 * sum;
  }
};

// A bias that each rank adds to its part of a sum.
class BiasSummed : public CollectiveRule {
 public:
  absl::string_view name() const override { return "bias-summed"; }
  absl::string_view needs() const override {
    return "communication, activations, parameters";
  }
  absl::string_view twin() const override {
    return "a bias that is added to the sum, or on one rank, or is a part on "
           "each; layers whose weights are the same on the ranks; a bias that "
           "was divided when it was loaded: worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeastParallelSteps; }

 protected:
  bool IsOfRule(absl::string_view function) const override {
    return function == "all_reduce" || function == "reduce_scatter_tensor";
  }
  std::optional<RankFinding> LookAt(const RankInput& input,
                                    const std::string& name) const override {
    size_t steps = 0, first = 0;
    std::string layer;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const Members members = MembersAt(input, name, i, {"0", "1", "input"});
      if (members.size() < 2) continue;
      if (layer.empty()) layer = LayerOf(input.ranks[0], *members[0].in, i);
      if (layer.empty() || !IsSummed(input, members, layer, i))
        return std::nullopt;
      if (steps++ == 0) first = i;
    }
    if (steps < kLeastParallelSteps) return std::nullopt;
    RankFinding finding;
    finding.step = input.steps[first];
    finding.name = absl::StrCat(layer, ".forward.0.parameters.bias");
    finding.exact = false;
    finding.what = absl::StrCat(
        "the sum over ranks is of what this layer gives, whose weights are "
        "parts and whose bias is the same on the ranks, in each of ",
        steps,
        " steps: the bias is added once for each rank. It belongs behind the "
        "sum");
    return finding;
  }

 private:
  static constexpr absl::string_view kBias = ".forward.0.parameters.bias";

  // "Module.layers.0.mlp.down.Linear" whose first output is `given`.
  static std::string LayerOf(const RankSeries& rank, const RankCell& given,
                             size_t step) {
    for (const auto& [name, cells] : rank.values) {
      absl::string_view layer = name;
      if (!absl::ConsumeSuffix(&layer, kBias) || !IsFinite(cells[step]))
        continue;
      const auto* const out =
          rank.Find(absl::StrCat(layer, ".forward.0.output.0"));
      if (out != nullptr && IsFinite((*out)[step]) &&
          AreClose((*out)[step], given))
        return std::string(layer);
    }
    return "";
  }
  static bool IsSummed(const RankInput& input, const Members& members,
                       const std::string& layer, size_t step) {
    double sum = 0, size = 0, result = 0;
    const RankCell *bias = nullptr, *weight = nullptr;
    bool are_parts = false;
    for (const Member& member : members) {
      const auto rank = std::find_if(
          input.ranks.begin(), input.ranks.end(),
          [&](const auto& one) { return one.rank == member.rank; });
      const RankCell* const cells[] = {
          At(*rank, absl::StrCat(layer, ".forward.0.output.0"), step),
          At(*rank, absl::StrCat(layer, kBias), step),
          At(*rank, absl::StrCat(layer, ".forward.0.parameters.weight"), step)};
      if (std::any_of(std::begin(cells), std::end(cells),
                      [](const RankCell* one) { return one == nullptr; }) ||
          !AreClose(*cells[0], *member.in) || cells[1]->norm == 0)
        return false;
      if (bias != nullptr && !AreEqual(*bias, *cells[1])) return false;
      are_parts |= weight != nullptr && !AreEqual(*weight, *cells[2]);
      bias = cells[1];
      weight = cells[2];
      sum += member.in->mean;
      size += LargestOf(*member.in);
      // Each rank has all of it, or an equal part.
      result += member.out->mean / static_cast<double>(members.size());
    }
    return are_parts && std::fabs(result - sum) <= kCollectiveRounding * size;
  }
  static const RankCell* At(const RankSeries& rank, const std::string& name,
                            size_t step) {
    const auto* const cells = rank.Find(name);
    return cells != nullptr && IsFinite((*cells)[step]) ? &(*cells)[step]
                                                        : nullptr;
  }
};

// Gradients of parameters that only one rank holds, scaled as those that are
// averaged over the ranks.
class PartsNotScaled : public RankRule {
 public:
  absl::string_view name() const override { return "parts-not-scaled"; }
  absl::string_view needs() const override {
    return "parameters, weight_gradients";
  }
  absl::string_view subject() const override {
    return "parameters of one rank beside copies whose gradients are reduced";
  }
  absl::string_view twin() const override {
    return "gradients of parts that are divided by the ranks beside means, or "
           "left beside sums; copies that have one gradient before any "
           "reduction; parameters of one rank on purpose: worth a look, no "
           "fault";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return kLeastParallelSteps; }
  bool CanJudge(const RankInput& input) const override {
    return input.ranks.size() > 1 && HasOwnGradients(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::vector<std::map<std::string, OwnGradient>> own(input.ranks.size());
    for (size_t r = 0; r < own.size(); ++r) {
      for (OwnGradient& one : OwnGradientsOf(input.ranks[r]))
        own[r][one.parameter] = std::move(one);
    }
    std::string part;
    std::vector<size_t> steps;
    std::vector<double> ratios;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      std::vector<double> copies, parts;
      for (const auto& [parameter, gradient] : own[0]) {
        const std::optional<Flow> flow = FlowOf(input, own, parameter, i);
        if (!flow.has_value()) continue;
        if (flow->is_part && part.empty()) part = parameter;
        (flow->is_part ? parts : copies).push_back(flow->factor);
      }
      if (copies.size() < kLeastCopies || parts.empty()) continue;
      Judge();
      steps.push_back(i);
      for (const double one : parts) ratios.push_back(one / MedianOf(copies));
    }
    if (steps.size() < kLeastParallelSteps ||
        !std::all_of(ratios.begin(), ratios.end(), [](double ratio) {
          return std::fabs(ratio - 1) <= kAlike;
        }))
      return {};
    RankFinding finding;
    finding.step = input.steps[steps[0]];
    finding.name = absl::StrCat("Parameter.", part, ".0.debug.grad");
    finding.exact = false;
    finding.what = absl::StrCat(
        "between backward and optimizer the gradients of what each rank alone "
        "holds are multiplied by the factor by which those of copies are made "
        "a mean over ",
        input.ranks.size(), " ranks, in each of ", steps.size(),
        " steps: beside that mean they are ", input.ranks.size(),
        " times too large (experts that are not divided by the ranks), or the "
        "gradients of copies are parts that have to be summed");
    return {finding};
  }

 private:
  static constexpr size_t kLeastCopies = 3;
  static constexpr double kAlike = 1e-3;

  struct Flow {
    bool is_part = false;
    double factor = 0;  // what is taken, relative to the mean of the own ones
  };
  // Null: it is neither, or a factor is not known.
  static std::optional<Flow> FlowOf(
      const RankInput& input,
      const std::vector<std::map<std::string, OwnGradient>>& own,
      const std::string& parameter, size_t step) {
    std::vector<const RankCell*> held, before, taken;
    for (size_t r = 0; r < input.ranks.size(); ++r) {
      const auto gradient = own[r].find(parameter);
      const auto* const param =
          input.ranks[r].Of("Parameter", parameter, "param");
      const auto* const grad =
          input.ranks[r].Of("Parameter", parameter, "grad");
      if (gradient == own[r].end() || param == nullptr || grad == nullptr)
        return std::nullopt;
      const RankCell* const last = LastMicro(gradient->second, step);
      if (last == nullptr || last->norm == 0 || !IsFinite((*param)[step]) ||
          !IsFinite((*grad)[step]))
        return std::nullopt;
      held.push_back(&(*param)[step]);
      before.push_back(last);
      taken.push_back(&(*grad)[step]);
    }
    const bool is_copy = CountAlike(held) == held.size();
    if (is_copy && CountAlike(before) == 1 &&
        CountAlike(taken) == taken.size()) {
      double mean = 0, size = 0;
      for (const RankCell* const one : before) {
        mean += one->mean / static_cast<double>(before.size());
        size = std::max(size, one->norm);
      }
      if (std::fabs(mean) <= 1e-3 * size) return std::nullopt;
      return Flow{false, taken[0]->mean / mean};
    }
    if (is_copy || CountAlike(held) > 1) return std::nullopt;
    const double factor = taken[0]->norm / before[0]->norm;
    for (size_t r = 0; r < held.size(); ++r) {
      if (std::fabs(taken[r]->norm - factor * before[r]->norm) >
          kAlike * taken[r]->norm)
        return std::nullopt;
    }
    return Flow{true, factor};
  }
  // How many are as the first.
  static size_t CountAlike(const std::vector<const RankCell*>& cells) {
    return static_cast<size_t>(std::count_if(
        cells.begin(), cells.end(),
        [&](const RankCell* one) { return AreEqual(*one, *cells[0]); }));
  }
};

// Weights that no optimizer holds, that change (a teacher, an average) and that
// differ between replicas.
class FollowerParts : public RankRule {
 public:
  absl::string_view name() const override { return "follower-parts"; }
  absl::string_view needs() const override { return "parameters, activations"; }
  absl::string_view subject() const override {
    return "weights beside replicas that change and that no optimizer holds";
  }
  absl::string_view twin() const override {
    return "frozen weights, in full or in parts; an average of replicas, which "
           "is the same on them; a second model of each rank on purpose: worth "
           "a look, no fault";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return kLeastParallelSteps; }
  bool CanJudge(const RankInput& input) const override {
    return input.ranks.size() > 1 && HasParameters(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::optional<RankFinding> found;
    for (const std::vector<size_t>& group : ReplicasOf(input)) {
      if (group.size() < 2) continue;
      for (const auto& [name, cells] : input.ranks[group[0]].values) {
        if (IsFreeWeight(input.ranks[group[0]], name))
          KeepEarliest(LookAt(input, group, name), &found);
      }
    }
    if (!found.has_value()) return {};
    return {*found};
  }

 private:
  static bool IsFreeWeight(const RankSeries& rank, absl::string_view name) {
    constexpr absl::string_view kOf = ".forward.0.parameters.";
    const size_t at = name.find(kOf);
    if (at == absl::string_view::npos || !absl::ConsumePrefix(&name, "Module."))
      return false;
    absl::string_view path = name.substr(0, at - 7);
    path = path.substr(0, std::min(path.rfind('.'), path.size()));
    const absl::string_view parameter = name.substr(at - 7 + kOf.size());
    return rank.Of("Parameter", absl::StrCat(path, ".", parameter), "param") ==
           nullptr;
  }
  std::optional<RankFinding> LookAt(const RankInput& input,
                                    const std::vector<size_t>& group,
                                    const std::string& name) const {
    std::optional<size_t> first;
    size_t steps = 0, apart = 0;
    HeldCells before;
    bool moves = false;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      HeldCells held = HeldAt(input, group, name, i);
      if (held.size() < group.size()) continue;
      ++steps;
      for (size_t r = 0; r < before.size(); ++r)
        moves |= !AreEqual(*held[r].second, *before[r].second);
      if (!AreAllEqual(held) && apart++ == 0) first = i;
      before = std::move(held);
    }
    if (!moves) return std::nullopt;
    Judge();
    // Weights that are equal again at the end were only copied late.
    if (apart < kLeastParallelSteps || !first.has_value() ||
        AreAllEqual(before))
      return std::nullopt;
    const HeldCells held = HeldAt(input, group, name, *first);
    RankFinding finding;
    finding.step = input.steps[*first];
    finding.name = name;
    finding.exact = false;
    for (const auto& one : held) {
      finding.deviation = std::max(finding.deviation,
                                   DeviationOf(*held[0].second, *one.second));
    }
    finding.what = absl::StrCat(
        "weights that no optimizer holds and that change differ on replicas, "
        "in ",
        apart, " of ", steps,
        " steps: an average or a teacher that the ranks did not begin with "
        "the same numbers, or that one rank alone updates");
    return finding;
  }
};

// Updates of a parameter that are overwritten by its earlier value.
class UpdateUndone : public RankRule {
 public:
  absl::string_view name() const override { return "update-undone"; }
  absl::string_view needs() const override { return "parameters, optimizer"; }
  absl::string_view subject() const override {
    return "parameters with updates in successive steps";
  }
  absl::string_view twin() const override {
    return "updates that stay, or are averaged; inner steps that are undone on "
           "purpose: worth a look, no fault";
  }
  size_t LeastSteps() const override { return kLeast + 1; }
  bool NeedsEachStep() const override { return true; }
  bool CanJudge(const RankInput& input) const override {
    return HasParameters(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::optional<RankFinding> found;
    size_t stay = 0;
    for (const RankSeries& rank : input.ranks) {
      for (const std::string& parameter : ParametersOf(rank)) {
        const auto* const held = rank.Of("Parameter", parameter, "param");
        const auto* const left = rank.Of("Update", parameter, "param");
        if (left == nullptr) continue;
        size_t updated = 0, undone = 0, first = 0;
        for (size_t i = 0; i + 1 < input.steps.size(); ++i) {
          const RankCell &now = (*held)[i], &next = (*held)[i + 1];
          if (!IsFinite(now) || !IsFinite(next) || !IsFinite((*left)[i]) ||
              AreEqual(now, (*left)[i]))
            continue;
          if (updated++ == 0) first = i;
          if (AreEqual(now, next)) ++undone;
        }
        if (updated < kLeast) continue;
        Judge();
        if (undone < updated) {
          ++stay;
          continue;
        }
        RankFinding one;
        one.step = input.steps[first + 1];
        if (input.ranks.size() > 1) one.rank = rank.rank;
        one.name = absl::StrCat("Parameter.", parameter, ".0.debug.param");
        one.exact = false;
        one.what = absl::StrCat(
            "each of the optimizer's ", updated, " updates of ", parameter,
            " is undone before the next step, and those of others stay: what "
            "was before is written over it (a broadcast from a rank that does "
            "not update it, a copy that is loaded again)");
        KeepEarliest(std::move(one), &found);
      }
    }
    // A program that undoes all updates does so on purpose, for example in a
    // search for a learning rate.
    if (!found.has_value() || stay == 0) return {};
    return {*found};
  }

 private:
  static constexpr size_t kLeast = 4;
};

}  // namespace

void AddParallelRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<CopiesSummed>());
  rules->push_back(std::make_unique<BiasSummed>());
  rules->push_back(std::make_unique<PartsNotScaled>());
  rules->push_back(std::make_unique<FollowerParts>());
  rules->push_back(std::make_unique<UpdateUndone>());
}

}  // namespace rankprobe::analysis
