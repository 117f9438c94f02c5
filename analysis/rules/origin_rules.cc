// SPDX-License-Identifier: Apache-2.0
// Rules about the origin of the optimizer's gradients: each must be what the
// backward of its step left in its parameter, on all ranks.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// Steps of a finding; parameters that have to agree in each.
constexpr size_t kLeastOriginSteps = 4;
constexpr size_t kLeastOriginParameters = 4;
// Relative difference of factors that are one, of float32.
constexpr double kOneFactor = 1e-3;
// Means below it, relative to the norm, are rounding.
constexpr double kLeastMean = 1e-4;

// Of one parameter, by step: what a group of replicas takes, and what the backward
// left on each rank. A cell that is not there: it is not known in that step.
struct Flow {
  std::string parameter;
  const std::vector<RankCell>* taken = nullptr;
  std::vector<const RankCell*> own;  // by step, and by rank of the group
  std::vector<RankCell> mean;        // of the ranks; Mean and Norm alone
  // The forward of the step used the weight that the optimizer then finds.
  std::vector<bool> is_of_step;
};

// What the first forward of each step used. Null: not recorded.
const std::vector<RankCell>* ForwardWeight(const RankSeries& rank,
                                           const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  const bool is_of_root = dot == std::string::npos;
  const std::string path =
      is_of_root ? "Module."
                 : absl::StrCat("Module.", parameter.substr(0, dot), ".");
  const std::string end =
      absl::StrCat(".forward.0.parameters.",
                   is_of_root ? parameter : parameter.substr(dot + 1));
  for (auto it = rank.values.lower_bound(path);
       it != rank.values.end() && absl::StartsWith(it->first, path); ++it) {
    const std::string& name = it->first;
    // Between them is the class, which has no dot.
    if (absl::EndsWith(name, end) &&
        name.find('.', path.size()) == name.size() - end.size())
      return &it->second;
  }
  return nullptr;
}

std::vector<Flow> FlowsOf(const RankInput& input,
                          const std::vector<size_t>& group) {
  std::vector<Flow> out;
  std::vector<std::vector<OwnGradient>> own;
  own.reserve(group.size());
  for (const size_t r : group) own.push_back(OwnGradientsOf(input.ranks[r]));
  const RankSeries& first = input.ranks[group[0]];
  for (size_t p = 0; p < own[0].size(); ++p) {
    Flow flow;
    flow.parameter = own[0][p].parameter;
    flow.taken = first.Of("Parameter", flow.parameter, "grad");
    const auto* const held = first.Of("Parameter", flow.parameter, "param");
    const bool are_alike =
        std::all_of(own.begin(), own.end(), [&](const auto& of_rank) {
          return p < of_rank.size() && of_rank[p].parameter == flow.parameter;
        });
    if (flow.taken == nullptr || held == nullptr || !are_alike) continue;
    const auto* const used = ForwardWeight(first, flow.parameter);
    for (size_t i = 0; i < input.steps.size(); ++i) {
      RankCell mean;
      mean.is_there = true;
      for (const auto& of_rank : own) {
        const RankCell* const last = LastMicro(of_rank[p], i);
        flow.own.push_back(last);
        mean.is_there = mean.is_there && last != nullptr;
        if (last == nullptr) continue;
        mean.mean += last->mean / static_cast<double>(group.size());
        mean.norm = std::max(mean.norm, last->norm);
      }
      flow.mean.push_back(mean);
      flow.is_of_step.push_back(used != nullptr && IsFinite((*used)[i]) &&
                                AreEqual((*used)[i], (*held)[i]));
    }
    out.push_back(std::move(flow));
  }
  return out;
}

