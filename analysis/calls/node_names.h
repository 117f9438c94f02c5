// SPDX-License-Identifier: Apache-2.0
// Parser of the name of a graph's node: its kind, direction and twin. Pure
// functions.
#ifndef RANKPROBE_ANALYSIS_CALLS_NODE_NAMES_H_
#define RANKPROBE_ANALYSIS_CALLS_NODE_NAMES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rankprobe::analysis {

// Calls between modules are collected under "Apis_Between_Modules.{i}".
inline constexpr absl::string_view kApiCollection = "Apis_Between_Modules";

// The numbers are those of the node_type column.
enum class NodeKind { kModule = 0, kApi = 1, kCollection = 9 };
NodeKind NodeKindOf(absl::string_view id);

// "X.forward.3" is X, "forward" and "3"; an API "X.3.forward" has no number
// behind.
struct NodeDirection {
  absl::string_view head;
  absl::string_view direction;  // empty: no direction
  absl::string_view number;     // of a module
};
NodeDirection DirectionOf(absl::string_view id);
// Empty if the node has no direction.
std::string WithDirection(absl::string_view id, absl::string_view direction);

// "Module.a.B.backward.3" or "Torch.mul.3.backward".
bool IsBackwardNode(absl::string_view id);
// The forward twin of a backward node and the other way round; empty if the
// node is neither.
std::string TwinOf(absl::string_view id);

// A module at the root of a model has a short name; a longer one was torn off
// its parent.
bool IsTornOff(absl::string_view id);
// Was the call made by the recomputation of an activation checkpoint? A null
// stack: no.
bool IsRecompute(const std::vector<std::string>* stack);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_CALLS_NODE_NAMES_H_
