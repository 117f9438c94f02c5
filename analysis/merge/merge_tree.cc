// SPDX-License-Identifier: Apache-2.0
#include "analysis/merge/merge_tree.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

constexpr char kCollection[] = "Apis_Between_Modules";
constexpr char kAllRanks[] = "Apis_Between_Modules_All_Ranks";

std::optional<MergedNumber> NumberOf(const JsonValue& value) {
  if (!value.is_number()) return std::nullopt;
  MergedNumber out;
  out.is_int = value.kind == JsonValue::Kind::kInt;
  out.value = value.number;
  if (out.is_int) out.text = std::string(value.text);
  return out;
}

std::string LastPart(const std::string& id) {
  return id.substr(id.rfind('.') + 1);
}

// Returns the position of the dot after the digits that start at `at`, or 0.
size_t NumberEnd(const std::string& id, size_t at) {
  size_t end = at;
  while (end < id.size() && absl::ascii_isdigit(id[end])) ++end;
  return end > at && end < id.size() && id[end] == '.' ? end : 0;
}

}  // namespace

MergedValues* MergeNode::Merged() {
  if (node.merged == nullptr) node.merged = std::make_shared<MergedValues>();
  return node.merged.get();
}

MergeNode* MergeTree::Find(const std::string& id) const {
  const auto it = by_id.find(id);
  return it == by_id.end() ? nullptr : it->second;
}

bool MergeParam::IsTensor() const {
  static constexpr absl::string_view kDtypes[] = {
      "torch.int8",    "torch.int32",    "torch.int64", "torch.float16",
      "torch.float32", "torch.float64",  "torch.float", "torch.double",
      "torch.half",    "torch.bfloat16", "Float16",     "Float32",
      "BFloat16"};
  return std::find(std::begin(kDtypes), std::end(kDtypes), dtype) !=
         std::end(kDtypes);
}

MergeNode* MergePool::New(std::string id, NodeKind kind, int64_t rank) {
  MergeNode& out = nodes_.emplace_back();
  out.node.id = std::move(id);
  out.node.kind = kind;
  out.rank = rank;
  return &out;
}

absl::StatusOr<MergeTree> MergePool::Add(int64_t rank,
                                         std::unique_ptr<DumpReader> dump) {
  if (dump->mode() != DumpMode::kStatistics) {
    return absl::InvalidArgumentError(
        absl::StrCat(dump->path(),
                     ": only dumps of statistics can be merged over parallel "
                     "layouts"));
  }
  RP_ASSIGN_OR_RETURN(Graph graph, Graph::Build(*dump));
  MergeTree tree;
  tree.rank = rank;
  tree.micro_steps = graph.AssignMicroSteps(nullptr);
  tree.micro_step_count = graph.micro_step_count();
  std::vector<MergeNode*> made;
  for (GraphNode& node : graph.nodes()) {
    MergeNode& out = nodes_.emplace_back();
    out.node = node;
    out.node.children.clear();
    out.node.dump = static_cast<int32_t>(dumps_.size());
    out.rank = rank;
    made.push_back(&out);
    tree.by_id[node.id] = &out;
  }
  for (size_t i = 0; i < made.size(); ++i) {
    const GraphNode& node = graph.nodes()[i];
    if (node.parent >= 0) {
      made[i]->parent = made[static_cast<size_t>(node.parent)];
    }
    for (const int32_t child : node.children) {
      made[i]->children.push_back(made[static_cast<size_t>(child)]);
    }
  }
  tree.root = made[0];
  dumps_.push_back(std::move(dump));
  return tree;
}

absl::StatusOr<MergeParams> MergePool::Params(const MergeNode& node) {
  MergeParams out;
  RP_RETURN_IF_ERROR(ReadNodeRows(dumps_, node.node, &records_, &rows_));
  for (const DumpRow& row : rows_) {
    MergeParam& param =
        (row.state == RowState::kOutput ? out.output : out.input)
            .emplace_back();
    param.place = std::string(row.name.substr(
        absl::StartsWith(row.name, node.id()) ? node.id().size() : 0));
    param.dtype = std::string(row.dtype);
    for (size_t i = 0; i < param.stats.size(); ++i) {
      param.stats[i] = NumberOf(row.stats[i]);
    }
  }
  return out;
}