// The one factor, of at least so many tenths of the parameters, between what was
// taken in a step and what `of` says was its origin. Null: there is none.
template <typename Origin>
std::optional<double> OneFactor(const std::vector<Flow>& flows, size_t step,
                                const Origin& of, size_t tenths = 9) {
  std::vector<double> factors;
  for (const Flow& flow : flows) {
    const RankCell* const origin = of(flow);
    if (origin == nullptr || !IsFinite(*origin) ||
        !IsFinite((*flow.taken)[step]) || origin->norm == 0 ||
        std::fabs(origin->mean) < kLeastMean * origin->norm)
      continue;
    factors.push_back((*flow.taken)[step].mean / origin->mean);
  }
  if (factors.size() < kLeastOriginParameters) return std::nullopt;
  const double middle = MedianOf(factors);
  if (middle <= 0) return std::nullopt;
  const auto alike =
      std::count_if(factors.begin(), factors.end(), [&](double one) {
        return std::fabs(one - middle) <= kOneFactor * middle;
      });
  if (static_cast<size_t>(alike) * 10 < factors.size() * tenths)
    return std::nullopt;
  return middle;
}

class OriginRule : public RankRule {
 public:
  absl::string_view needs() const override {
    return "weight_gradients, parameters, activations";
  }
  absl::string_view subject() const override {
    return "four parameters whose gradients the optimizer takes";
  }
  size_t LeastSteps() const override { return kLeastOriginSteps + 1; }
  bool CanJudge(const RankInput& input) const override {
    return HasOwnGradients(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const std::vector<size_t>& group : ReplicasOf(input)) {
      const std::vector<Flow> flows = FlowsOf(input, group);
      if (flows.empty()) continue;
      if (flows.size() >= kLeastOriginParameters) Judge();
      std::optional<RankFinding> found = LookAt(input, group, flows);
      if (found.has_value()) return {*std::move(found)};
    }
    return {};
  }

 protected:
  virtual std::optional<RankFinding> LookAt(
      const RankInput& input, const std::vector<size_t>& group,
      const std::vector<Flow>& flows) const = 0;
  static std::string GradientOf(const Flow& flow) {
    return absl::StrCat("Parameter.", flow.parameter, ".0.debug.grad");
  }
};

// A reduction that is waited for too late, or two buffers that take turns.
class GradientStale : public OriginRule {
 public:
  absl::string_view name() const override { return "gradient-stale"; }
  absl::string_view twin() const override {
    return "steps that are numbered between backward and optimizer, where the "
           "forward used another weight than the optimizer finds";
  }

 protected:
  std::optional<RankFinding> LookAt(
      const RankInput& input, const std::vector<size_t>& /*group*/,
      const std::vector<Flow>& flows) const override {
    std::optional<size_t> first;
    size_t stale = 0, fresh = 0;
    double factor = 0;
    for (size_t i = 1; i < input.steps.size(); ++i) {
      if (input.steps[i] != input.steps[i - 1] + 1) continue;
      if (OneFactor(flows, i, [&](const Flow& f) {
            return &f.mean[i];
          }).has_value()) {
        ++fresh;
        continue;
      }
      const auto old = OneFactor(flows, i, [&](const Flow& f) {
        return f.is_of_step[i] && f.is_of_step[i - 1] ? &f.mean[i - 1]
                                                      : nullptr;
      });
      if (!old.has_value()) continue;
      if (stale++ == 0) {
        first = i;
        factor = *old;
      }
    }
    if (stale < kLeastOriginSteps || fresh > stale) return std::nullopt;
    RankFinding finding;
    finding.step = input.steps[*first];
    finding.name = GradientOf(flows[0]);
    finding.others = flows.size() - 1;
    finding.what = absl::StrCat(
        "the optimizer takes the gradients of the step before (times ", factor,
        "), and not those of this step, in ", stale, " steps");
    return finding;
  }
};

// A broadcast instead of an all_reduce, or a reduction that lost all ranks
// but one.
class GradientOfOneRank : public OriginRule {
 public:
  absl::string_view name() const override { return "gradient-of-one-rank"; }
  absl::string_view twin() const override {
    return "gradients that are not reduced at all, and ranks that have the "
           "same batch";
  }
  bool IsOfRanks() const override { return true; }

