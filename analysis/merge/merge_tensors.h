// SPDX-License-Identifier: Apache-2.0
// Finds values of a call that differ between ranks that should have the same.
#ifndef RANKPROBE_ANALYSIS_MERGE_MERGE_TENSORS_H_
#define RANKPROBE_ANALYSIS_MERGE_MERGE_TENSORS_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "analysis/merge/merge_tree.h"

namespace rankprobe::analysis {

// Of one value, what each rank has; the first rank first.
using ParamOfRanks = std::vector<MergeParam>;
struct ParamDifferences {
  std::vector<ParamOfRanks> input;
  std::vector<ParamOfRanks> output;
};

// Max and Min differ when they are not equal, Mean and Norm by more than 1e-6
// (sums in another order). Without `only_differing` all tensors are returned.
absl::StatusOr<ParamDifferences> DifferingParams(
    MergePool* pool, const MergeNode& node,
    const std::vector<MergeNode*>& others, bool only_differing);

// Trees of one tensor parallel group: the first gets the statistics of whole
// tensors. `partners`: the first rank of a group to the others, for nodes that
// came from another stage.
using TensorPartners = absl::flat_hash_map<int64_t, std::vector<int64_t>>;
absl::Status MergeTensors(MergePool* pool, const std::vector<MergeTree*>& trees,
                          const TensorPartners& partners);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_MERGE_MERGE_TENSORS_H_
