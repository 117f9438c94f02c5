// SPDX-License-Identifier: Apache-2.0
// Rules about gradients between backward and optimizer: micro batches that
// are lost or rounded, gradients that are never set to zero, reductions that are
// not the mean of the ranks.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

std::string GradientName(const std::string& parameter) {
  return absl::StrCat("Parameter.", parameter, ".0.debug.grad");
}

// Whether it has no more digits than bfloat16 or float16 keep.
bool IsShort(double value) {
  int exponent = 0;
  const double bits = std::ldexp(std::frexp(value, &exponent), 11);
  return bits == std::floor(bits);
}

// Each micro batch has to be in what the optimizer takes.
class MicroBatchesLost : public RankRule {
 public:
  absl::string_view name() const override { return "micro-batches-lost"; }
  absl::string_view needs() const override { return "weight_gradients"; }
  absl::string_view subject() const override {
    return "several micro batches in a step";
  }
  absl::string_view twin() const override {
    return "accumulation in the gradient, which grows with each micro batch; "
           "accumulation in a tensor of the program's, which is their sum; "
           "several losses, as of a discriminator; of two it is only worth a "
           "look, for some optimizers want the second";
  }
  size_t LeastSteps() const override { return kLeastSteps; }
  bool CanJudge(const RankInput& input) const override {
    return HasOwnGradients(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const auto found = LookAt(input, rank);
      if (found.has_value()) return {*found};
    }
    return {};
  }

 private:
  std::optional<RankFinding> LookAt(const RankInput& input,
                                    const RankSeries& rank) const {
    std::vector<double> growth, behind;
    std::optional<RankFinding> first;
    size_t most = 0, steps = 0;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      size_t looked = 0;
      for (const OwnGradient& own : OwnGradientsOf(rank)) {
        const auto* const taken = rank.Of("Parameter", own.parameter, "grad");
        const size_t count = MicroAt(own, i);
        if (taken == nullptr || count < 2 || !IsFinite((*taken)[i])) continue;
        const RankCell& begin = (*own.micro[0])[i];
        const RankCell& last = (*own.micro[count - 1])[i];
        if (begin.norm == 0 || last.norm == 0) continue;
        growth.push_back(last.norm / begin.norm);
        behind.push_back((*taken)[i].norm / last.norm);
        most = std::max(most, count);
        ++looked;
        if (!first.has_value()) {
          first = RankFinding{
              input.steps[i], rank.rank, GradientName(own.parameter), "",
              true,           0};
        }
      }
      if (looked >= kLeastParameters) ++steps;
    }
    if (steps < kLeastSteps || !MayBeMicroBatches(input, rank))
      return std::nullopt;
    Judge();
    // Independent micro batches make a sum of the root of their number.
    const double grown = MedianOf(growth);
    if (grown > 1 + 0.25 * (std::sqrt(static_cast<double>(most)) - 1))
      return std::nullopt;
    // The last one, and nothing else, by one factor.
    const double factor = MedianOf(behind);
    const auto same = static_cast<size_t>(
        std::count_if(behind.begin(), behind.end(), [&](double value) {
          return std::fabs(value - factor) < 1e-4 * factor;
        }));
    if (same * 10 < behind.size() * 9) return std::nullopt;
    first->what = absl::StrCat(
        "of ", most,
        " micro batches a step the optimizer takes the gradient of the last "
        "alone: the norm does not grow from the first to the last (by ",
        grown, ", in the middle of ", growth.size(),
        " gradients): gradients are set to zero between them");
    // An optimizer may ask for a second backward on purpose.
    first->exact = most > 2;
    return first;
  }
  static size_t MicroAt(const OwnGradient& own, size_t step) {
    size_t count = 0;
    while (count < own.micro.size() && IsFinite((*own.micro[count])[step]))
      ++count;
    return count;
  }
  static constexpr size_t kLeastParameters = 3;
  static constexpr size_t kLeastSteps = 3;
};

