// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/layout_execute.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

using How = JoinPlan::How;

int64_t ElementsOfShape(absl::Span<const int64_t> shape) {
  int64_t out = 1;
  for (const int64_t size : shape) out *= size;
  return out;
}

size_t FirstPart(const JoinPlan& plan) {
  const JoinPlan* at = &plan;
  while (at->how != How::kPart) at = &at->inputs[0];
  return at->part;
}

size_t MostCopies(const JoinPlan& plan) {
  size_t most = plan.how == How::kCopies ? plan.inputs.size() : 1;
  for (const JoinPlan& input : plan.inputs) {
    most = std::max(most, MostCopies(input));
  }
  return most;
}

// Every choice among copies selects number `turn`.
void Turn(size_t turn, JoinPlan* plan) {
  if (plan->how == How::kCopies) {
    std::rotate(plan->inputs.begin(),
                plan->inputs.begin() +
                    static_cast<ptrdiff_t>(turn % plan->inputs.size()),
                plan->inputs.end());
  }
  for (JoinPlan& input : plan->inputs) Turn(turn, &input);
}

std::string CopiesThatDiffer(absl::Span<const TensorPart> parts,
                             const JoinPlan& plan) {
  if (plan.how == How::kCopies) {
    // A rank that did not wait for its copy has no statistics.
    const JoinPlan* first = nullptr;
    JoinedStatistics known;
    for (const JoinPlan& input : plan.inputs) {
      if (parts[FirstPart(input)].waiting) continue;
      JoinedStatistics joined = JoinStatistics(input, parts);
      if (first == nullptr) {
        first = &input;
        known = std::move(joined);
      } else if (!SameStatistics(known.stats, joined.stats)) {
        return absl::StrCat("ranks ", parts[FirstPart(*first)].rank, " and ",
                            parts[FirstPart(input)].rank);
      }
    }
  }
  for (const JoinPlan& input : plan.inputs) {
    std::string found = CopiesThatDiffer(parts, input);
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace

JoinedStatistics JoinStatistics(const JoinPlan& plan,
                                absl::Span<const TensorPart> parts) {
  JoinedStatistics out;
  out.elements = ElementsOfShape(plan.shape);
  if (plan.how == How::kPart) {
    out.stats = parts[plan.part].stats;
    return out;
  }
  if (plan.how == How::kCopies) {
    out.stats = JoinStatistics(plan.inputs[0], parts).stats;
    return out;
  }
  std::vector<PartStatistics> inputs;
  for (const JoinPlan& input : plan.inputs) {
    JoinedStatistics joined = JoinStatistics(input, parts);
    inputs.push_back({std::move(joined.stats), joined.elements});
  }
  out.stats = plan.how == How::kShards
                  ? OfShards(inputs)
                  : OfTerms(inputs, plan.how == How::kAverage);
  return out;
}

std::string ChooseCopies(absl::Span<const TensorPart> parts,
                         const PartStats* whole, JoinPlan* plan) {
  const std::string differ = CopiesThatDiffer(parts, *plan);
  const size_t copies = MostCopies(*plan);
  std::optional<double> worst;
  size_t turn = 0;
  for (size_t i = 0; i < copies; ++i) {
    JoinPlan turned = *plan;
    Turn(i, &turned);
    if (parts[FirstPart(turned)].waiting) continue;
    const double distance =
        whole == nullptr || differ.empty()
            ? 0
            : StatisticsDistance(JoinStatistics(turned, parts).stats, *whole);
    if (worst.has_value() && distance <= *worst) continue;
    worst = distance;
    turn = i;
  }
  Turn(turn, plan);
  return differ;
}

bool HasSum(const JoinPlan& plan) {
  return plan.how == How::kSum || plan.how == How::kAverage ||
         std::any_of(plan.inputs.begin(), plan.inputs.end(), HasSum);
}

const size_t* OnePart(const JoinPlan& plan) {
  if (plan.how == How::kPart) return &plan.part;
  return plan.how == How::kCopies ? OnePart(plan.inputs[0]) : nullptr;
}

absl::StatusOr<AlignedTensor> JoinBytes(
    const JoinPlan& plan,
    absl::FunctionRef<absl::StatusOr<AlignedTensor>(size_t part)> read) {
  if (plan.how == How::kPart) return read(plan.part);
  if (plan.how == How::kCopies) return JoinBytes(plan.inputs[0], read);
  std::vector<AlignedTensor> inputs;
  for (const JoinPlan& input : plan.inputs) {
    RP_ASSIGN_OR_RETURN(AlignedTensor joined, JoinBytes(input, read));
    inputs.push_back(std::move(joined));
  }
  if (plan.how == How::kShards) return Concat(inputs, plan.dim);
  return Sum(inputs, plan.how == How::kAverage);
}

}  // namespace rankprobe::analysis
