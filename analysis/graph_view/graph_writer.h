// SPDX-License-Identifier: Apache-2.0
// A writer of graphs' nodes into a .vis.db: their rows, verdicts against the
// other side, stacks and communication links. Used by one thread.
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

// One graph with the dump it was built from, or with the dumps of the ranks
// that were merged into it.
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
  // Writes the nodes of `side`. `other` is null in a build. With `judge`,
  // `side` is compared with `other`.
  virtual absl::Status Write(const GraphSide& side, const GraphSide* other,
                             bool judge) = 0;
  // Writes the communication links of a step; called after all its ranks.
  virtual absl::Status LinkCommunication(int64_t step) = 0;
};

// All arguments outlive the writer.
std::unique_ptr<GraphWriter> NewGraphWriter(FileSystem* file_system,
                                            const VisualizeOptions& options,
                                            VisDb* db, VisualizeResult* result);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_WRITER_H_
