// SPDX-License-Identifier: Apache-2.0
// Execution of a layout plan over the parts: statistics by exact rules, bytes
// by concatenation and sums. Pure functions; the caller provides the bytes.
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

// Joins the statistics. For copies, those of the plan's first copy count.
JoinedStatistics JoinStatistics(const JoinPlan& plan,
                                absl::Span<const TensorPart> parts);

// Reorders copies that differ so that those whose joined tensor is farthest
// from `whole` come first in the plan; otherwise a wrong copy could be missed.
// Without `whole` the order does not change. Returns "ranks 0 and 1" for the
// first pair that differs, or an empty text if all are equal.
std::string ChooseCopies(absl::Span<const TensorPart> parts,
                         const PartStats* whole, JoinPlan* plan);

// Whether any part of the plan is a sum or an average.
bool HasSum(const JoinPlan& plan);
// Returns the part that is the complete tensor, for copies the first; null if
// several parts are needed.
const size_t* OnePart(const JoinPlan& plan);

// Joins the bytes that `read` returns. Returns FAILED_PRECONDITION if the bytes
// of a part are missing or their type has no sum.
absl::StatusOr<AlignedTensor> JoinBytes(
    const JoinPlan& plan,
    absl::FunctionRef<absl::StatusOr<AlignedTensor>(size_t part)> read);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_LAYOUT_EXECUTE_H_
