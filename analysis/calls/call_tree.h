// SPDX-License-Identifier: Apache-2.0
// The call tree of one rank's step, from construct.json. Nodes are numbered in
// order of creation; the root is 0. Immutable once built, except for the marks
// that matching sets.
#ifndef RANKPROBE_ANALYSIS_CALLS_CALL_TREE_H_
#define RANKPROBE_ANALYSIS_CALLS_CALL_TREE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "analysis/calls/node_names.h"
#include "dump_format/dump_reader.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {

// Identifies a record in one of the dumps that a graph was built from.
struct NodeSource {
  int32_t dump = 0;
  std::optional<size_t> entry;
};

// A number that replaces a recorded one.
struct MergedNumber {
  bool is_null = false;  // the parts do not determine it
  bool is_int = false;
  double value = 0;
  std::string text;  // of an integer
};

// Changes to a node that merging the ranks of a parallel layout made.
struct MergedValues {
  // Source of the rows of one side, if it is not the node's own record.
  std::optional<NodeSource> input;
  std::optional<NodeSource> output;
  struct Stats {
    std::string place;  // ".input.0"
    PerStat<std::optional<MergedNumber>> numbers;
  };
  std::vector<Stats> stats;
  std::vector<std::string> notes;
};

struct GraphNode {
  std::string id;
  NodeKind kind = NodeKind::kModule;
  int32_t parent = -1;
  std::vector<int32_t> children;
  std::optional<int64_t> micro_step;
  int32_t dump = 0;             // of the dumps of a merged graph
  std::optional<size_t> entry;  // its record in the dump
  std::optional<uint32_t> stack;
  bool stack_missing = false;  // a backward node without its forward node
  int32_t match = -1;          // in the other graph
  std::shared_ptr<MergedValues> merged;
};

class Graph {
 public:
  // Builds the tree. `dump` was opened with construct.json. Returns
  // INVALID_ARGUMENT for a cycle.
  static absl::StatusOr<Graph> Build(const DumpReader& dump);
  // Builds a graph of nodes whose links are already set, the root first.
  static Graph FromNodes(std::vector<GraphNode> nodes,
                         int64_t micro_step_count);
  int64_t micro_step_count() const { return micro_step_count_; }

  const std::vector<GraphNode>& nodes() const { return nodes_; }
  std::vector<GraphNode>& nodes() { return nodes_; }
  int32_t Find(absl::string_view id) const;  // -1: none
  // Returns children before parents; the root is last.
  std::vector<int32_t> PostOrder() const;
  // Returns the ids from the root to the node's parent.
  std::vector<absl::string_view> Ancestors(int32_t node) const;
  bool HasAncestor(int32_t node, int32_t ancestor) const;

  // Numbers the micro steps; if `other` is set, also those of its matched and
  // unmatched nodes. Returns the number of micro steps.
  int64_t AssignMicroSteps(Graph* other);

 private:
  friend class GraphBuilder;
  void Propagate();

  std::vector<GraphNode> nodes_;
  absl::flat_hash_map<std::string, int32_t> by_id_;
  int64_t micro_step_count_ = 0;  // of Megatron
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_CALLS_CALL_TREE_H_
