// SPDX-License-Identifier: Apache-2.0
#include "analysis/calls/call_tree.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_rows.h"

namespace rankprobe::analysis {
namespace {

constexpr absl::string_view kRoot = "DefaultModel";

}  // namespace

class GraphBuilder {
 public:
  explicit GraphBuilder(const DumpReader& dump) : dump_(dump) {}

  absl::StatusOr<Graph> Run() {
    for (const ConstructEdge& edge : dump_.construct()) {
      parents_[edge.child] = &edge;
    }
    graph_.micro_step_count_ = dump_.micro_step_count();
    Create(std::string(kRoot), NodeKind::kModule);
    for (const ConstructEdge& edge : dump_.construct()) {
      const std::string parent = ParentOf(edge);
      int32_t up = 0;
      if (!parent.empty()) up = CreateOrGet(parent);
      const int32_t node = CreateOrGet(edge.child);
      Attach(node, up);
    }
    // Attaches parents that construct.json does not list themselves.
    for (size_t i = 1; i < graph_.nodes_.size(); ++i) {
      if (graph_.nodes_[i].parent < 0) Attach(static_cast<int32_t>(i), 0);
    }
    RP_RETURN_IF_ERROR(CheckReachable());
    MoveRecomputed();
    CollectApis();
    AddParametersGrad();
    return std::move(graph_);
  }

 private:
  GraphNode& At(int32_t node) {
    return graph_.nodes_[static_cast<size_t>(node)];
  }

  int32_t Create(std::string id, NodeKind kind) {
    const auto node = static_cast<int32_t>(graph_.nodes_.size());
    graph_.by_id_[id] = node;
    GraphNode& out = graph_.nodes_.emplace_back();
    out.id = std::move(id);
    out.kind = kind;
    return node;
  }

  void Attach(int32_t node, int32_t up) {
    if (node == up || At(node).parent >= 0 || node == 0) return;
    At(node).parent = up;
    At(up).children.push_back(node);
  }

  int32_t CreateOrGet(const std::string& id) {
    const int32_t known = graph_.Find(id);
    if (known >= 0) return known;
    const int32_t node = Create(id, NodeKindOf(id));
    At(node).entry = dump_.Find(id);
    SetStack(node);
    const auto edge = parents_.find(id);
    if (edge != parents_.end() && edge->second->micro_step.has_value()) {
      At(node).micro_step = edge->second->micro_step;
    }
    return node;
  }

  void SetStack(int32_t node) {
    GraphNode& out = At(node);
    out.stack = dump_.StackId(out.id);
    if (out.stack.has_value() && !dump_.stacks()[*out.stack].empty()) return;
    const NodeDirection at = DirectionOf(out.id);
    if (at.direction != "backward") return;
    // All forward calls of a module share the place of the first.
    const std::string forward = at.number.empty()
                                    ? absl::StrCat(at.head, ".forward")
                                    : absl::StrCat(at.head, ".forward.0");
    const int32_t twin = graph_.Find(forward);
    if (twin < 0) {
      out.stack_missing = true;
    } else {
      out.stack = At(twin).stack;
    }
  }

  bool Known(const std::string& id) const { return parents_.contains(id); }

  // Returns the parent in construct.json, or the one that the forward twin of a
  // backward node implies.
  std::string ParentOf(const ConstructEdge& edge) const {
    const std::string stated = edge.parent.value_or("");
    const NodeDirection at = DirectionOf(edge.child);
    if (at.direction != "backward") return stated;
    const auto twin = parents_.find(WithDirection(edge.child, "forward"));
    const auto twin_parent = [&]() -> std::string {
      if (twin == parents_.end()) return "";
      return twin->second->parent.value_or("");
    };
    if (stated.empty()) {
      const std::string parent = WithDirection(twin_parent(), "backward");
      return !parent.empty() && Known(parent) ? parent : "";
    }
    if (at.number.empty()) return stated;
    // The backward of an in-place layer is never closed, so the nodes after it
    // appear as its children.
    const std::vector<absl::string_view> child =
        absl::StrSplit(edge.child, '.');
    const std::vector<absl::string_view> up = absl::StrSplit(stated, '.');
    if (child.size() < 5 || up.size() < 4) return stated;
    if (std::equal(child.begin(), child.end() - 4, up.begin(), up.end() - 3)) {
      return stated;
    }
    if (twin == parents_.end()) return stated;
    if (!twin->second->parent.has_value()) return "";
    const std::string parent = WithDirection(twin_parent(), "backward");
    return !parent.empty() && Known(parent) ? parent : stated;
  }

