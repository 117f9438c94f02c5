// SPDX-License-Identifier: Apache-2.0
// The call trees of many ranks while they are merged into fewer. Nodes are
// owned by one pool and move between trees; their records are read when needed.
// Used on one thread; the pool outlives the trees.
#ifndef RANKPROBE_ANALYSIS_MERGE_MERGE_TREE_H_
#define RANKPROBE_ANALYSIS_MERGE_MERGE_TREE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "analysis/calls/call_tree.h"
#include "analysis/calls/node_rows.h"
#include "dump_format/dump_reader.h"
#include "dump_format/dump_rows.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {

struct MergeNode {
  GraphNode node;  // without its links
  MergeNode* parent = nullptr;
  std::vector<MergeNode*> children;
  int64_t rank = 0;
  // A layer that every stage has a copy of, under the same name.
  bool layer_copied = false;
  // Set for a node that came from another stage and has no final name yet: its
  // position among its siblings there.
  struct Mark {
    int64_t position = 0;
    int64_t rank = 0;
  };
  std::optional<Mark> mark;
  std::optional<int64_t> layer_index;

  const std::string& id() const { return node.id; }
  MergedValues* Merged();
};

struct MergeTree {
  int64_t rank = 0;
  int64_t micro_steps = 1;
  int64_t micro_step_count = 0;
  MergeNode* root = nullptr;
  absl::flat_hash_map<std::string, MergeNode*> by_id;

  MergeNode* Find(const std::string& id) const;
};

// A value of a node from which statistics are computed.
struct MergeParam {
  std::string place;  // ".input.0"
  std::string dtype;
  PerStat<std::optional<MergedNumber>> stats;

  bool IsTensor() const;
};
struct MergeParams {
  std::vector<MergeParam> input;
  std::vector<MergeParam> output;
};

class MergePool {
 public:
  // Takes the dump of the next rank and builds its tree.
  absl::StatusOr<MergeTree> Add(int64_t rank, std::unique_ptr<DumpReader> dump);
  MergeNode* New(std::string id, NodeKind kind, int64_t rank);
  absl::StatusOr<MergeParams> Params(const MergeNode& node);
  const std::vector<std::unique_ptr<DumpReader>>& dumps() const {
    return dumps_;
  }
  // Returns a graph whose nodes refer to their dumps by index in dumps(). Equal
  // names from different ranks are made unique.
  static Graph ToGraph(const MergeTree& tree);
  // Returns the dumps; called when all trees are done.
  std::vector<std::unique_ptr<DumpReader>> TakeDumps() {
    return std::move(dumps_);
  }

 private:
  std::deque<MergeNode> nodes_;
  std::vector<std::unique_ptr<DumpReader>> dumps_;
  NodeRecords records_;
  std::vector<DumpRow> rows_;
};

// Returns the ids from the root to the node's parent.
std::vector<std::string> AncestorsOf(const MergeNode& node);

// Whether the node collects calls between modules.
bool IsApiCollection(const MergeNode& node);

// Position of "layers.3." in an id.
struct LayerNumber {
  size_t begin = 0;  // of "layers."
  size_t number = 0;
  size_t end = 0;  // after the second dot
};
std::optional<LayerNumber> FindLayer(const std::string& id, size_t from = 0);
// Replaces the numbers of all layers in the id.
std::string WithLayer(const std::string& id, int64_t number);
// Turns "Torch.mul.3.forward" into "Torch.mul_rank2.3.forward".
std::string WithRank(const std::string& id, int64_t rank);

// Moves the calls between modules of every rank into the first tree.
void MergeApiCollections(MergePool* pool, std::vector<MergeTree>* trees,
                         const std::vector<size_t>& group);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_MERGE_MERGE_TREE_H_
