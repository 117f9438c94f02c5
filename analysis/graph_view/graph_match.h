// SPDX-License-Identifier: Apache-2.0
// Finds the partner of each node of one graph in another and marks both.
#ifndef RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_MATCH_H_
#define RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_MATCH_H_

#include <string>

#include "absl/container/flat_hash_map.h"
#include "analysis/calls/call_tree.h"

namespace rankprobe::analysis {

// Equal ids under equal ancestors.
void MatchExact(Graph* target, Graph* reference);
// Modules by id, whatever their ancestors; the API calls of a matched pair in
// the order of their names, whatever their numbers.
void MatchFuzzyGraphs(Graph* target, Graph* reference);
// Ids by a map from the target's to the reference side's; an id that is not in it
// stands for itself.
void MatchMapped(const absl::flat_hash_map<std::string, std::string>& ids,
                 Graph* target, Graph* reference);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_GRAPH_VIEW_GRAPH_MATCH_H_