  // The nodes of a cycle are not reachable from the root.
  absl::Status CheckReachable() const {
    const std::vector<int32_t> order = graph_.PostOrder();
    if (order.size() == graph_.nodes_.size()) return absl::OkStatus();
    std::vector<bool> seen(graph_.nodes_.size());
    for (const int32_t node : order) seen[static_cast<size_t>(node)] = true;
    for (size_t i = 0; i < seen.size(); ++i) {
      if (seen[i]) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          dump_.directory(), "/construct.json: ", OneLine(graph_.nodes_[i].id),
          " is its own ancestor"));
    }
    return absl::OkStatus();
  }

  // Modules that an activation checkpoint recomputes appear at the root. Moves
  // each below the backward of the module that contained it in the first pass.
  void MoveRecomputed() {
    absl::flat_hash_set<std::string> at_root;
    for (const int32_t child : At(0).children) at_root.insert(At(child).id);
    std::vector<int32_t> moved;
    absl::flat_hash_set<std::string> pairs;
    for (const int32_t child : At(0).children) {
      const GraphNode& node = At(child);
      const NodeDirection at = DirectionOf(node.id);
      if (node.kind != NodeKind::kModule || at.number.empty()) continue;
      if (!IsRecompute(dump_.Stack(WithDirection(node.id, "forward"))))
        continue;
      const std::string twin = TwinOf(node.id);
      if (!pairs.contains(node.id) &&
          (!IsTornOff(node.id) || !at_root.contains(twin))) {
        continue;
      }
      pairs.insert(twin);
      moved.push_back(child);
    }
    if (moved.empty()) return;
    // Forward nodes of the first pass, in order; each is used once for each
    // direction.
    absl::flat_hash_map<std::string, std::vector<int32_t>> originals;
    for (size_t i = 1; i < graph_.nodes_.size(); ++i) {
      const GraphNode& node = graph_.nodes_[i];
      const NodeDirection at = DirectionOf(node.id);
      if (node.kind == NodeKind::kModule && at.direction == "forward" &&
          !at.number.empty() && node.parent > 0) {
        originals[std::string(at.head)].push_back(static_cast<int32_t>(i));
      }
    }
    absl::flat_hash_map<std::string, size_t> used;
    for (const int32_t child : moved) {
      const NodeDirection at = DirectionOf(At(child).id);
      const std::vector<int32_t>& candidates = originals[std::string(at.head)];
      size_t& next = used[absl::StrCat(at.head, "\n", at.direction)];
      if (next >= candidates.size()) continue;
      const GraphNode& original = At(candidates[next++]);
      const int32_t up =
          graph_.Find(WithDirection(At(original.parent).id, "backward"));
      if (up < 0 || up == child || graph_.HasAncestor(up, child)) continue;
      auto& siblings = At(0).children;
      siblings.erase(std::find(siblings.begin(), siblings.end(), child));
      At(child).parent = up;
      At(up).children.push_back(child);
    }
  }

  // Collects successive calls at the root under one node.
  void CollectApis() {
    const std::vector<int32_t> before = std::move(At(0).children);
    std::vector<int32_t> after;
    int64_t number = 0;
    for (size_t i = 0; i < before.size();) {
      size_t end = i;
      while (end < before.size() && At(before[end]).kind == NodeKind::kApi) {
        ++end;
      }
      if (end - i < 2) {
        after.push_back(before[i++]);
        continue;
      }
      std::string id = absl::StrCat(kApiCollection, ".", number++);
      while (graph_.Find(id) >= 0) {
        id = absl::StrCat(kApiCollection, ".", number++);
      }
      const int32_t node = Create(std::move(id), NodeKind::kCollection);
      At(node).parent = 0;
      At(node).micro_step = At(before[i]).micro_step;
      for (; i < end; ++i) {
        At(before[i]).parent = node;
        At(node).children.push_back(before[i]);
      }
      after.push_back(node);
    }
    At(0).children = std::move(after);
  }

  // construct.json does not list gradients of parameters; they are attached to
  // the module's last backward.
  void AddParametersGrad() {
    std::vector<std::pair<std::string, std::vector<size_t>>> by_module;
    absl::flat_hash_map<std::string, size_t> index;
    for (size_t i = 0; i < dump_.size(); ++i) {
      const absl::string_view name = dump_.name(i);
      if (!IsParametersGradEntry(name) || graph_.Find(name) >= 0) continue;
      absl::string_view module = name.substr(0, name.rfind(".parameters_grad"));
      const auto [it, is_new] =
          index.try_emplace(std::string(module), by_module.size());
      if (is_new) by_module.push_back({std::string(module), {}});
      by_module[it->second].second.push_back(i);
    }
    absl::flat_hash_map<std::string, int64_t> last;
    for (const GraphNode& node : graph_.nodes_) {
      const NodeDirection at = DirectionOf(node.id);
      int64_t number = 0;
      if (at.direction != "backward" || at.number.empty() ||
          !absl::SimpleAtoi(at.number, &number)) {
        continue;
      }
      int64_t& known = last[std::string(at.head)];
      known = std::max(known, number);
    }
    for (const auto& [module, entries] : by_module) {
      const auto it = last.find(module);
      const int32_t up = graph_.Find(absl::StrCat(
          module, ".backward.", it == last.end() ? 0 : it->second));
      if (up < 0) continue;
      for (const size_t entry : entries) {
        const int32_t node =
            Create(std::string(dump_.name(entry)), NodeKind::kModule);
        At(node).entry = entry;
        Attach(node, up);
      }
    }
  }

  const DumpReader& dump_;
  Graph graph_;
  absl::flat_hash_map<std::string, const ConstructEdge*> parents_;
};

