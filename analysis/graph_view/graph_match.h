// SPDX-License-Identifier: Apache-2.0
// Matching of each node of one graph with its partner in another; marks both.
#ifndef RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_MATCH_H_
#define RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_MATCH_H_

#include <string>

#include "absl/container/flat_hash_map.h"
#include "analysis/calls/call_tree.h"

namespace rankprobe::analysis {

// Matches equal ids under equal ancestors.
void MatchExact(Graph* target, Graph* reference);
// Matches modules by id, whatever their ancestors, and the API calls of a
// matched pair in the order of their names, whatever their numbers.
void MatchFuzzyGraphs(Graph* target, Graph* reference);
// Matches ids by a map from the target's to the reference's; an id that the map
// does not contain matches the same id.
void MatchMapped(const absl::flat_hash_map<std::string, std::string>& ids,
                 Graph* target, Graph* reference);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_MATCH_H_
