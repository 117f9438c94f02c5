// SPDX-License-Identifier: Apache-2.0
// Rules for a second model whose weights follow those of the one that is trained.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// An average of weights to which the newest weights contribute nearly
// everything, or with the wrong sign.
class AverageInverted : public RankRule {
 public:
  absl::string_view name() const override { return "average-inverted"; }
  absl::string_view needs() const override { return "parameters, activations"; }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view subject() const override {
    return "a second model that follows the weights of the one that is trained";
  }
  absl::string_view twin() const override {
    return "an average that takes less than 0.9 of the newest weights; a copy "
           "of all of them; a model that stays as it is";
  }
  size_t LeastSteps() const override { return kLeast + 1; }
  bool NeedsEachStep() const override { return true; }
  bool CanJudge(const RankInput& input) const override {
    return HasParameters(input);
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const std::map<std::string, std::string> others = OthersOf(rank);
      if (others.empty()) continue;
      // The average may be taken before or after the optimizer's step.
      for (const char* const prefix : {"Update", "Parameter"}) {
        const std::optional<double> weight =
            WeightOf(input, rank, others, prefix);
        if (!weight.has_value()) continue;
        Judge();
        if (*weight > kMostAway &&
            (*weight < kLeastInverted || *weight > kCopy))
          continue;
        RankFinding finding;
        finding.step = input.steps[0];
        if (input.ranks.size() > 1) finding.rank = rank.rank;
        finding.name = others.begin()->second;
        finding.exact = false;
        finding.others = others.size() - 1;
        finding.what = absl::StrCat(
            "an average of the weights of ", others.begin()->first,
            " takes in each step ", std::round(*weight * 1e4) / 1e4,
            " of the newest ones: ",
            *weight < 0 ? "they are subtracted, a sign is wrong"
                        : "it is nearly a copy, and the weight of the past is "
                          "given to the newest");
        return {finding};
      }
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 6;  // steps
  static constexpr double kLeastInverted = 0.9, kCopy = 0.9997,
                          kMostAway = -1e-3;
  // Of an estimate: the distance of both weights relative to their mean, and the
  // share of estimates that agree with the median.
  static constexpr double kApart = 1e-4, kAlike = 0.02, kMost = 0.8;

  // "*.layers.0.weight" of "teacher.layers.0.weight", for each of its parts that
  // is no number behind the first.
  static std::vector<std::string> KeysOf(const std::string& parameter) {
    std::vector<std::string> parts = absl::StrSplit(parameter, '.'), keys;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const std::string part = std::exchange(parts[i], "*");
      if (i == 0 || part.find_first_not_of("0123456789") != std::string::npos)
        keys.push_back(absl::StrJoin(parts, "."));
      parts[i] = part;
    }
    return keys;
  }
  // For parameters of the optimizer, the recorded value of the only one of that
  // name in another model, which no optimizer holds.
  static std::map<std::string, std::string> OthersOf(const RankSeries& rank) {
    constexpr absl::string_view kForward = ".forward.0.parameters.";
    std::map<std::string, std::vector<std::string>> free;
    for (const auto& [name, cells] : rank.values) {
      const size_t at = absl::string_view(name).find(kForward);
      if (at == absl::string_view::npos || !absl::StartsWith(name, "Module."))
        continue;
      const std::string path = name.substr(7, at - 7);
      const std::string parameter =
          absl::StrCat(path.substr(0, std::min(path.rfind('.'), path.size())),
                       ".", name.substr(at + kForward.size()));
      if (rank.Of("Parameter", parameter, "param") != nullptr) continue;
      for (const std::string& key : KeysOf(parameter))
        free[key].push_back(name);
    }
    std::map<std::string, std::string> others;
    for (const std::string& parameter : ParametersOf(rank)) {
      for (const std::string& key : KeysOf(parameter)) {
        const auto it = free.find(key);
        if (it != free.end() && it->second.size() == 1)
          others.try_emplace(parameter, it->second[0]);
      }
    }
    return others;
  }
  // The weight of the newest, where the means of the weights agree on one.
  static std::optional<double> WeightOf(
      const RankInput& input, const RankSeries& rank,
      const std::map<std::string, std::string>& others,
      absl::string_view prefix) {
    std::vector<double> weights;
    std::set<size_t> steps;
    for (const auto& [parameter, other] : others) {
      const auto* const newest = rank.Of(prefix, parameter, "param");
      const auto* const average = rank.Find(other);
      if (newest == nullptr || average == nullptr) continue;
      for (size_t i = 0; i + 1 < input.steps.size(); ++i) {
        const RankCell &old = (*average)[i], &now = (*average)[i + 1];
        if (!IsFinite(old) || !IsFinite(now) || !IsFinite((*newest)[i]))
          continue;
        const double apart = (*newest)[i].mean - old.mean;
        if (std::fabs(apart) <= kApart * std::fabs((*newest)[i].mean)) continue;
        weights.push_back((now.mean - old.mean) / apart);
        steps.insert(i);
      }
    }
    if (steps.size() < kLeast) return std::nullopt;
    const double usual = MedianOf(weights);
    const auto alike =
        std::count_if(weights.begin(), weights.end(), [&](double one) {
          return std::fabs(one - usual) <= kAlike * std::fabs(usual);
        });
    if (usual == 0 || static_cast<double>(alike) <
                          kMost * static_cast<double>(weights.size()))
      return std::nullopt;
    return usual;
  }
};

}  // namespace

void AddAverageRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<AverageInverted>());
}

}  // namespace rankprobe::analysis
