// SPDX-License-Identifier: Apache-2.0
#include "analysis/rules/clipped_means.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rankprobe::analysis {
namespace {

constexpr size_t kLeastSteps = 4, kLeastParameters = 4;
// Relative: rounding of float32; how far the limits of steps may be apart; how
// far the norms of the ranks must be apart, because equal ones do not show what
// came first.
constexpr double kRounding = 1e-5, kOneLimit = 1e-3, kUnlike = 0.01;

// Means of the gradients of each parameter in one step.
struct Means {
  std::vector<std::vector<double>> own;  // of each rank
  std::vector<double> taken;             // of what the optimizer takes
  std::vector<double> sizes;             // the largest norm on a rank
  std::vector<double> norms;             // by rank, of all its gradients
  double least_norm = 0, most_norm = 0;
};

// The parameters of a group of replicas: what the optimizer takes, and what
// backward left on each rank.
struct Gradients {
  std::vector<const std::vector<RankCell>*> taken;
  std::vector<std::vector<OwnGradient>> own;  // by rank
};

// Returns no parameters if the ranks did not record the same ones.
Gradients GradientsOf(const RankInput& input,
                      const std::vector<size_t>& group) {
  Gradients gradients;
  for (const size_t r : group)
    gradients.own.push_back(OwnGradientsOf(input.ranks[r]));
  for (const OwnGradient& own : gradients.own[0]) {
    const size_t p = gradients.taken.size();
    const auto* const taken =
        input.ranks[group[0]].Of("Parameter", own.parameter, "grad");
    const bool is_everywhere = std::all_of(
        gradients.own.begin(), gradients.own.end(), [&](const auto& of_rank) {
          return p < of_rank.size() && of_rank[p].parameter == own.parameter;
        });
    if (taken == nullptr || !is_everywhere) return {};
    gradients.taken.push_back(taken);
  }
  return gradients;
}

// Returns nothing if a value of the step was not recorded.
std::optional<Means> MeansAt(const Gradients& gradients, size_t step) {
  Means means;
  means.norms.resize(gradients.own.size(), 0);
  for (size_t p = 0; p < gradients.taken.size(); ++p) {
    const RankCell& taken = (*gradients.taken[p])[step];
    if (!IsFinite(taken)) return std::nullopt;
    std::vector<double>& of_ranks = means.own.emplace_back();
    double size = 0;
    for (size_t r = 0; r < gradients.own.size(); ++r) {
      const RankCell* const last = LastMicro(gradients.own[r][p], step);
      if (last == nullptr) return std::nullopt;
      of_ranks.push_back(last->mean);
      means.norms[r] += last->norm * last->norm;
      size = std::max(size, last->norm);
    }
    means.taken.push_back(taken.mean);
    means.sizes.push_back(size);
  }
  for (double& norm : means.norms) norm = std::sqrt(norm);
  const auto [least, most] =
      std::minmax_element(means.norms.begin(), means.norms.end());
  means.least_norm = *least;
  means.most_norm = *most;
  return means;
}

// Returns the norm to which each rank clips its gradients; nothing if that does
// not explain what the optimizer takes, or if a rank clips nothing.
std::optional<double> LimitOf(const Means& means) {
  double both = 0, square = 0;
  std::vector<double> shares;
  for (size_t p = 0; p < means.own.size(); ++p) {
    double share = 0;
    for (size_t r = 0; r < means.norms.size(); ++r)
      share += means.own[p][r] / means.norms[r];
    shares.push_back(share / static_cast<double>(means.norms.size()));
    both += shares[p] * means.taken[p];
    square += shares[p] * shares[p];
  }
  const double limit = both / square;
  if (!std::isfinite(limit) || limit <= 0 || limit > means.least_norm)
    return std::nullopt;
  for (size_t p = 0; p < shares.size(); ++p) {
    if (std::fabs(means.taken[p] - limit * shares[p]) >
        kRounding * limit * means.sizes[p] / means.least_norm)
      return std::nullopt;
  }
  return limit;
}

}  // namespace

std::optional<RankFinding> ClippedBeforeMean(const RankInput& input,
                                             const std::vector<size_t>& group) {
  if (group.size() < 2) return std::nullopt;
  const Gradients gradients = GradientsOf(input, group);
  if (gradients.taken.size() < kLeastParameters) return std::nullopt;
  std::vector<double> limits;
  double unlike = 0;
  std::optional<size_t> first;
  for (size_t i = 0; i < input.steps.size(); ++i) {
    const std::optional<Means> means = MeansAt(gradients, i);
    if (!means.has_value()) continue;
    const std::optional<double> limit = LimitOf(*means);
    if (!limit.has_value()) continue;
    if (!first.has_value()) first = i;
    limits.push_back(*limit);
    unlike = std::max(unlike, 1 - means->least_norm / means->most_norm);
  }
  if (limits.size() < kLeastSteps || unlike < kUnlike) return std::nullopt;
  const auto [least, most] = std::minmax_element(limits.begin(), limits.end());
  if (*most - *least > kOneLimit * *most) return std::nullopt;
  RankFinding finding;
  finding.step = input.steps[*first];
  finding.name = "Training.0.debug.grad_norm";
  finding.what = absl::StrCat(
      "each rank clips its own gradients to the norm ", limits[0],
      " before they are averaged, in ", limits.size(),
      " steps: the ranks clip by different factors, and the mean is not that "
      "of their gradients. Clip after the reduction");
  return finding;
}

}  // namespace rankprobe::analysis
