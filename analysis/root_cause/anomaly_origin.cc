// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/anomaly_origin.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "analysis/calls/call_place.h"
#include "common/base/status_macros.h"
#include "common/text/json_text.h"

namespace rankprobe::analysis {
namespace {

// A communication call together with the bad compute calls between it and the
// previous one on its rank.
struct Step {
  size_t rank = 0;  // index in the caller's list
  size_t layer = 0;
  const NodeState* node = nullptr;
  std::vector<size_t> held;  // entries
  bool sends = true;
};

class Search {
 public:
  Search(const std::vector<RankStates>& ranks, const CommLinks& links)
      : ranks_(ranks), links_(links) {
    for (size_t r = 0; r < ranks_.size(); ++r) Chain(r);
  }

  std::vector<FoundNode> Run() {
    std::vector<FoundNode> found = BeforeCommunication();
    if (!found.empty()) return found;
    found = InCommunication();
    if (!found.empty()) return found;
    found = FirstHeld();
    // No call made it; returns the first that saw it.
    return found.empty() ? FirstSeen() : found;
  }

 private:
  void Chain(size_t r) {
    std::vector<size_t> held;
    size_t layer = 0;
    for (const NodeState& node : ranks_[r].nodes) {
      if (!node.communication) {
        if (node.bad_output && !node.bad_input) {
          if (layer == 0) before_.try_emplace(r, node.entry);
          all_held_.try_emplace(r, node.entry);
          held.push_back(node.entry);
        }
        continue;
      }
      Step step;
      step.rank = r;
      step.layer = layer++;
      step.node = &node;
      step.held = std::move(held);
      held.clear();
      const std::string name(ranks_[r].dump->name(node.entry));
      by_name_[{ranks_[r].rank, name}] = steps_.size();
      steps_.push_back(std::move(step));
    }
  }

  std::vector<FoundNode> BeforeCommunication() const { return ToList(before_); }
  std::vector<FoundNode> FirstHeld() const { return ToList(all_held_); }
  std::vector<FoundNode> FirstSeen() const {
    std::vector<FoundNode> out;
    for (const RankStates& rank : ranks_) {
      for (const NodeState& node : rank.nodes) {
        if (!node.bad_input) continue;
        out.push_back({rank.rank, node.entry});
        break;
      }
    }
    // The rank that had it first leads: a reduction brings it to the others later.
    absl::c_stable_sort(out, [](const FoundNode& a, const FoundNode& b) {
      return a.entry < b.entry;
    });
    return out;
  }

  std::vector<FoundNode> ToList(const std::map<size_t, size_t>& map) const {
    std::vector<FoundNode> out;
    out.reserve(map.size());
    for (const auto& [r, entry] : map) out.push_back({ranks_[r].rank, entry});
    return out;
  }

  size_t Root(size_t i) {
    while (group_[i] != i) i = group_[i] = group_[group_[i]];
    return i;
  }

  // Linked calls form one group; groups are checked in the order of their
  // earliest layer.
  std::vector<FoundNode> InCommunication() {
    group_.resize(steps_.size());
    std::iota(group_.begin(), group_.end(), 0);
    for (size_t i = 0; i < steps_.size(); ++i) {
      const RankStates& rank = ranks_[steps_[i].rank];
      const auto* const links =
          links_.Find(rank.rank, rank.dump->name(steps_[i].node->entry));
      if (links == nullptr) continue;
      for (const CommLink& link : *links) {
        if (link.kind == CommKind::kReceive) steps_[i].sends = false;
        for (const CommPeer& peer : link.peers) {
          const auto other = by_name_.find({peer.rank, peer.node});
          if (other != by_name_.end()) group_[Root(i)] = Root(other->second);
        }
      }
    }
    std::map<size_t, std::vector<size_t>> members;
    for (size_t i = 0; i < steps_.size(); ++i) members[Root(i)].push_back(i);
    std::vector<std::vector<size_t>> groups;
    groups.reserve(members.size());
    for (auto& [root, group] : members) groups.push_back(std::move(group));
    const auto layer_of = [this](const std::vector<size_t>& group) {
      size_t least = SIZE_MAX;
      for (const size_t i : group) least = std::min(least, steps_[i].layer);
      return least;
    };
    absl::c_stable_sort(groups, [&](const auto& a, const auto& b) {
      return layer_of(a) < layer_of(b);
    });
    for (const std::vector<size_t>& group : groups) {
      std::vector<FoundNode> found = Judge(group);
      if (!found.empty()) return found;
    }
    return {};
  }

  std::vector<FoundNode> Judge(const std::vector<size_t>& group) const {
    std::vector<FoundNode> found;
    bool bad_source = false;
    for (const size_t i : group) {
      const Step& step = steps_[i];
      if (!step.sends || !step.node->bad_input) continue;
      bad_source = true;
      if (!step.held.empty()) {
        found.push_back({ranks_[step.rank].rank, step.held.front()});
      }
    }
    if (!found.empty() || bad_source) return found;
    // Nothing bad went in, something bad came out: the call itself, unless it
    // passed infinities on that were meant.
    const bool meant = absl::c_any_of(
        group, [this](size_t i) { return steps_[i].node->meant_infinity; });
    for (const size_t i : group) {
      const Step& step = steps_[i];
      if (meant && !step.node->nan_output) continue;
      if (!step.node->bad_input && step.node->bad_output) {
        found.push_back({ranks_[step.rank].rank, step.node->entry});
      }
    }
    return found;
  }

  const std::vector<RankStates>& ranks_;
  const CommLinks& links_;
  std::map<size_t, size_t> before_;
  std::map<size_t, size_t> all_held_;
  std::vector<Step> steps_;
  std::map<std::pair<int64_t, std::string>, size_t> by_name_;
  std::vector<size_t> group_;
};

}  // namespace

std::vector<FoundNode> FindFirstNodes(const std::vector<RankStates>& ranks,
                                      const CommLinks& links) {
  return Search(ranks, links).Run();
}

absl::StatusOr<std::string> DescribeNode(const DumpReader& dump, size_t entry,
                                         int indent) {
  JsonDocument record;
  RP_RETURN_IF_ERROR(dump.Read(entry, &record));
  std::string text;
  JsonTextWriter out(&text);
  const std::string name(dump.name(entry));
  out.BeginObject();
  out.Key("op_name");
  out.String(name);
  out.Key("data_info");
  WriteJson(record.root(), &out);
  out.Key("construct_info");
  out.BeginArray();
  for (const std::string& at : CallPlaces(dump).ChainOf(name)) out.String(at);
  out.EndArray();
  out.Key("stack_info");
  out.BeginArray();
  const std::vector<std::string>* const stack = dump.Stack(name);
  if (stack != nullptr) {
    for (const std::string& frame : *stack) out.String(frame);
  }
  out.EndArray();
  out.EndObject();
  std::string shifted;
  for (const char c : text) {
    shifted.push_back(c);
    if (c == '\n') shifted.append(static_cast<size_t>(indent), ' ');
  }
  return shifted;
}

}  // namespace rankprobe::analysis
