// SPDX-License-Identifier: Apache-2.0
// The elements of a tensor that several ranks have parts of, read from their
// .pt files. A function without state except the file system's.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_JOINED_PAYLOAD_H_
#define RANKPROBE_ANALYSIS_LAYOUT_JOINED_PAYLOAD_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "analysis/align/aligned_tensor.h"
#include "analysis/layout/layout_plan.h"
#include "analysis/layout/step_ranks.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

// Reads and joins the parts. `records` are those of `parts`. Returns
// FAILED_PRECONDITION, with the reason as message, if a file is missing or has
// another shape, or if its type has no sum.
absl::StatusOr<AlignedTensor> ReadJoined(
    FileSystem* file_system, const StepRanks& ranks,
    absl::Span<const TensorPart> parts,
    absl::Span<const JsonValue* const> records, const JoinPlan& plan);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_JOINED_PAYLOAD_H_
