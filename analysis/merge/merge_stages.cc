// SPDX-License-Identifier: Apache-2.0
// Pipeline parallelism: each stage has the model's wrapper modules and some of
// its layers, whose names start from 0 again in each stage.
#include "analysis/merge/merge_stages.h"

#include <algorithm>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/merge/merge_tensors.h"
#include "analysis/merge/merge_tree.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

bool IsForward(const std::string& id) {
  return absl::StrContains(id, ".forward.");
}
bool IsBackward(const std::string& id) {
  return absl::StrContains(id, ".backward.");
}

class StageMerger {
 public:
  StageMerger(MergePool* pool, const std::vector<MergeTree*>& trees)
      : pool_(pool), main_(trees[0]), others_(trees.begin() + 1, trees.end()) {}

  absl::Status Run() {
    const std::vector<MergeNode*> modules = main_->root->children;
    for (MergeNode* const module : modules) {
      if (module->node.kind != NodeKind::kModule ||
          module->id() == "optimizer" || module->id() == "clip_grad") {
        continue;
      }
      RP_RETURN_IF_ERROR(MergeModule(module));
      NameMarked(module);
    }
    for (MergeNode* const child : main_->root->children) {
      if (!child->mark.has_value()) continue;
      OrderSiblings(main_->root, IsForward(child->id()));
      break;
    }
    MergeRootLayers();
    return absl::OkStatus();
  }

 private:
  // Merges `node` and its descendants.
  absl::Status MergeModule(MergeNode* node) {
    std::vector<MergeNode*> others;
    for (MergeTree* const tree : others_) {
      MergeNode* const other = tree->Find(node->id());
      if (other == nullptr) return absl::OkStatus();
      others.push_back(other);
    }
    RP_ASSIGN_OR_RETURN(const ParamDifferences differ,
                        DifferingParams(pool_, *node, others, true));
    bool copied = !differ.input.empty() && !differ.output.empty() &&
                  FindLayer(node->id()).has_value();
    if (IsBackward(node->id())) {
      // The backward of the first layer may have no output.
      std::string twin = node->id();
      twin.replace(twin.find(".backward."), 10, ".forward.");
      const MergeNode* const forward = main_->Find(twin);
      copied = copied || (forward != nullptr && forward->layer_copied);
    }
    if (copied) {
      node->layer_copied = true;
      for (MergeNode* const other : others) {
        Mark(other, other->rank);
        other->parent = node->parent;
        node->parent->children.push_back(other);
      }
      return absl::OkStatus();
    }
    const MergeNode& last = *others.back();
    if (differ.input.empty() && !differ.output.empty() &&
        IsForward(node->id())) {
      node->Merged()->output = OutputOf(last);
    } else if (!differ.input.empty() && differ.output.empty() &&
               IsBackward(node->id())) {
      node->Merged()->input = InputOf(last);
    }
    TakeUniqueChildren(node, others);
    // The list grows while layers of other stages are appended; those are
    // already merged.
    for (size_t i = 0; i < node->children.size(); ++i) {
      MergeNode* const child = node->children[i];
      if (child->node.kind != NodeKind::kModule || child->mark.has_value()) {
        continue;
      }
      RP_RETURN_IF_ERROR(MergeModule(child));
    }
    return absl::OkStatus();
  }

  static NodeSource OutputOf(const MergeNode& node) {
    const NodeSource own{node.node.dump, node.node.entry};
    return node.node.merged == nullptr ? own
                                       : node.node.merged->output.value_or(own);
  }
  static NodeSource InputOf(const MergeNode& node) {
    const NodeSource own{node.node.dump, node.node.entry};
    return node.node.merged == nullptr ? own
                                       : node.node.merged->input.value_or(own);
  }

  static void Mark(MergeNode* node, int64_t rank) {
    const auto& siblings = node->parent->children;
    const auto at = absl::c_find(siblings, node);
    node->mark = MergeNode::Mark{at - siblings.begin(), rank};
    for (MergeNode* const child : node->children) Mark(child, rank);
  }

  // Takes the children that only one of the stages has.
  void TakeUniqueChildren(MergeNode* node,
                          const std::vector<MergeNode*>& others) {
    absl::flat_hash_map<std::string, int> stages;
    const auto count = [&stages](const MergeNode& stage) {
      std::set<std::string> ids;
      for (const MergeNode* const child : stage.children) {
        ids.insert(child->id());
      }
      for (const std::string& id : ids) ++stages[id];
    };
    count(*node);
    for (const MergeNode* const other : others) count(*other);
    std::vector<MergeNode*> unique;
    for (const MergeNode* const other : others) {
      for (MergeNode* const child : other->children) {
        if (stages[child->id()] == 1) unique.push_back(child);
      }
    }
    for (MergeNode* const child : unique) {
      Mark(child, child->rank);
      child->parent = node;
      node->children.push_back(child);
    }
  }

