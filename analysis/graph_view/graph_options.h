// SPDX-License-Identifier: Apache-2.0
// Options and result of `graph_visualize`. Plain values.
#ifndef RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_OPTIONS_H_
#define RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "analysis/calls/parallel_groups.h"

namespace rankprobe::analysis {

struct VisualizeOptions {
  std::string target;
  std::string reference;  // empty: build
  // As FindDumps() takes them.
  std::optional<int64_t> job, reference_job;
  bool overflow_check = false;
  bool fuzzy = false;
  // Merge the ranks of each side into a graph for each data parallel replica;
  // set for all sides or for none.
  std::optional<ParallelLayout> target_layout;
  std::optional<ParallelLayout> reference_layout;
  // The merged graphs become dumps in the directory that `path` names.
  bool merged_as_dump = false;
  // Layer mapping: "auto" or a YAML file; empty: none.
  std::string layer_mapping;
  // Gets a line for each tensor whose elements were compared; or null.
  std::function<void(const std::string&)> tensor_log;
  // Asked before each rank, of merged graphs before each step: true ends it,
  // CANCELLED. Or empty.
  std::function<bool()> cancelled;
};

struct VisualizeResult {
  int64_t nodes = 0;
  int64_t error = 0;
  int64_t warning = 0;
  int64_t unmatched = 0;              // of the target's nodes
  std::vector<std::string> unpaired;  // places of one side only
  std::vector<std::string> warnings;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_OPTIONS_H_
