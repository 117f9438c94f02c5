// SPDX-License-Identifier: Apache-2.0
#include "analysis/graph_view/graph_match.h"

#include <deque>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace rankprobe::analysis {
namespace {

GraphNode& At(Graph* graph, int32_t node) {
  return graph->nodes()[static_cast<size_t>(node)];
}

void Link(Graph* target, int32_t n, Graph* reference, int32_t b) {
  At(target, n).match = b;
  At(reference, b).match = n;
}

// Visits parents before children.
template <typename Fn>
void BreadthFirst(Graph* graph, const Fn& fn) {
  std::deque<int32_t> queue = {0};
  while (!queue.empty()) {
    const int32_t node = queue.front();
    queue.pop_front();
    fn(node);
    for (const int32_t child : At(graph, node).children) queue.push_back(child);
  }
}

// Turns "Torch.mul.3.forward" into "Torch.mul.forward", and also removes
// "_rank{R}".
std::string WithoutNumbers(const std::string& id) {
  std::string out;
  for (size_t i = 0; i < id.size();) {
    if (id[i] == '.') {
      size_t end = i + 1;
      while (end < id.size() && absl::ascii_isdigit(id[end])) ++end;
      if (end > i + 1 && end < id.size() && id[end] == '.') {
        i = end;
        continue;
      }
    }
    if (id.compare(i, 5, "_rank") == 0) {
      size_t end = i + 5;
      while (end < id.size() && absl::ascii_isdigit(id[end])) ++end;
      if (end > i + 5) {
        i = end;
        continue;
      }
    }
    out.push_back(id[i++]);
  }
  return out;
}

std::vector<std::pair<std::string, int32_t>> CountedApis(Graph* graph,
                                                         int32_t node) {
  std::vector<std::pair<std::string, int32_t>> out;
  absl::flat_hash_map<std::string, int64_t> counts;
  for (const int32_t child : At(graph, node).children) {
    if (At(graph, child).kind != NodeKind::kApi) continue;
    const std::string name = WithoutNumbers(At(graph, child).id);
    out.emplace_back(absl::StrCat(name, "\t", ++counts[name]), child);
  }
  return out;
}

}  // namespace

void MatchExact(Graph* target, Graph* reference) {
  BreadthFirst(target, [&](int32_t n) {
    const int32_t b = reference->Find(At(target, n).id);
    if (b < 0) return;
    const int32_t up_n = At(target, n).parent;
    const int32_t up_b = At(reference, b).parent;
    // If the parents match, all ancestors are equal.
    if (up_n < 0 ? up_b >= 0 : At(target, up_n).match != up_b) return;
    Link(target, n, reference, b);
  });
}

void MatchFuzzyGraphs(Graph* target, Graph* reference) {
  BreadthFirst(target, [&](int32_t n) {
    if (At(target, n).kind == NodeKind::kApi) return;
    const int32_t b = reference->Find(At(target, n).id);
    if (b < 0) return;
    Link(target, n, reference, b);
    absl::flat_hash_map<std::string, int32_t> partners;
    for (auto& [name, node] : CountedApis(reference, b)) partners[name] = node;
    for (const auto& [name, node] : CountedApis(target, n)) {
      const auto it = partners.find(name);
      if (it != partners.end()) Link(target, node, reference, it->second);
    }
  });
}

void MatchMapped(const absl::flat_hash_map<std::string, std::string>& ids,
                 Graph* target, Graph* reference) {
  BreadthFirst(target, [&](int32_t n) {
    const auto it = ids.find(At(target, n).id);
    const int32_t b =
        reference->Find(it == ids.end() ? At(target, n).id : it->second);
    if (b >= 0) Link(target, n, reference, b);
  });
}

}  // namespace rankprobe::analysis
