// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/anomaly_origin.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/calls/overflow_levels.h"
#include "analysis/calls/unwritten_tensors.h"
#include "common/base/status_macros.h"
#include "common/text/json_text.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {
namespace {

// A communication call with the bad compute calls between it and the one
// before it on its rank.
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
    // No call made it: the first that saw it.
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

  // Linked calls are one group; groups are looked at in order of their
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
    std::stable_sort(groups.begin(), groups.end(),
                     [&](const auto& a, const auto& b) {
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
    // Nothing bad went in, something bad came out: the call itself.
    for (const size_t i : group) {
      const Step& step = steps_[i];
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

bool HasOverflow(const JsonValue& value) {
  if (value.is_array()) {
    return std::any_of(value.items().begin(), value.items().end(), HasOverflow);
  }
  if (!value.is_object()) return false;
  const JsonValue* const type = value.Find("type");
  if (type == nullptr || !type->is_string()) {
    return std::any_of(
        value.fields().begin(), value.fields().end(),
        [](const JsonMember& m) { return HasOverflow(m.value); });
  }
  for (const Stat stat : {kMax, kMin}) {
    const JsonValue* const found = value.Find(kStatInfo[stat].key);
    if (found != nullptr && IsNanOrInf(*found)) return true;
  }
  return false;
}

namespace {

// In what is not left out of the values of a section.
bool HasOverflowBut(const JsonValue& section,
                    absl::FunctionRef<bool(absl::string_view)> leave_out) {
  size_t index = 0;
  for (const JsonValue& item : section.items()) {
    if (HasOverflow(item) && !leave_out(absl::StrCat(index))) return true;
    ++index;
  }
  return std::any_of(section.fields().begin(), section.fields().end(),
                     [&](const JsonMember& member) {
                       return HasOverflow(member.value) &&
                              !leave_out(member.key);
                     });
}

}  // namespace

absl::StatusOr<RankStates> ReadOverflowStates(int64_t rank,
                                              const DumpReader& dump,
                                              CommLinks* links) {
  RankStates states;
  states.rank = rank;
  states.dump = &dump;
  JsonDocument record;
  for (size_t i = 0; i < dump.size(); ++i) {
    const absl::string_view name = dump.name(i);
    // Their content is whatever the memory held.
    if (absl::StartsWith(name, "Torch.empty") ||
        absl::StartsWith(name, "Torch.fill")) {
      continue;
    }
    RP_RETURN_IF_ERROR(dump.Read(i, &record));
    NodeState state;
    state.entry = i;
    state.communication = IsCommunication(name);
    if (state.communication) links->Add(rank, name, record.root());
    const UnwrittenTensors unwritten(name, &dump.notes());
    for (const absl::string_view key :
         {"input_args", "input_kwargs", "input"}) {
      const JsonValue* const value = record.root().Find(key);
      state.bad_input = state.bad_input ||
                        (value != nullptr &&
                         HasOverflowBut(*value, [&](absl::string_view place) {
                           return unwritten.HasInput(place);
                         }));
    }
    const JsonValue* const output = record.root().Find("output");
    state.bad_output = output != nullptr &&
                       HasOverflowBut(*output, [&](absl::string_view place) {
                         return unwritten.HasOutput(place);
                       });
    states.nodes.push_back(state);
  }
  return states;
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
  absl::flat_hash_map<absl::string_view, absl::string_view> parents;
  for (const ConstructEdge& edge : dump.construct()) {
    parents[edge.child] = edge.parent.has_value() ? *edge.parent : "";
  }
  std::vector<absl::string_view> path;
  for (absl::string_view at = name; !at.empty() && path.size() < 1000;) {
    path.push_back(at);
    const auto up = parents.find(at);
    at = up == parents.end() ? absl::string_view() : up->second;
  }
  out.BeginArray();
  for (auto it = path.rbegin(); it != path.rend(); ++it) out.String(*it);
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
