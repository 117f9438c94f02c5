// SPDX-License-Identifier: Apache-2.0
// Compares what sharded training gathers and scatters with what the ranks gave:
// all_gather_into_tensor puts the ranks' tensors into one, reduce_scatter_tensor
// leaves each rank a part of their sum.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/rules/collective_rule.h"

namespace rankprobe::analysis {
namespace {

constexpr absl::string_view kGathers[] = {
    "all_gather_into_tensor", "all_gather_single", "_all_gather_base"};
constexpr absl::string_view kScatters[] = {
    "reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"};

// Whether `out` has the tensors of all members, and nothing else.
bool HasParts(const RankCell& out, const Members& members) {
  double largest = members[0].in->largest, smallest = members[0].in->smallest;
  double mean = 0, squares = 0;
  for (const Member& member : members) {
    largest = std::max(largest, member.in->largest);
    smallest = std::min(smallest, member.in->smallest);
    mean += member.in->mean / static_cast<double>(members.size());
    squares += member.in->norm * member.in->norm;
  }
  return out.largest == largest && out.smallest == smallest &&
         std::fabs(out.mean - mean) <= kCollectiveRounding * LargestOf(out) &&
         std::fabs(out.norm * out.norm - squares) <=
             10 * kCollectiveRounding * squares;
}

class PartsRule : public CollectiveRule {
 public:
  size_t LeastSteps() const override { return kLeastFits + 1; }

 protected:
  // Steps in which it is what it should be.
  static constexpr size_t kLeastFits = 5;

  // The first argument is the output.
  static Members PartsAt(const RankInput& input, const std::string& name,
                         size_t step) {
    return MembersAt(input, name, step, {"1", "input_tensor", "input"});
  }
  static bool IsSeldom(size_t wrong, size_t fits) {
    return wrong > 0 && fits >= kLeastFits && wrong * 10 <= fits;
  }
};

class GatheredWrong : public PartsRule {
 public:
  absl::string_view name() const override { return "gathered-wrong"; }
  absl::string_view twin() const override {
    return "groups of ranks, calls whose number belongs to another call on "
           "another rank: no parts fit in their other steps either";
  }

 protected:
  bool IsOfRule(absl::string_view function) const override {
    return std::find(std::begin(kGathers), std::end(kGathers), function) !=
           std::end(kGathers);
  }
  std::optional<RankFinding> LookAt(const RankInput& input,
                                    const std::string& name) const override {
    size_t fits = 0, wrong = 0;
    std::optional<RankFinding> first;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const std::optional<RankFinding> found =
          AtStep(PartsAt(input, name, i), &fits);
      if (!found.has_value()) continue;
      ++wrong;
      if (first.has_value()) continue;
      first = found;
      first->step = input.steps[i];
      first->name = name;
    }
    if (!IsSeldom(wrong, fits)) return std::nullopt;
    return first;
  }

 private:
  // Counts the groups whose result has their parts.
  static std::optional<RankFinding> AtStep(const Members& members,
                                           size_t* fits) {
    std::vector<Members> open;
    for (Members& same : ByResult(members)) {
      if (same.size() > 1 && HasParts(*same[0].out, same)) {
        ++*fits;
      } else {
        open.push_back(std::move(same));
      }
    }
    // One whose own result differs from that of the others, who have its part.
    for (const Members& alone : open) {
      if (alone.size() != 1) continue;
      for (const Members& same : open) {
        if (&same == &alone) continue;
        Members whole = same;
        whole.push_back(alone[0]);
        if (!HasParts(*same[0].out, whole)) continue;
        RankFinding finding;
        finding.rank = alone[0].rank;
        finding.what = absl::StrCat(
            "rank ", finding.rank,
            " gathered another tensor than the other ranks, who have what "
            "all gave: Norm ",
            alone[0].out->norm, " for ", same[0].out->norm, ", Mean ",
            alone[0].out->mean, " for ", same[0].out->mean);
        return finding;
      }
    }
    if (open.size() != 1 || open[0].size() < 2) return std::nullopt;
    RankFinding finding;
    finding.what =
        absl::StrCat("what the ranks gathered, Norm ", open[0][0].out->norm,
                     ", Mean ", open[0][0].out->mean,
                     ", is not what they gave, as it is in the other steps");
    return finding;
  }
};

class ScatteredWrong : public PartsRule {
 public:
  absl::string_view name() const override { return "scattered-wrong"; }
  absl::string_view twin() const override {
    return "sums and means in groups of any size, 16 bits: what fits in few "
           "steps is not judged";
  }

