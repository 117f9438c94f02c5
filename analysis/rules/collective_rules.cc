// SPDX-License-Identifier: Apache-2.0
// Compares the result of an all_reduce on each rank with the inputs of the ranks.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/rules/collective_rule.h"

namespace rankprobe::analysis {
namespace {

// Whether the result of `out` is the sum or the mean of what `members` gave.
bool IsSumOf(const RankCell& out, const Members& members) {
  double sum = 0, size = 0;
  for (const Member& member : members) {
    sum += member.in->mean;
    size += LargestOf(*member.in);
  }
  const auto count = static_cast<double>(members.size());
  return std::fabs(out.mean - sum) <= kCollectiveRounding * size ||
         std::fabs(out.mean - sum / count) <= kCollectiveRounding * size;
}

// Finds a rank whose input is part of the other ranks' result while its own result
// differs, and a result that is the sum of no group of ranks.
class AllReduceWrong : public CollectiveRule {
 public:
  absl::string_view name() const override { return "all-reduce-wrong"; }
  absl::string_view twin() const override {
    return "other operations than sum and mean, 16 bits, calls whose number "
           "belongs to another group on another rank: no sum fits in their "
           "other steps either";
  }
  size_t LeastSteps() const override { return 2; }

 protected:
  bool IsOfRule(absl::string_view function) const override {
    return function == "all_reduce";
  }
  std::optional<RankFinding> LookAt(const RankInput& input,
                                    const std::string& name) const override {
    std::optional<RankFinding> other_result, no_sum;
    size_t fits = 0, others = 0, unfit = 0;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const Members members = MembersAt(input, name, i, {"0"});
      if (members.size() < 2) continue;
      std::vector<Members> open;
      for (Members& same : ByResult(members)) {
        if (same.size() > 1 && IsSumOf(*same[0].out, same)) {
          ++fits;
        } else {
          open.push_back(std::move(same));
        }
      }
      if (open.empty()) continue;
      const auto wrong = OtherResult(open);
      if (wrong.has_value()) {
        ++others;
        if (!other_result.has_value()) {
          other_result = RankFinding{
              input.steps[i],
              wrong->first,
              name,
              absl::StrCat("the input of rank ", wrong->first,
                           " is part of the sum that the other ranks received, "
                           "and its own result differs (",
                           wrong->second, ")"),
              true,
              0};
        }
        continue;
      }
      // All have the same result, and it is not the sum of their inputs.
      if (open.size() == 1 && open[0].size() > 1) {
        ++unfit;
        if (!no_sum.has_value()) {
          std::vector<std::string> means;
          means.reserve(open[0].size());
          for (const Member& member : open[0])
            means.push_back(absl::StrCat(member.in->mean));
          no_sum = RankFinding{
              input.steps[i],
              -1,
              name,
              absl::StrCat("the result, mean ", open[0][0].out->mean,
                           ", is not the sum of the ranks' inputs, means ",
                           absl::StrJoin(means, ", "),
                           ", as it is in the other steps"),
              true,
              0};
        }
      }
    }
    if (others >= 2 || (others > 0 && fits >= 3)) return other_result;
    if (unfit > 0 && fits >= 5 && unfit * 10 <= fits) return no_sum;
    return std::nullopt;
  }

 private:
  // A single rank that completes the sum of a result that it does not have.
  static std::optional<std::pair<int64_t, std::string>> OtherResult(
      const std::vector<Members>& open) {
    for (const Members& alone : open) {
      if (alone.size() != 1) continue;
      for (const Members& same : open) {
        if (&same == &alone) continue;
        Members whole = same;
        whole.push_back(alone[0]);
        const RankCell& result = *same[0].out;
        const double size = LargestOf(result) + LargestOf(*alone[0].in);
        // What it gave must show in the mean, and so must its own result.
        if (!IsSumOf(result, whole) ||
            std::fabs(alone[0].in->mean) < 100 * kCollectiveRounding * size ||
            std::fabs(alone[0].out->mean - result.mean) <
                100 * kCollectiveRounding * size)
          continue;
        return std::make_pair(
            alone[0].rank,
            absl::StrCat("mean ", alone[0].out->mean, " for ", result.mean));
      }
    }
    return std::nullopt;
  }
};

}  // namespace

void AddCollectiveRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<AllReduceWrong>());
}

}  // namespace rankprobe::analysis
