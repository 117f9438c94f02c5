// SPDX-License-Identifier: Apache-2.0
// Executes a layout plan over the parts: statistics by exact rules, bytes by
// concatenation and sums. Pure functions; bytes come from the caller.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_LAYOUT_EXECUTE_H_
#define RANKPROBE_ANALYSIS_LAYOUT_LAYOUT_EXECUTE_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "analysis/align/aligned_tensor.h"
#include "analysis/layout/layout_plan.h"

namespace rankprobe::analysis {

struct JoinedStatistics {
  PartStats stats;
  int64_t elements = 0;
};

// Of copies the first of the plan.
JoinedStatistics JoinStatistics(const JoinPlan& plan,
                                absl::Span<const TensorPart> parts);

// Of copies that differ, those that make a tensor as far from `whole` as there
// is come first in the plan, so that a wrong copy is not passed over; without a
// whole nothing moves. Returns "ranks 0 and 1" for the first pair that differs,
// empty when all agree.
std::string ChooseCopies(absl::Span<const TensorPart> parts,
                         const PartStats* whole, JoinPlan* plan);

bool HasSum(const JoinPlan& plan);
// The part that is all of it: that of the first copy; null for several.
const size_t* OnePart(const JoinPlan& plan);

// FAILED_PRECONDITION where the bytes of a part are not there or their type has
// no sum.
absl::StatusOr<AlignedTensor> JoinBytes(
    const JoinPlan& plan,
    absl::FunctionRef<absl::StatusOr<AlignedTensor>(size_t part)> read);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_LAYOUT_EXECUTE_H_
