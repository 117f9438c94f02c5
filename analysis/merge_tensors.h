// Which values of a call differ between ranks that should have the same.
#ifndef RANKPROBE_ANALYSIS_MERGE_TENSORS_H_
#define RANKPROBE_ANALYSIS_MERGE_TENSORS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "analysis/merge_tree.h"

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

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_MERGE_TENSORS_H_
