// SPDX-License-Identifier: Apache-2.0
// Groups of ranks that share a model: tensor, pipeline and data parallel sizes,
// and the groups of ranks they make. docs/layouts.md, "Parallel layouts". Pure
// functions.
#ifndef RANKPROBE_ANALYSIS_CALLS_PARALLEL_GROUPS_H_
#define RANKPROBE_ANALYSIS_CALLS_PARALLEL_GROUPS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rankprobe::analysis {

struct ParallelLayout {
  int64_t ranks = 1;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t virtual_pipeline = 1;
  std::string order = "tp-cp-ep-dp-pp";
};

using RankGroups = std::vector<std::vector<int64_t>>;

// Returns INVALID_ARGUMENT with one line that begins with `side` if the sizes
// do not fit together.
absl::Status CheckLayout(const ParallelLayout& layout, const std::string& side);

// Returns the groups that `order` implies. Requires a layout that CheckLayout()
// accepted.
RankGroups TensorGroups(const ParallelLayout& layout);
RankGroups PipelineGroups(const ParallelLayout& layout);

// Returns chains of ranks in which each rank sends to the next. A chain ends at
// a rank that sends to one already visited.
RankGroups TracePipelines(const std::map<int64_t, int64_t>& sends_to);

// Whether each group has `size` members and each rank is in exactly one.
bool IsPartition(const RankGroups& groups, int64_t ranks, int64_t size);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_CALLS_PARALLEL_GROUPS_H_