  // Moves the nodes below `top` that came from other stages to their positions.
  void NameMarked(MergeNode* top) {
    for (const MergeNode* const child : top->children) {
      if (!child->mark.has_value()) continue;
      OrderSiblings(top, IsForward(child->id()));
      break;
    }
    for (MergeNode* const child : top->children) NameMarked(child);
  }

  // Orders nodes of other stages: in forward after the own ones, stage by
  // stage, in backward before them.
  void OrderSiblings(MergeNode* parent, bool forward) {
    std::vector<MergeNode*> own;
    std::vector<MergeNode*> marked;
    for (MergeNode* const child : parent->children) {
      (child->mark.has_value() ? marked : own).push_back(child);
    }
    absl::c_stable_sort(
        marked, [forward](const MergeNode* a, const MergeNode* b) {
          const int64_t sign = forward ? 1 : -1;
          return std::pair(sign * a->mark->rank, a->mark->position) <
                 std::pair(sign * b->mark->rank, b->mark->position);
        });
    std::vector<MergeNode*>& all = parent->children;
    all = forward ? own : marked;
    const std::vector<MergeNode*>& rest = forward ? marked : own;
    all.insert(all.end(), rest.begin(), rest.end());
    int64_t index = -1;
    for (size_t i = 0; i < all.size(); ++i) {
      MergeNode* const child = all[forward ? i : all.size() - 1 - i];
      if (FindLayer(child->id()).has_value()) ++index;
      if (child->mark.has_value()) child->layer_index = index;
    }
    for (MergeNode* const child : marked) Unmark(child, std::nullopt);
  }

  void Unmark(MergeNode* node, std::optional<int64_t> index) {
    const int64_t rank = node->mark.has_value() ? node->mark->rank : node->rank;
    if (node->mark.has_value()) {
      if (node->node.kind != NodeKind::kModule) {
        node->node.id = WithRank(node->id(), rank);
      } else if (FindLayer(node->id()).has_value()) {
        if (node->layer_index.has_value()) index = node->layer_index;
        if (index.has_value()) node->node.id = WithLayer(node->id(), *index);
      }
      node->mark.reset();
      main_->by_id.try_emplace(node->id(), node);
    }
    for (MergeNode* const child : node->children) Unmark(child, index);
  }

  // Merges layers that are not inside a module.
  void MergeRootLayers() {
    MergeNode* const root = main_->root;
    const auto is_layer = [](const MergeNode* node) {
      return FindLayer(node->id()).has_value();
    };
    if (absl::c_none_of(root->children, is_layer)) {
      return;
    }
    std::set<std::string> known;
    for (const MergeNode* const child : root->children) {
      known.insert(child->id());
    }
    std::vector<MergeNode*> added;
    for (MergeTree* const tree : others_) {
      for (MergeNode* const child : tree->root->children) {
        // Nodes that are already merged have another parent.
        if (child->parent != tree->root || IsApiCollection(*child) ||
            known.contains(child->id())) {
          continue;
        }
        added.push_back(child);
      }
    }
    for (MergeNode* const child : added) Mark(child, child->rank);
    absl::c_stable_sort(added, [](const MergeNode* a, const MergeNode* b) {
      return std::pair(a->mark->rank, a->mark->position) <
             std::pair(b->mark->rank, b->mark->position);
    });
    int64_t index = absl::c_count_if(root->children, is_layer) - 1;
    for (MergeNode* const child : added) {
      child->parent = root;
      root->children.push_back(child);
      if (is_layer(child)) child->layer_index = ++index;
      Unmark(child, std::nullopt);
    }
  }

  MergePool* const pool_;
  MergeTree* const main_;
  const std::vector<MergeTree*> others_;
};

// Merges chunks of virtual pipelines: "Module.{chunk}.module..".
class ChunkMerger {
 public:
  ChunkMerger(MergeTree* tree, int64_t chunks) : tree_(tree), chunks_(chunks) {}

  void Run() {
    TakeLastValues();
    MoveLayers();
  }

 private:
  // Returns the chunk in an id: the digits between its first two dots.
  static std::string ChunkOf(const std::string& id) {
    const size_t first = id.find('.');
    if (first == std::string::npos) return "";
    const size_t second = std::min(id.find('.', first + 1), id.size());
    const std::string part = id.substr(first + 1, second - first - 1);
    const bool digits =
        absl::c_all_of(part, [](char c) { return absl::ascii_isdigit(c); });
    return digits ? part : "";
  }
  static std::string WithChunk(const std::string& id, int64_t chunk) {
    const std::string old = ChunkOf(id);
    if (old.empty()) return id;
    const size_t first = id.find('.');
    return absl::StrCat(id.substr(0, first + 1), chunk,
                        id.substr(first + 1 + old.size()));
  }
  static bool EndsForward(const std::string& id) {
    const size_t last = id.rfind('.');
    return last != std::string::npos &&
           absl::EndsWith(id.substr(0, last), ".forward");
  }
  static bool IsLayerOrMoved(const MergeNode& node) {
    return node.layer_copied || node.layer_index.has_value();
  }

