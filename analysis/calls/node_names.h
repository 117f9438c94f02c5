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

// Values of the node_type column.
enum class NodeKind { kModule = 0, kApi = 1, kCollection = 9 };
NodeKind NodeKindOf(absl::string_view id);

// Parts of a node's name: "X.forward.3" has head X, direction "forward" and
// number "3"; an API such as "X.3.forward" has no number at the end.
struct NodeDirection {
  absl::string_view head;
  absl::string_view direction;  // empty: no direction
  absl::string_view number;     // of a module
};
NodeDirection DirectionOf(absl::string_view id);
// Returns an empty text if the node has no direction.
std::string WithDirection(absl::string_view id, absl::string_view direction);

// True for "Module.a.B.backward.3" and "Torch.mul.3.backward".
bool IsBackwardNode(absl::string_view id);
// Returns the forward twin of a backward node and vice versa, or an empty text
// for any other node.
std::string TwinOf(absl::string_view id);

// Whether a module was detached from its parent: a module at the root of a
// model has a short name, a detached one a longer name.
bool IsTornOff(absl::string_view id);
// Whether the call was made by the recomputation of an activation checkpoint.
// False if `stack` is null.
bool IsRecompute(const std::vector<std::string>* stack);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_CALLS_NODE_NAMES_H_
