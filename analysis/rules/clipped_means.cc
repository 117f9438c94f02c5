// SPDX-License-Identifier: Apache-2.0
#include "analysis/rules/clipped_means.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rankprobe::analysis {
namespace {

constexpr size_t kLeastSteps = 4, kLeastParameters = 4;
// Relative, of float32; of the limit; of the ranks' norms, which say nothing of
// the order where they are nearly one.
constexpr double kRounding = 1e-5, kOneLimit = 1e-3, kUnlike = 0.01;

// Of the parameters in one step, by rank of the group.
struct Means {
  std::vector<std::vector<double>> own;
  std::vector<double> taken, sizes;
  std::vector<double> norms;  // of all gradients of a rank

  double LeastNorm() const {
    return *std::min_element(norms.begin(), norms.end());
  }
  double MostNorm() const {
    return *std::max_element(norms.begin(), norms.end());
  }
};

using Gradients = std::vector<std::vector<OwnGradient>>;

// Null: not all that is needed was recorded.
std::optional<Means> MeansAt(const RankSeries& first, const Gradients& own,
                             size_t step) {
  Means means;
  means.norms.resize(own.size(), 0);
  for (size_t p = 0; p < own[0].size(); ++p) {
    const std::string& parameter = own[0][p].parameter;
    const auto* const taken = first.Of("Parameter", parameter, "grad");
    if (taken == nullptr || !IsFinite((*taken)[step])) return std::nullopt;
    std::vector<double>& of_ranks = means.own.emplace_back();
    double size = 0;
    for (size_t r = 0; r < own.size(); ++r) {
      const bool is_there =
          p < own[r].size() && own[r][p].parameter == parameter;
      const RankCell* const last =
          is_there ? LastMicro(own[r][p], step) : nullptr;
      if (last == nullptr) return std::nullopt;
      of_ranks.push_back(last->mean);
      means.norms[r] += last->norm * last->norm;
      size = std::max(size, last->norm);
    }
    means.taken.push_back((*taken)[step].mean);
    means.sizes.push_back(size);
  }
  for (double& norm : means.norms) norm = std::sqrt(norm);
  return means;
}

// The norm to which each rank clips. Null: that does not explain what is taken,
// or a rank clips nothing.
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
  if (!std::isfinite(limit) || limit <= 0 || limit > means.LeastNorm())
    return std::nullopt;
  for (size_t p = 0; p < shares.size(); ++p) {
    if (std::fabs(means.taken[p] - limit * shares[p]) >
        kRounding * limit * means.sizes[p] / means.LeastNorm())
      return std::nullopt;
  }
  return limit;
}

}  // namespace

std::optional<RankFinding> ClippedBeforeMean(const RankInput& input,
                                             const std::vector<size_t>& group) {
  if (group.size() < 2) return std::nullopt;
  Gradients own;
  for (const size_t r : group) own.push_back(OwnGradientsOf(input.ranks[r]));
  if (own[0].size() < kLeastParameters) return std::nullopt;
  std::vector<double> limits;
  double unlike = 0;
  std::optional<size_t> first;
  for (size_t i = 0; i < input.steps.size(); ++i) {
    const std::optional<Means> means = MeansAt(input.ranks[group[0]], own, i);
    if (!means.has_value()) continue;
    const std::optional<double> limit = LimitOf(*means);
    if (!limit.has_value()) continue;
    if (!first.has_value()) first = i;
    limits.push_back(*limit);
    unlike = std::max(unlike, 1 - means->LeastNorm() / means->MostNorm());
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
      "of their gradients. Clipping belongs behind the reduction");
  return finding;
}

}  // namespace rankprobe::analysis