 protected:
  std::optional<RankFinding> LookAt(
      const RankInput& input, const std::vector<size_t>& group,
      const std::vector<Flow>& flows) const override {
    if (group.size() < 2) return std::nullopt;
    // Steps in which all took the same, which is not the mean.
    std::vector<size_t> steps;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      if (OneFactor(flows, i, [&](const Flow& f) {
            return &f.mean[i];
          }).has_value())
        return std::nullopt;
      if (AreTakenByAll(input, group, flows, i)) steps.push_back(i);
    }
    for (size_t g = 0; g < group.size(); ++g) {
      std::optional<size_t> first;
      size_t alone = 0;
      for (const size_t i : steps) {
        if (!OneFactor(flows, i, [&](const Flow& f) {
               return f.own[i * group.size() + g];
             }).has_value())
          continue;
        ++alone;
        if (!first.has_value()) first = i;
      }
      if (alone < kLeastOriginSteps) continue;
      RankFinding finding;
      finding.step = input.steps[*first];
      finding.rank = input.ranks[group[g]].rank;
      finding.name = GradientOf(flows[0]);
      finding.others = flows.size() - 1;
      finding.what =
          absl::StrCat("all replicas take the gradients of rank ", finding.rank,
                       " alone, in each of ", alone,
                       " steps: what the other ranks computed is lost");
      return finding;
    }
    return std::nullopt;
  }

 private:
  static bool AreTakenByAll(const RankInput& input,
                            const std::vector<size_t>& group,
                            const std::vector<Flow>& flows, size_t step) {
    return std::all_of(flows.begin(), flows.end(), [&](const Flow& flow) {
      const HeldCells held = HeldAt(input, group, GradientOf(flow), step);
      return held.size() == group.size() && AreAllEqual(held);
    });
  }
};

// Offsets into a flat buffer, or lists of two orders.
class GradientExchanged : public OriginRule {
 public:
  absl::string_view name() const override { return "gradient-exchanged"; }
  absl::string_view twin() const override {
    return "parameters with equal gradients, tied weights";
  }

 protected:
  std::optional<RankFinding> LookAt(
      const RankInput& input, const std::vector<size_t>& /*group*/,
      const std::vector<Flow>& flows) const override {
    // Parameter and origin, with their steps.
    struct Pair {
      size_t taker = 0, origin = 0, steps = 0, first = 0;
    };
    std::vector<Pair> pairs;
    std::vector<size_t> right(flows.size(), 0);
    for (size_t i = 0; i < input.steps.size(); ++i) {
      // Of half of the parameters, so that some may be exchanged.
      const std::optional<double> factor = OneFactor(
          flows, i, [&](const Flow& flow) { return &flow.mean[i]; },
          /*tenths=*/5);
      if (!factor.has_value()) continue;
      for (size_t p = 0; p < flows.size(); ++p) {
        if (!SaysSomething(flows[p], i) || !IsFinite((*flows[p].taken)[i]))
          continue;
        if (IsFrom(flows[p], flows[p], *factor, i)) {
          ++right[p];
          continue;
        }
        for (size_t q = 0; q < flows.size(); ++q) {
          if (q == p || !SaysSomething(flows[q], i) ||
              !IsFrom(flows[p], flows[q], *factor, i))
            continue;
          const auto known =
              std::find_if(pairs.begin(), pairs.end(), [&](const Pair& pair) {
                return pair.taker == p && pair.origin == q;
              });
          if (known == pairs.end()) {
            pairs.push_back({p, q, 1, i});
          } else {
            ++known->steps;
          }
        }
      }
    }
    std::optional<RankFinding> found;
    for (const Pair& pair : pairs) {
      // In a few steps the means may be equal within rounding by chance.
      if (pair.steps < kLeastOriginSteps || right[pair.taker] * 10 > pair.steps)
        continue;
      RankFinding finding;
      finding.step = input.steps[pair.first];
      finding.name = GradientOf(flows[pair.taker]);
      finding.what = absl::StrCat(
          "the optimizer takes for ", flows[pair.taker].parameter,
          " the gradient that backward left in ", flows[pair.origin].parameter,
          ", in each of ", pair.steps, " steps");
      KeepEarliest(std::move(finding), &found);
    }
    return found;
  }

