// SPDX-License-Identifier: Apache-2.0
// The rows of a graph node, including nodes whose sides or statistics come from
// several ranks. Buffers are reused; not thread-safe.
#ifndef RANKPROBE_ANALYSIS_CALLS_NODE_ROWS_H_
#define RANKPROBE_ANALYSIS_CALLS_NODE_ROWS_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "analysis/calls/call_tree.h"
#include "dump_format/dump_reader.h"
#include "dump_format/dump_rows.h"

namespace rankprobe::analysis {

// Documents and rows that the rows of one node point into.
struct NodeRecords {
  JsonDocument own;
  JsonDocument other;
  std::vector<DumpRow> other_rows;
};

// Reads the rows of `node`; `rows` is empty for a node without a record. The
// rows are valid until the next call with the same `records`.
absl::Status ReadNodeRows(absl::Span<const std::unique_ptr<DumpReader>> dumps,
                          const GraphNode& node, NodeRecords* records,
                          std::vector<DumpRow>* rows);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_CALLS_NODE_ROWS_H_
