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

#include "absl/status/statusor.h"

namespace rankprobe::analysis {

struct ParallelLayout {
  int64_t ranks = 1;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t virtual_pipeline = 1;
  std::string order = "tp-cp-ep-dp-pp";
};

using RankGroups = std::vector<std::vector<int64_t>>;

// INVALID_ARGUMENT in one line that begins with `side`.
absl::Status CheckLayout(const ParallelLayout& layout, const std::string& side);

// The groups that `order` implies; the layout was checked.
RankGroups TensorGroups(const ParallelLayout& layout);
RankGroups PipelineGroups(const ParallelLayout& layout);

// Chains of ranks, each sending to the next. A rank that sends back to one
// already seen ends its chain.
RankGroups TracePipelines(const std::map<int64_t, int64_t>& sends_to);

// Do the groups have that size, and every rank once?
bool IsPartition(const RankGroups& groups, int64_t ranks, int64_t size);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_CALLS_PARALLEL_GROUPS_H_
