// SPDX-License-Identifier: Apache-2.0
// Values of a call that differ between ranks where they should be equal.
#ifndef RANKPROBE_ANALYSIS_MERGE_MERGE_TENSORS_H_
#define RANKPROBE_ANALYSIS_MERGE_MERGE_TENSORS_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "analysis/merge/merge_tree.h"

namespace rankprobe::analysis {

// One value on each rank; the first rank comes first.
using ParamOfRanks = std::vector<MergeParam>;
struct ParamDifferences {
  std::vector<ParamOfRanks> input;
  std::vector<ParamOfRanks> output;
};

// Returns the values that differ. Max and Min differ if they are not equal,
// Mean and Norm if they are more than 1e-6 apart (sums in another order).
// Without `only_differing` all tensors are returned.
absl::StatusOr<ParamDifferences> DifferingParams(
    MergePool* pool, const MergeNode& node,
    const std::vector<MergeNode*>& others, bool only_differing);

// Merges the trees of one tensor parallel group: the first tree gets the
// statistics of complete tensors. `partners` maps the first rank of a group to
// its other ranks, for nodes that came from another stage.
using TensorPartners = absl::flat_hash_map<int64_t, std::vector<int64_t>>;
absl::Status MergeTensors(MergePool* pool, const std::vector<MergeTree*>& trees,
                          const TensorPartners& partners);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_MERGE_MERGE_TENSORS_H_