absl::StatusOr<Graph> Graph::Build(const DumpReader& dump) {
  return GraphBuilder(dump).Run();
}

Graph Graph::FromNodes(std::vector<GraphNode> nodes, int64_t micro_step_count) {
  Graph graph;
  graph.nodes_ = std::move(nodes);
  graph.micro_step_count_ = micro_step_count;
  for (size_t i = 0; i < graph.nodes_.size(); ++i) {
    graph.by_id_.try_emplace(graph.nodes_[i].id, static_cast<int32_t>(i));
  }
  return graph;
}

int32_t Graph::Find(absl::string_view id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? -1 : it->second;
}

std::vector<int32_t> Graph::PostOrder() const {
  std::vector<int32_t> order;
  order.reserve(nodes_.size());
  std::vector<std::pair<int32_t, size_t>> stack = {{0, 0}};
  while (!stack.empty()) {
    auto& [node, next] = stack.back();
    const auto& children = nodes_[static_cast<size_t>(node)].children;
    if (next < children.size()) {
      const int32_t child = children[next++];
      stack.emplace_back(child, 0);
    } else {
      order.push_back(node);
      stack.pop_back();
    }
  }
  return order;
}

std::vector<absl::string_view> Graph::Ancestors(int32_t node) const {
  std::vector<absl::string_view> out;
  for (int32_t up = nodes_[static_cast<size_t>(node)].parent; up >= 0;
       up = nodes_[static_cast<size_t>(up)].parent) {
    out.push_back(nodes_[static_cast<size_t>(up)].id);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

bool Graph::HasAncestor(int32_t node, int32_t ancestor) const {
  for (int32_t up = nodes_[static_cast<size_t>(node)].parent; up >= 0;
       up = nodes_[static_cast<size_t>(up)].parent) {
    if (up == ancestor) return true;
  }
  return false;
}

void Graph::Propagate() {
  const std::vector<int32_t> order = PostOrder();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    GraphNode& node = nodes_[static_cast<size_t>(*it)];
    if (!node.micro_step.has_value() && node.parent >= 0) {
      node.micro_step = nodes_[static_cast<size_t>(node.parent)].micro_step;
    }
  }
}

int64_t Graph::AssignMicroSteps(Graph* other) {
  if (micro_step_count_ > 0) return micro_step_count_;
  int64_t step = 0;
  bool after_backward = false;
  for (const int32_t child : nodes_[0].children) {
    GraphNode& node = nodes_[static_cast<size_t>(child)];
    if (node.kind == NodeKind::kModule) {
      if (!absl::StrContains(node.id, ".forward.")) {
        after_backward = true;
      } else if (after_backward) {
        ++step;
        after_backward = false;
      }
    }
    node.micro_step = step;
    if (other != nullptr && node.match >= 0) {
      other->nodes_[static_cast<size_t>(node.match)].micro_step = step;
    }
  }
  Propagate();
  if (other != nullptr) {
    for (const int32_t child : other->nodes_[0].children) {
      GraphNode& node = other->nodes_[static_cast<size_t>(child)];
      if (node.micro_step.has_value()) continue;
      int64_t number = 0;
      const size_t dot = node.id.rfind('.');
      const bool numbered = dot != std::string::npos &&
                            absl::SimpleAtoi(node.id.substr(dot + 1), &number);
      node.micro_step = numbered ? number : 0;
    }
    other->Propagate();
  }
  return step + 1;
}

}  // namespace rankprobe::analysis
