// SPDX-License-Identifier: Apache-2.0
// The JSON of a node's values in tb_nodes, as the graph view shows it: each
// value is a string, and the metrics of a comparison are merged in. Pure
// functions.
#ifndef RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_ROWS_H_
#define RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_ROWS_H_

#include <string>

#include "absl/types/span.h"
#include "analysis/compare/verdict.h"

namespace rankprobe::analysis {

struct RowTexts {
  std::string input = "{}";
  std::string output = "{}";
};

// `pairs` is empty, or has one element for each row.
RowTexts RowsAsJson(absl::string_view node, absl::Span<const DumpRow> rows,
                    DumpMode mode, bool show_md5,
                    absl::Span<const RowPair> pairs);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_ROWS_H_