Graph MergePool::ToGraph(const MergeTree& tree) {
  std::vector<GraphNode> nodes;
  absl::flat_hash_map<std::string, int> names;
  struct Item {
    const MergeNode* from;
    int32_t parent;
  };
  std::vector<Item> stack = {{tree.root, -1}};
  while (!stack.empty()) {
    const Item item = stack.back();
    stack.pop_back();
    const auto index = static_cast<int32_t>(nodes.size());
    GraphNode& node = nodes.emplace_back(item.from->node);
    while (names[node.id]++ > 0) absl::StrAppend(&node.id, "_again");
    node.parent = item.parent;
    node.children.clear();
    if (item.parent >= 0) {
      nodes[static_cast<size_t>(item.parent)].children.push_back(index);
    }
    for (auto it = item.from->children.rbegin();
         it != item.from->children.rend(); ++it) {
      stack.push_back({*it, index});
    }
  }
  return Graph::FromNodes(std::move(nodes), tree.micro_step_count);
}

std::vector<std::string> AncestorsOf(const MergeNode& node) {
  std::vector<std::string> out;
  for (const MergeNode* up = node.parent; up != nullptr; up = up->parent) {
    out.push_back(up->id());
  }
  std::reverse(out.begin(), out.end());
  return out;
}

bool IsApiCollection(const MergeNode& node) {
  return absl::StartsWith(node.id(), kCollection);
}

std::optional<LayerNumber> FindLayer(const std::string& id, size_t from) {
  for (size_t at = id.find("layer", from); at != std::string::npos;
       at = id.find("layer", at + 1)) {
    for (const absl::string_view word : {"layers.", "layer."}) {
      if (id.compare(at, word.size(), word.data(), word.size()) != 0) continue;
      const size_t dot = NumberEnd(id, at + word.size());
      if (dot > 0) return LayerNumber{at, at + word.size(), dot + 1};
    }
  }
  return std::nullopt;
}

std::string WithLayer(const std::string& id, int64_t number) {
  std::string out;
  size_t from = 0;
  while (const auto layer = FindLayer(id, from)) {
    absl::StrAppend(&out, id.substr(from, layer->number - from), number, ".");
    from = layer->end;
  }
  return out + id.substr(from);
}

std::string WithRank(const std::string& id, int64_t rank) {
  const size_t first = id.find('.');
  if (first == std::string::npos) return absl::StrCat(id, "_rank", rank);
  const size_t second = std::min(id.find('.', first + 1), id.size());
  return absl::StrCat(id.substr(0, second), "_rank", rank, id.substr(second));
}

void MergeApiCollections(MergePool* pool, std::vector<MergeTree>* trees,
                         const std::vector<size_t>& group) {
  MergeTree& main = (*trees)[group[0]];
  const auto adopt = [&main](MergeNode* child, MergeNode* parent) {
    child->parent = parent;
    parent->children.push_back(child);
    main.by_id[child->id()] = child;
    for (MergeNode* const call : child->children) main.by_id[call->id()] = call;
  };
  const auto rename = [](MergeNode* collection, int64_t rank) {
    collection->node.id = absl::StrCat(kCollection, "_Rank", rank, ".",
                                       LastPart(collection->id()));
  };
  int64_t number = 0;
  for (MergeNode*& slot : main.root->children) {
    MergeNode* const node = slot;
    if (absl::StartsWith(node->id(), kAllRanks)) {
      // These nodes were already merged within the pipelines.
      for (size_t i = 1; i < group.size(); ++i) {
        const MergeTree& tree = (*trees)[group[i]];
        MergeNode* const other = tree.Find(node->id());
        if (other == nullptr || other == node) continue;
        for (MergeNode* const child : other->children) {
          // The first rank of the pipeline still has the original names of its
          // calls.
          if (child->rank == tree.rank) {
            for (MergeNode* const call : child->children) {
              call->node.id = WithRank(call->id(), tree.rank);
            }
          }
          adopt(child, node);
        }
      }
      continue;
    }
    if (!IsApiCollection(*node)) continue;
    const std::string id = node->id();
    MergeNode* const all = pool->New(absl::StrCat(kAllRanks, ".", number++),
                                     NodeKind::kCollection, main.rank);
    all->parent = main.root;
    all->node.micro_step = node->node.micro_step;
    slot = all;
    main.by_id.erase(id);
    main.by_id[all->id()] = all;
    rename(node, main.rank);
    adopt(node, all);
    for (size_t i = 1; i < group.size(); ++i) {
      MergeTree& tree = (*trees)[group[i]];
      MergeNode* const other = tree.Find(id);
      if (other == nullptr) continue;
      rename(other, tree.rank);
      for (MergeNode* const call : other->children) {
        call->node.id = WithRank(call->id(), tree.rank);
      }
      adopt(other, all);
    }
  }
}

}  // namespace rankprobe::analysis
