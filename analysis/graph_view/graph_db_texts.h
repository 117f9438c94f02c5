// SPDX-License-Identifier: Apache-2.0
// Texts of tb_config that the graph view shows: what colours and metrics mean.
#ifndef RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_DB_TEXTS_H_
#define RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_DB_TEXTS_H_

#include <string>

#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

// Returns JSON.
std::string NodeColors(DumpMode mode);
// `stats` has the statistics of either dump.
std::string ToolTip(DumpMode mode, StatSet stats);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_DB_TEXTS_H_
