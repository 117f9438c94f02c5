// SPDX-License-Identifier: Apache-2.0
// Two nodes that were matched by hand, judged by their values in a graph
// database, with the same rules as all other nodes. Pure function.
#ifndef RANKPROBE_WEB_GRAPH_HAND_MATCH_H_
#define RANKPROBE_WEB_GRAPH_HAND_MATCH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "web/graph/graph_database.h"

namespace rankprobe {

struct HandMatch {
  // 0, 0.5 or 1; -1 if only the shape of the tree is compared.
  double precision = -1;
  // The metrics of each row of the target: {"row": {"Max diff": ".."}}.
  std::string input = "{}";
  std::string output = "{}";
};

// Judges the pair. `task` is that of the database. Tensors are judged by their
// statistics, because the database does not contain their elements. Returns
// INVALID_ARGUMENT if the nodes cannot be a pair or their values are not JSON.
absl::StatusOr<HandMatch> MatchByHand(absl::string_view task,
                                      absl::string_view node,
                                      const GraphDatabase::Values& target,
                                      const GraphDatabase::Values& reference);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GRAPH_HAND_MATCH_H_