 private:
  // Whether a mean is known and no rounding.
  static bool SaysSomething(const Flow& origin, size_t step) {
    const RankCell& own = origin.mean[step];
    return IsFinite(own) && own.norm > 0 &&
           std::fabs(own.mean) >= kLeastMean * own.norm;
  }
  static bool IsFrom(const Flow& taker, const Flow& origin, double factor,
                     size_t step) {
    const RankCell &own = origin.mean[step], &taken = (*taker.taken)[step];
    const double size = std::max(own.norm, taken.norm / factor);
    return std::fabs(taken.mean / factor - own.mean) <= 1e-6 * size;
  }
};

// zero_grad() between backward and optimizer, where it sets zeros.
class GradientLost : public OriginRule {
 public:
  absl::string_view name() const override { return "gradient-lost"; }
  absl::string_view subject() const override { return ""; }
  absl::string_view twin() const override {
    return "gradients of some parameters that are set to zero to freeze them, "
           "which are only worth a look; a warm-up without an update";
  }

 protected:
  std::optional<RankFinding> LookAt(
      const RankInput& input, const std::vector<size_t>& group,
      const std::vector<Flow>& flows) const override {
    std::optional<RankFinding> found;
    size_t lost = 0;
    const std::vector<OwnGradient> gradients =
        OwnGradientsOf(input.ranks[group[0]]);
    for (const Flow& flow : flows) {
      const auto own = std::find_if(gradients.begin(), gradients.end(),
                                    [&](const OwnGradient& one) {
                                      return one.parameter == flow.parameter;
                                    });
      std::optional<size_t> first;
      size_t steps = 0, zero = 0;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        if (!IsFinite(flow.mean[i]) || flow.mean[i].norm == 0 ||
            !IsFinite((*flow.taken)[i]) ||
            (own != gradients.end() && HasZero(*own, i)))
          continue;
        ++steps;
        if ((*flow.taken)[i].norm != 0) continue;
        ++zero;
        if (!first.has_value()) first = i;
      }
      if (zero < steps || zero < kLeastOriginSteps) continue;
      ++lost;
      if (found.has_value()) continue;
      found = RankFinding{input.steps[*first], -1, GradientOf(flow),
                          absl::StrCat("backward leaves a gradient in ",
                                       flow.parameter, " in each of ", zero,
                                       " steps, and the optimizer finds zeros: "
                                       "it is set to zero in between")};
    }
    if (!found.has_value()) return std::nullopt;
    found->others = lost - 1;
    found->exact = lost == flows.size();
    return found;
  }

 private:
  // Whether one of the backwards of the step left zeros, which the optimizer may
  // have taken before the next backward: the bias of a critic, whose loss is a
  // difference.
  static bool HasZero(const OwnGradient& own, size_t step) {
    return std::any_of(
        own.micro.begin(), own.micro.end(), [&](const auto* cells) {
          return (*cells)[step].is_there && (*cells)[step].norm == 0;
        });
  }
};

// A part of the gradients that is reduced, or divided, once more than the others.
class GradientFactorUnlike : public OriginRule {
 public:
  absl::string_view name() const override { return "gradient-factor-unlike"; }
  absl::string_view twin() const override {
    return "gradients of some parameters that are scaled on purpose: worth a "
           "look, no fault";
  }

