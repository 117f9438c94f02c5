// `graph_visualize`: one .vis.db of one dump (build) or of two (compare), over
// all their steps and ranks.
#ifndef RANKPROBE_ANALYSIS_VISUALIZE_H_
#define RANKPROBE_ANALYSIS_VISUALIZE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "analysis/compare.h"
#include "analysis/parallel_groups.h"
#include "common/file_system.h"

namespace rankprobe::analysis {

struct VisualizeOptions {
  std::string target;
  std::string golden;  // empty: build
  bool overflow_check = false;
  bool fuzzy = false;
  // Merge the ranks of each side into a graph for each data parallel replica;
  // set for all sides or for none.
  std::optional<ParallelLayout> target_layout;
  std::optional<ParallelLayout> golden_layout;
  // The merged graphs become dumps in the directory that `path` names.
  bool merged_as_dump = false;
  // Layer mapping: "auto" or a YAML file; empty: none.
  std::string layer_mapping;
};

struct VisualizeResult {
  int64_t nodes = 0;
  int64_t error = 0;
  int64_t warning = 0;
  int64_t unmatched = 0;              // of the target's nodes
  std::vector<std::string> unpaired;  // places of one side only
  std::vector<std::string> warnings;
};

// Writes `path` (of merged dumps: step{S}/rank{R} in it), or nothing.
// INVALID_ARGUMENT in one line for bad input.
absl::StatusOr<VisualizeResult> Visualize(FileSystem* file_system,
                                          const VisualizeOptions& options,
                                          const std::string& path,
                                          const ProgressFn& progress);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_VISUALIZE_H_