 protected:
  bool IsOfRule(absl::string_view function) const override {
    return std::find(std::begin(kScatters), std::end(kScatters), function) !=
           std::end(kScatters);
  }
  std::optional<RankFinding> LookAt(const RankInput& input,
                                    const std::string& name) const override {
    // The mean over the parts is that of the sum. It is divided by the number of
    // groups, or by that of all ranks where the groups make means.
    for (size_t divisor = 1; divisor <= input.ranks.size(); ++divisor) {
      size_t fits = 0, wrong = 0;
      std::optional<RankFinding> first;
      for (size_t i = 0; i < input.steps.size(); ++i) {
        const Members members = PartsAt(input, name, i);
        if (members.size() < 2) continue;
        double expected = 0, left = 0, size = 0;
        for (const Member& member : members) {
          expected += member.in->mean / static_cast<double>(divisor);
          left += member.out->mean / static_cast<double>(members.size());
          size += LargestOf(*member.in);
        }
        if (std::fabs(expected - left) <= kCollectiveRounding * size) {
          ++fits;
        } else if (wrong++ == 0) {
          first = RankFinding{
              input.steps[i], -1, name,
              absl::StrCat("the parts that the ranks received are not those of "
                           "the sum of what they gave: their mean is ",
                           left, " where ", expected,
                           " is expected, as it is in the other steps")};
        }
      }
      if (IsSeldom(wrong, fits)) return first;
    }
    return std::nullopt;
  }
};

// Ranks gather equal tensors as the parts of a sequence: a wrong rank scattered
// them.
class CopiesGathered : public CollectiveRule {
 public:
  absl::string_view name() const override { return "copies-gathered"; }
  absl::string_view needs() const override {
    return "communication, activations";
  }
  absl::string_view twin() const override {
    return "parts that differ; copies whose concatenation no module takes, "
           "such "
           "as metrics; copies that are gathered on purpose: worth a look, no "
           "fault";
  }
  size_t LeastSteps() const override { return kLeast; }

 protected:
  bool IsOfRule(absl::string_view function) const override {
    return function == "all_gather" ||
           std::find(std::begin(kGathers), std::end(kGathers), function) !=
               std::end(kGathers);
  }
  std::optional<RankFinding> LookAt(const RankInput& input,
                                    const std::string& name) const override {
    std::vector<size_t> steps;
    std::vector<const RankCell*> parts(input.steps.size(), nullptr);
    size_t ranks = 0;
    for (size_t i = 0; i < input.steps.size(); ++i) {
      const Members members =
          MembersAt(input, name, i, {"1", "tensor", "input_tensor", "input"});
      if (members.size() < 2) continue;
      if (!std::all_of(members.begin(), members.end(), [&](const Member& one) {
            return IsFinite(*one.in) && one.in->norm > 0 &&
                   one.in->largest != one.in->smallest &&
                   AreClose(*one.in, *members[0].in);
          }))
        return std::nullopt;
      steps.push_back(i);
      parts[i] = members[0].in;
      ranks = members.size();
    }
    if (steps.size() < kLeast) return std::nullopt;
    // The norm of a concatenation of copies.
    const double grown = std::sqrt(static_cast<double>(ranks));
    const std::string taken_by =
        TakenBy(input.ranks[0], steps, [&](const RankCell& cell, size_t i) {
          const RankCell& part = *parts[i];
          return cell.largest == part.largest &&
                 cell.smallest == part.smallest &&
                 std::fabs(cell.norm - grown * part.norm) <= 1e-5 * cell.norm &&
                 std::fabs(cell.mean - part.mean) <=
                     kCollectiveRounding * LargestOf(cell);
        });
    if (taken_by.empty()) return std::nullopt;
    RankFinding finding;
    finding.step = input.steps[steps[0]];
    finding.name = name;
    finding.exact = false;
    finding.what = absl::StrCat(
        "the ranks gather ", ranks, " copies of one tensor in each of ",
        steps.size(), " steps, and ", taken_by,
        " takes their concatenation: all ranks have the same part. A rank of "
        "the wrong group scattered it, or no rank did");
    return finding;
  }

 private:
  static constexpr size_t kLeast = 5;  // steps
};

}  // namespace

void AddGatherRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<GatheredWrong>());
  rules->push_back(std::make_unique<ScatteredWrong>());
  rules->push_back(std::make_unique<CopiesGathered>());
}

}  // namespace rankprobe::analysis