 protected:
  std::optional<RankFinding> LookAt(
      const RankInput& input, const std::vector<size_t>& group,
      const std::vector<Flow>& flows) const override {
    std::vector<Multiples> multiples(flows.size());
    std::optional<size_t> first;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      if (AddStep(flows, i, &multiples) && !first.has_value()) first = i;
    }
    std::optional<RankFinding> found;
    size_t as_usual = 0, unlike = 0;
    for (size_t p = 0; p < flows.size(); ++p) {
      const std::optional<double> multiple = multiples[p].Constant();
      // What a clipping leaves out is multiplied by nothing.
      if (!multiple.has_value() ||
          (group.size() == 1 && multiples[p].is_left_alone))
        continue;
      if (std::fabs(*multiple - 1) <= kOneFactor) ++as_usual;
      if (std::fabs(*multiple - 1) <= 20 * kOneFactor || *multiple <= 0)
        continue;
      if (unlike++ > 0) continue;
      found = RankFinding{
          input.steps[*first], -1, GradientOf(flows[p]),
          absl::StrCat("the gradient of ", flows[p].parameter,
                       " is multiplied by ", *multiple,
                       " between backward and optimizer, beside what all "
                       "others are multiplied by, in each of ",
                       multiples[p].values.size(), " steps",
                       Reason(*multiple, static_cast<double>(group.size()))),
          false};
    }
    if (as_usual < kLeastOriginParameters || as_usual < unlike)
      return std::nullopt;
    if (found.has_value()) found->others = unlike - 1;
    return found;
  }

 private:
  // Of one parameter: its factors, relative to those of most.
  struct Multiples {
    std::vector<double> values;
    bool is_left_alone = true;

    std::optional<double> Constant() const {
      if (values.size() < kLeastOriginSteps) return std::nullopt;
      const double middle = MedianOf(values);
      const bool is_constant =
          std::all_of(values.begin(), values.end(), [&](double one) {
            return std::fabs(one - middle) <= kOneFactor * std::fabs(middle);
          });
      if (!is_constant) return std::nullopt;
      return middle;
    }
  };

  // False: the step has too few gradients.
  static bool AddStep(const std::vector<Flow>& flows, size_t step,
                      std::vector<Multiples>* multiples) {
    std::vector<double> factors(flows.size(), 0), known;
    for (size_t p = 0; p < flows.size(); ++p) {
      const RankCell &own = flows[p].mean[step],
                     &taken = (*flows[p].taken)[step];
      if (!IsFinite(own) || !IsFinite(taken) || own.norm == 0 ||
          std::fabs(own.mean) < 10 * kLeastMean * own.norm)
        continue;
      factors[p] = taken.mean / own.mean;
      known.push_back(factors[p]);
    }
    if (known.size() < kLeastOriginParameters) return false;
    const double middle = MedianOf(known);
    if (middle <= 0) return false;
    for (size_t p = 0; p < flows.size(); ++p) {
      if (factors[p] == 0) continue;
      Multiples& of = (*multiples)[p];
      of.values.push_back(factors[p] / middle);
      of.is_left_alone &= std::fabs(factors[p] - 1) <= 1e-6 && middle < 1;
    }
    return true;
  }
  static std::string Reason(double multiple, double ranks) {
    if (ranks < 2) return "";
    const auto is = [&](double value) {
      return std::fabs(multiple - value) <= 5 * kOneFactor * value;
    };
    if (is(ranks)) return ": it is summed over the ranks twice, or not divided";
    if (is(1 / ranks)) return ": it is divided by the number of ranks twice";
    return "";
  }
};

}  // namespace

void AddOriginRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<GradientStale>());
  rules->push_back(std::make_unique<GradientOfOneRank>());
  rules->push_back(std::make_unique<GradientExchanged>());
  rules->push_back(std::make_unique<GradientLost>());
  rules->push_back(std::make_unique<GradientFactorUnlike>());
}

}  // namespace rankprobe::analysis
