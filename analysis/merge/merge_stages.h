// SPDX-License-Identifier: Apache-2.0
// Merging of pipeline stages into one tree: docs/layouts.md, "Parallel
// layouts".
#ifndef RANKPROBE_ANALYSIS_MERGE_MERGE_STAGES_H_
#define RANKPROBE_ANALYSIS_MERGE_MERGE_STAGES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "analysis/merge/merge_tree.h"

namespace rankprobe::analysis {

// Moves the nodes of the later stages of one pipeline into the first tree.
absl::Status MergeStages(MergePool* pool, const std::vector<MergeTree*>& trees,
                         int64_t virtual_pipeline);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_MERGE_MERGE_STAGES_H_
