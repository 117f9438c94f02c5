// SPDX-License-Identifier: Apache-2.0
// The call trees of many ranks while they are merged into fewer. Nodes live in
// one pool and move between trees; what they recorded is read when needed.
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
  // A layer of which every stage has a copy of the same name.
  bool layer_copied = false;
  // Came from another stage: its place among its siblings there. Its final
  // name is not made yet.
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

// A value of a node: what a statistic is made of.
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
  // Takes the dump of the next rank and makes its tree.
  absl::StatusOr<MergeTree> Add(int64_t rank, std::unique_ptr<DumpReader> dump);
  MergeNode* New(std::string id, NodeKind kind, int64_t rank);
  absl::StatusOr<MergeParams> Params(const MergeNode& node);
  const std::vector<std::unique_ptr<DumpReader>>& dumps() const {
    return dumps_;
  }
  // A graph whose nodes name their dumps by their order here. Names that met
  // by chance are told apart.
  static Graph ToGraph(const MergeTree& tree);
  // The dumps, when all trees are done.
  std::vector<std::unique_ptr<DumpReader>> TakeDumps() {
    return std::move(dumps_);
  }

 private:
  std::deque<MergeNode> nodes_;
  std::vector<std::unique_ptr<DumpReader>> dumps_;
  NodeRecords records_;
  std::vector<DumpRow> rows_;
};

// Ids from the root to the node's parent.
std::vector<std::string> AncestorsOf(const MergeNode& node);

bool IsApiCollection(const MergeNode& node);

// "layers.3." in an id.
struct LayerNumber {
  size_t begin = 0;  // of "layers."
  size_t number = 0;
  size_t end = 0;  // behind the second dot
};
std::optional<LayerNumber> FindLayer(const std::string& id, size_t from = 0);
// All of them.
std::string WithLayer(const std::string& id, int64_t number);
// "Torch.mul.3.forward" -> "Torch.mul_rank2.3.forward".
std::string WithRank(const std::string& id, int64_t rank);

// The calls between modules of every rank, side by side in the first tree.
void MergeApiCollections(MergePool* pool, std::vector<MergeTree>* trees,
                         const std::vector<size_t>& group);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_MERGE_MERGE_TREE_H_
