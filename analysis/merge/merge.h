// SPDX-License-Identifier: Apache-2.0
// Merging of the graphs of a run's ranks into one graph for each data parallel
// replica, so that runs of different parallel layouts can be compared.
// docs/layouts.md, "Parallel layouts".
#ifndef RANKPROBE_ANALYSIS_MERGE_MERGE_H_
#define RANKPROBE_ANALYSIS_MERGE_MERGE_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/calls/call_tree.h"
#include "analysis/calls/parallel_groups.h"
#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

struct MergedGraph {
  int64_t rank = 0;  // the first of the ranks it contains
  int64_t micro_steps = 1;
  Graph graph;
};
struct MergedGraphs {
  // Indexed by the nodes' `dump`.
  std::vector<std::unique_ptr<DumpReader>> dumps;
  std::vector<MergedGraph> graphs;
};

// `ranks` are 0, 1, .. of one step, with their dumps. Requires a layout that
// CheckLayout() accepted.
absl::StatusOr<MergedGraphs> MergeRanks(
    const ParallelLayout& layout,
    std::vector<std::pair<int64_t, std::unique_ptr<DumpReader>>> ranks);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_MERGE_MERGE_H_