  template <typename Fn>
  void ForChunkZero(const Fn& enter) {
    std::vector<MergeNode*> stack;
    for (auto it = tree_->root->children.rbegin();
         it != tree_->root->children.rend(); ++it) {
      if (ChunkOf((*it)->id()) == "0") stack.push_back(*it);
    }
    while (!stack.empty()) {
      MergeNode* const node = stack.back();
      stack.pop_back();
      if (!enter(node)) continue;
      for (auto it = node->children.rbegin(); it != node->children.rend();
           ++it) {
        stack.push_back(*it);
      }
    }
  }

  // The outputs of the last chunk are the outputs of the model.
  void TakeLastValues() {
    ForChunkZero([this](MergeNode* node) {
      if (IsLayerOrMoved(*node) || node->node.kind != NodeKind::kModule) {
        return false;
      }
      const MergeNode* const last =
          tree_->Find(WithChunk(node->id(), chunks_ - 1));
      if (last == nullptr || last == node) return true;
      const NodeSource own{last->node.dump, last->node.entry};
      const MergedValues* const merged = last->node.merged.get();
      if (EndsForward(node->id())) {
        node->Merged()->output =
            merged == nullptr ? own : merged->output.value_or(own);
      } else {
        node->Merged()->input =
            merged == nullptr ? own : merged->input.value_or(own);
      }
      return true;
    });
  }

  void MoveLayers() {
    std::vector<MergeNode*> lists;
    ForChunkZero([&lists](MergeNode* node) {
      if (!IsLayerOrMoved(*node)) return true;
      if (!absl::c_linear_search(lists, node->parent)) {
        lists.push_back(node->parent);
      }
      return false;
    });
    for (MergeNode* const list : lists) MoveInto(list);
  }

  void MoveInto(MergeNode* list) {
    const bool forward = EndsForward(list->id());
    for (int64_t chunk = 1; chunk < chunks_; ++chunk) {
      MergeNode* const from = tree_->Find(WithChunk(list->id(), chunk));
      if (from == nullptr || from == list) continue;
      for (MergeNode* const child : from->children) child->parent = list;
      list->children.insert(
          forward ? list->children.end() : list->children.begin(),
          from->children.begin(), from->children.end());
      from->children.clear();
      RemoveChunk(from);
    }
    Number(list->children, forward);
  }

  // Removes the modules around the layers that were moved.
  void RemoveChunk(MergeNode* list) {
    MergeNode* top = list;
    while (top->parent != nullptr && top->parent != tree_->root) {
      top = top->parent;
      tree_->by_id.erase(top->id());
    }
    std::erase(tree_->root->children, top);
  }

  void Number(const std::vector<MergeNode*>& siblings, bool forward) {
    int64_t index = -1;
    for (size_t i = 0; i < siblings.size(); ++i) {
      MergeNode* const node = siblings[forward ? i : siblings.size() - 1 - i];
      const auto layer = FindLayer(node->id());
      if (layer.has_value()) ++index;
      if (ChunkOf(node->id()) == "0") continue;
      std::string prefix;
      if (layer.has_value()) {
        prefix = WithChunk(
            absl::StrCat(node->id().substr(0, layer->number), index, "."), 0);
        Rename(node, prefix + node->id().substr(layer->end));
      } else {
        Rename(node, WithChunk(node->id(), 0));
      }
      RenameBelow(node, prefix);
    }
  }

  void RenameBelow(MergeNode* node, const std::string& prefix) {
    for (MergeNode* const child : node->children) {
      if (child->node.kind != NodeKind::kModule) continue;
      const auto layer = FindLayer(child->id());
      Rename(child, layer.has_value() && !prefix.empty()
                        ? prefix + child->id().substr(layer->end)
                        : WithChunk(child->id(), 0));
      RenameBelow(child, prefix);
    }
  }

  void Rename(MergeNode* node, std::string id) {
    tree_->by_id.erase(node->id());
    node->node.id = std::move(id);
    tree_->by_id[node->id()] = node;
  }

  MergeTree* const tree_;
  const int64_t chunks_;
};

}  // namespace

absl::Status MergeStages(MergePool* pool, const std::vector<MergeTree*>& trees,
                         int64_t virtual_pipeline) {
  if (trees.size() < 2) return absl::OkStatus();
  RP_RETURN_IF_ERROR(StageMerger(pool, trees).Run());
  if (virtual_pipeline > 1) ChunkMerger(trees[0], virtual_pipeline).Run();
  return absl::OkStatus();
}

}  // namespace rankprobe::analysis
