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
  std::string reference;  // empty: build a graph of one dump
  // Passed to FindDumps().
  std::optional<int64_t> job, reference_job;
  bool overflow_check = false;
  bool fuzzy = false;
  // Merges the ranks of each side into one graph for each data parallel
  // replica. Set for all sides or for none.
  std::optional<ParallelLayout> target_layout;
  std::optional<ParallelLayout> reference_layout;
  // Writes the merged graphs as dumps into the directory that `path` names.
  bool merged_as_dump = false;
  // Layer mapping: "auto" or a YAML file. Empty: none.
  std::string layer_mapping;
  // Called with a line for each tensor whose elements were compared; or null.
  std::function<void(const std::string&)> tensor_log;
  // Called before each rank, for merged graphs before each step. If it returns
  // true, the run ends with CANCELLED. May be empty.
  std::function<bool()> cancelled;
};

struct VisualizeResult {
  int64_t nodes = 0;
  int64_t error = 0;
  int64_t warning = 0;
  int64_t unmatched = 0;              // of the target's nodes
  std::vector<std::string> unpaired;  // places that only one side has
  std::vector<std::string> warnings;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_OPTIONS_H_
