// SPDX-License-Identifier: Apache-2.0
// `graph_visualize`: a .vis.db of one dump (build) or of two (compare), over
// all their steps and ranks.
#ifndef RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_VISUALIZE_H_
#define RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_VISUALIZE_H_

#include <string>

#include "absl/status/statusor.h"
#include "analysis/compare/compare.h"
#include "analysis/graph_view/graph_options.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

// Writes `path`, for merged dumps step{S}/rank{R} in it. Writes nothing on an
// error. Returns INVALID_ARGUMENT with one line for bad input.
absl::StatusOr<VisualizeResult> Visualize(FileSystem* file_system,
                                          const VisualizeOptions& options,
                                          const std::string& path,
                                          const ProgressFn& progress);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_VISUALIZE_H_
