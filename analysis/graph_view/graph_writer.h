// SPDX-License-Identifier: Apache-2.0
// Writes the nodes of graphs into a .vis.db: their rows, verdicts against the
// other side's, stacks and links of communication. Used by one thread.
#ifndef RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_WRITER_H_
#define RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_WRITER_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "analysis/calls/call_tree.h"
#include "analysis/graph_view/graph_db.h"
#include "analysis/graph_view/graph_options.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"
#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

using Dumps = std::vector<std::unique_ptr<DumpReader>>;

// One graph with the dump it came from, or the dumps of the ranks that were
// merged into it.
struct GraphSide {
  DumpPlace place;
  std::shared_ptr<const Dumps> dumps;
  const DumpReader* dump = nullptr;  // the first
  Graph graph;
  absl::string_view source;  // "NPU" or "Bench"
};

class GraphWriter {
 public:
  virtual ~GraphWriter() = default;
  // `other` is null in a build. With `judge` the side is measured against it.
  virtual absl::Status Write(const GraphSide& side, const GraphSide* other,
                             bool judge) = 0;
  // After all ranks of a step.
  virtual absl::Status LinkCommunication(int64_t step) = 0;
};

// What is given outlives the writer.
std::unique_ptr<GraphWriter> NewGraphWriter(FileSystem* file_system,
                                            const VisualizeOptions& options,
                                            VisDb* db, VisualizeResult* result);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_WRITER_H_