// float32 gradients that are added up in 16 bits lose the small ones.
class GradientRounded : public RankRule {
 public:
  absl::string_view name() const override { return "gradient-rounded"; }
  absl::string_view needs() const override { return "weight_gradients"; }
  absl::string_view cost() const override {
    return "that of micro-batches-lost";
  }
  absl::string_view subject() const override {
    return "gradients with the digits of float32";
  }
  absl::string_view twin() const override {
    return "models of 16 bits, whose own gradients have no more digits; of one "
           "micro batch it is only worth a look, for reductions are compressed "
           "on purpose";
  }
  size_t LeastSteps() const override { return 1; }
  bool CanJudge(const RankInput& input) const override {
    return HasOwnGradients(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      size_t looked = 0, rounded = 0, most = 1;
      std::optional<RankFinding> first;
      for (const OwnGradient& own : OwnGradientsOf(rank)) {
        const auto* const taken = rank.Of("Parameter", own.parameter, "grad");
        if (taken == nullptr) continue;
        for (size_t i = 0; i < input.steps.size(); ++i) {
          const RankCell& now = (*taken)[i];
          const RankCell& before = (*own.micro[0])[i];
          if (!IsFinite(now) || !IsFinite(before) || now.norm == 0 ||
              IsShort(before.largest) || IsShort(before.smallest))
            continue;
          ++looked;
          most = std::max(most, own.micro.size());
          if (!IsShort(now.largest) || !IsShort(now.smallest)) continue;
          if (rounded++ == 0) {
            first = RankFinding{
                input.steps[i], rank.rank, GradientName(own.parameter), "",
                most > 1,       0};
          }
        }
      }
      if (looked < kLeast) continue;
      Judge();
      if (rounded * 10 < looked * 9) continue;
      first->exact = most > 1;
      first->what = absl::StrCat(
          "backward makes gradients with the digits of float32, and the "
          "optimizer takes them with those of 16 bits (",
          rounded, " of ", looked, "): ",
          most > 1 ? absl::StrCat(most,
                                  " micro batches are added up in a tensor of "
                                  "16 bits, where small ones are lost")
                   : "they are rounded in between");
      return {*first};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 20;
};

// zero_grad() that is not called.
class GradientsNotZeroed : public RankRule {
 public:
  absl::string_view name() const override { return "gradients-not-zeroed"; }
  absl::string_view needs() const override { return "weight_gradients"; }
  absl::string_view cost() const override {
    return "that of micro-batches-lost";
  }
  absl::string_view twin() const override {
    return "one batch in every step, whose gradients are alike and do not "
           "grow; "
           "a loss that diverges, whose biases have gradients of one backward";
  }
  size_t LeastSteps() const override { return kLeast; }
  bool NeedsEachStep() const override { return true; }
  bool CanJudge(const RankInput& input) const override {
    return HasOwnGradients(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    if (input.steps.size() < kLeast) return {};
    for (const RankSeries& rank : input.ranks) {
      const std::vector<OwnGradient> all = OwnGradientsOf(rank);
      std::optional<RankFinding> found = LookAt(input, rank, all);
      if (found.has_value()) return {*std::move(found)};
      for (const auto& [part, gradients] : PartsOf(all)) {
        found = LookAt(input, rank, gradients);
        if (!found.has_value()) continue;
        found->what = absl::StrCat("of ", gradients.size(), " parameters, ",
                                   part, ".*, ", found->what);
        return {*std::move(found)};
      }
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 10;  // steps
  static constexpr double kAlike = 0.35;
  // The numbers of fewer are alike by chance.
  static constexpr size_t kLeastOfPart = 4;

  using Gradients = std::vector<OwnGradient>;

  // The models of a program, or the modules of a model: each may have an
  // optimizer of its own, and another place where it sets gradients to zero.
  static std::map<std::string, Gradients> PartsOf(const Gradients& all) {
    std::map<std::string, Gradients> parts;
    for (const OwnGradient& own : all) {
      const size_t dot = own.parameter.find('.');
      if (dot != std::string::npos)
        parts[own.parameter.substr(0, dot)].push_back(own);
    }
    for (auto it = parts.begin(); it != parts.end();) {
      const size_t count = it->second.size();
      it = count < kLeastOfPart || count == all.size() ? parts.erase(it)
                                                       : std::next(it);
    }
    return parts;
  }

  // How far the gradients of a step are from those of the step before, relative
  // to these; none in the first step. Adds up their squared norm.
  static std::optional<double> Apart(const RankSeries& rank,
                                     const Gradients& gradients, size_t i,
                                     double* size) {
    double difference = 0, before = 0;
    for (const OwnGradient& own : gradients) {
      const RankCell* const now = LastMicro(own, i);
      if (now == nullptr) continue;
      if (IsFinite(*now)) *size += now->norm * now->norm;
      const auto* const taken = rank.Of("Parameter", own.parameter, "grad");
      if (taken == nullptr || i == 0 || !IsFinite(*now) ||
          !IsFinite((*taken)[i - 1]) || (*taken)[i - 1].norm == 0)
        continue;
      const RankCell& left = (*taken)[i - 1];
      const double d = (now->mean - left.mean) / left.norm;
      difference += d * d;
      before += left.mean * left.mean / left.norm / left.norm;
    }
    if (before == 0) return std::nullopt;
    return std::sqrt(difference / before);
  }

  static std::optional<RankFinding> LookAt(const RankInput& input,
                                           const RankSeries& rank,
                                           const Gradients& gradients) {
    std::vector<double> apart, sizes;
    size_t grew = 0;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      double size = 0;
      const std::optional<double> distance = Apart(rank, gradients, i, &size);
      if (distance.has_value()) apart.push_back(*distance);
      // The first step may end before the backward of this part.
      if (size == 0) continue;
      if (!sizes.empty() && size > sizes.back()) ++grew;
      sizes.push_back(size);
    }
    if (apart.size() + 1 < kLeast || sizes.size() < kLeast) return std::nullopt;
    const std::vector<double> late(
        apart.begin() + static_cast<int64_t>(apart.size() / 2), apart.end());
    if (MedianOf(late) > kAlike || grew * 10 < (sizes.size() - 1) * 8 ||
        sizes.back() < 9 * sizes.front() || AreOfOneBackward(rank, gradients))
      return std::nullopt;
    RankFinding finding;
    finding.step = input.steps[1];
    finding.rank = rank.rank;
    finding.name = GradientName(gradients[0].parameter);
    finding.what = absl::StrCat(
        "each step's gradients are those of the step before and a little "
        "more, and their norm grows, from ",
        std::sqrt(sizes.front()), " to ", std::sqrt(sizes.back()),
        ": they are not set to zero between steps");
    return finding;
  }
};

// A mean is linear: that of a reduced gradient is the mean of the ranks' own, by
// one factor for all parameters of a step (sum or mean, clipping).
class GradientNotMean : public RankRule {
 public:
  absl::string_view name() const override { return "gradient-not-mean"; }
  absl::string_view needs() const override {
    return "weight_gradients of each step";
  }
  absl::string_view cost() const override {
    return "that of micro-batches-lost";
  }
  absl::string_view subject() const override { return "replicas of one model"; }
  absl::string_view twin() const override {
    return "weight decay added to gradients, and rounding: what a parameter "
           "was off by in the steps before is allowed ten times; models of "
           "which some gradients are summed and others not";
  }
  bool IsOfRanks() const override { return true; }
  size_t LeastSteps() const override { return kLeast + 1; }
  bool CanJudge(const RankInput& input) const override {
    return input.ranks.size() > 1 && HasOwnGradients(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    std::vector<RankFinding> out;
    for (const std::vector<size_t>& group : ReplicasOf(input)) {
      if (group.size() < 2) continue;
      Judge();
      const auto found = LookAt(input, group);
      if (found.has_value()) out.push_back(*found);
    }
    return out;
  }

 private:
  static constexpr size_t kLeast = 5;  // steps
  // Of float32, relative to the norm.
  static constexpr double kRounding = 1e-7;
  // What was off by more was no mean before.
  static constexpr double kLinear = 1e-3;
  static constexpr double kAgreement = 0.1;  // of the factor, with rounding

  // Of one parameter and step, over the ranks of a group.
  struct Sum {
    bool is_there = false;
    double own = 0;  // mean of the ranks' own means
    double norm = 0;
    double taken = 0;
    std::vector<double> of_rank;
  };

  static std::optional<RankFinding> LookAt(const RankInput& input,
                                           const std::vector<size_t>& group) {
    std::vector<std::vector<OwnGradient>> own;
    own.reserve(group.size());
    for (const size_t r : group) own.push_back(OwnGradientsOf(input.ranks[r]));
    for (const auto& of_rank : own) {
      if (of_rank.size() != own[0].size()) return std::nullopt;
    }
    const size_t parameters = own[0].size();
    std::vector<double> most(parameters, 0);
    std::vector<size_t> seen(parameters, 0);
    for (size_t i = 0; i < input.steps.size(); ++i) {
      std::vector<Sum> at;
      at.reserve(parameters);
      for (size_t p = 0; p < parameters; ++p)
        at.push_back(SumAt(input, group, own, p, i));
      const std::optional<double> factor = FactorOf(at);
      if (!factor.has_value()) continue;
      std::optional<size_t> worst;
      double off_most = 0;
      size_t others = 0;
      for (size_t p = 0; p < parameters; ++p) {
        if (!at[p].is_there) continue;
        const double off =
            std::fabs(at[p].taken / *factor - at[p].own) / at[p].norm;
        if (seen[p] < kLeast || off <= kRounding || off <= 10 * most[p] ||
            most[p] > kLinear) {
          ++seen[p];
          most[p] = std::max(most[p], off);
          continue;
        }
        ++others;
        if (off > off_most) {
          off_most = off;
          worst = p;
        }
      }
      if (!worst.has_value()) continue;
      RankFinding finding;
      finding.step = input.steps[i];
      finding.name = GradientName(own[0][*worst].parameter);
      finding.others = others - 1;
      std::string who;
      const auto guilty = WhoIsOff(input, group, own, *worst, i);
      if (guilty.has_value()) {
        finding.rank = input.ranks[group[guilty->first]].rank;
        who = absl::StrCat(", as if that of rank ", finding.rank, " were ",
                           std::round((1 + guilty->second) * 1e4) / 1e4,
                           " times what its backward left");
      }
      finding.what = absl::StrCat(
          "the gradient that the optimizer takes is not what the ranks "
          "computed together: its mean is off by ",
          off_most, " of its norm, and was off by at most ", most[*worst],
          " before", who);
      return finding;
    }
    return std::nullopt;
  }

  static Sum SumAt(const RankInput& input, const std::vector<size_t>& group,
                   const std::vector<std::vector<OwnGradient>>& own, size_t p,
                   size_t step) {
    Sum sum;
    const auto ranks = static_cast<double>(group.size());
    for (size_t g = 0; g < group.size(); ++g) {
      const RankSeries& rank = input.ranks[group[g]];
      const OwnGradient& gradient = own[g][p];
      const auto* const taken =
          rank.Of("Parameter", gradient.parameter, "grad");
      if (gradient.parameter != own[0][p].parameter || taken == nullptr ||
          !IsFinite((*taken)[step]))
        return {};
      // Of several micro batches the last, which has the sum.
      const RankCell* last = nullptr;
      for (const auto* const micro : gradient.micro) {
        if (IsFinite((*micro)[step])) last = &(*micro)[step];
      }
      if (last == nullptr) return {};
      sum.own += last->mean / ranks;
      sum.taken += (*taken)[step].mean / ranks;
      sum.norm = std::max(sum.norm, last->norm);
      sum.of_rank.push_back(last->mean);
    }
    sum.is_there = sum.norm > 0;
    return sum;
  }

  // The median, of those whose mean is no rounding.
  static std::optional<double> FactorOf(const std::vector<Sum>& sums) {
    std::vector<double> factors;
    for (const Sum& sum : sums) {
      if (sum.is_there && std::fabs(sum.own) >= 1e-4 * sum.norm)
        factors.push_back(sum.taken / sum.own);
    }
    if (factors.size() < 3) return std::nullopt;
    const double factor = MedianOf(factors);
    if (factor == 0) return std::nullopt;
    // Where some gradients are sums and others are computed in full on each
    // rank (sequence parallelism), no factor is that of all.
    const auto agree = static_cast<size_t>(std::count_if(
        factors.begin(), factors.end(),
        [&](double one) { return std::fabs(one / factor - 1) < kAgreement; }));
    if (agree * 3 < factors.size() * 2) return std::nullopt;
    return factor;
  }

  // The rank whose share of the error is the same in each step from `first` on.
  static std::optional<std::pair<size_t, double>> WhoIsOff(
      const RankInput& input, const std::vector<size_t>& group,
      const std::vector<std::vector<OwnGradient>>& own, size_t p,
      size_t first) {
    std::vector<std::vector<double>> shares(group.size());
    for (size_t i = first; i < input.steps.size() && i < first + 20; ++i) {
      std::vector<Sum> at;
      at.reserve(own[0].size());
      for (size_t q = 0; q < own[0].size(); ++q)
        at.push_back(SumAt(input, group, own, q, i));
      const std::optional<double> factor = FactorOf(at);
      if (!factor.has_value() || !at[p].is_there) continue;
      const double off = (at[p].taken / *factor - at[p].own) *
                         static_cast<double>(group.size());
      for (size_t g = 0; g < group.size(); ++g) {
        if (std::fabs(at[p].of_rank[g]) > 1e-4 * at[p].norm)
          shares[g].push_back(off / at[p].of_rank[g]);
      }
    }
    std::optional<std::pair<size_t, double>> best;
    for (size_t g = 0; g < group.size(); ++g) {
      if (shares[g].size() < 3) continue;
      const double middle = MedianOf(shares[g]);
      std::vector<double> apart;
      apart.reserve(shares[g].size());
      for (const double share : shares[g])
        apart.push_back(std::fabs(share - middle));
      if (MedianOf(apart) > 0.02 * std::fabs(middle)) continue;
      if (best.has_value()) return std::nullopt;
      best = {g, middle};
    }
    return best;
  }
};

}  // namespace

void AddGradientRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<GradientNotMean>());
  rules->push_back(std::make_unique<MicroBatchesLost>());
  rules->push_back(std::make_unique<GradientRounded>());
  rules->push_back(std::make_unique<GradientsNotZeroed>());
}

}  // namespace rankprobe::analysis
