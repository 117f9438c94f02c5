// SPDX-License-Identifier: Apache-2.0
#include "analysis/calls/comm_links.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/records/entry_names.h"

namespace rankprobe::analysis {
namespace {

// How each operation names the other rank.
struct OpRule {
  absl::string_view op;
  absl::string_view partner;  // of a point-to-point call
  absl::string_view keyword;
  size_t position;
  CommKind kind;
};
constexpr OpRule kRules[] = {
    {"send", "recv", "dst", 1, CommKind::kSend},
    {"isend", "irecv", "dst", 1, CommKind::kSend},
    {"recv", "send", "src", 1, CommKind::kReceive},
    {"irecv", "isend", "src", 1, CommKind::kReceive},
    {"broadcast", "", "src", 1, CommKind::kSend},
    {"scatter", "", "src", 2, CommKind::kSend},
    {"gather", "", "dst", 2, CommKind::kReceive},
    {"reduce", "", "dst", 1, CommKind::kReceive},
};

const OpRule* RuleOf(absl::string_view op) {
  for (const OpRule& rule : kRules) {
    if (rule.op == op) return &rule;
  }
  return nullptr;
}

std::optional<int64_t> IntValue(const JsonValue* leaf) {
  if (leaf == nullptr) return std::nullopt;
  const JsonValue* const value = leaf->is_object() ? leaf->Find("value") : leaf;
  if (value == nullptr || value->kind != JsonValue::Kind::kInt ||
      value->number < 0 || value->number > 1e9) {
    return std::nullopt;
  }
  return static_cast<int64_t>(value->number);
}

const JsonValue* Positional(const JsonValue& record, size_t position) {
  const JsonValue* const args = record.Find("input_args");
  if (args == nullptr || args->items().size() <= position) return nullptr;
  return &args->items()[position];
}

CommKind Opposite(CommKind kind) {
  if (kind == CommKind::kSend) return CommKind::kReceive;
  if (kind == CommKind::kReceive) return CommKind::kSend;
  return kind;
}

std::string PeerKey(absl::string_view op, int64_t peer, absl::string_view group,
                    int64_t occurrence) {
  return absl::StrCat(op, "\trank", peer, "\t", group, "\t", occurrence);
}

}  // namespace

absl::string_view CommKindName(CommKind kind) {
  switch (kind) {
    case CommKind::kSend:
      return "send";
    case CommKind::kReceive:
      return "receive";
    default:
      return "send_receive";
  }
}

bool IsCommunication(absl::string_view entry) {
  return absl::StartsWith(entry, "Distributed.") &&
         absl::EndsWith(entry, ".forward");
}

CommCall ReadCommCall(absl::string_view entry, const JsonValue& record) {
  CommCall call;
  call.op = std::string(OpOfEntry(entry));
  const JsonValue* const kwargs = record.Find("input_kwargs");
  const OpRule* const rule = RuleOf(call.op);
  if (rule != nullptr) {
    if (kwargs != nullptr) call.peer = IntValue(kwargs->Find(rule->keyword));
    if (!call.peer.has_value()) {
      call.peer = IntValue(Positional(record, rule->position));
    }
  }
  const JsonValue* group = kwargs == nullptr ? nullptr : kwargs->Find("group");
  if (group == nullptr || !group->is_object()) {
    const JsonValue* const args = record.Find("input_args");
    const absl::Span<const JsonValue> items =
        args == nullptr ? absl::Span<const JsonValue>() : args->items();
    for (const JsonValue& item : items) {
      const JsonValue* const type = item.Find("type");
      if (type != nullptr && type->text == "torch.ProcessGroup") group = &item;
    }
  }
  if (group == nullptr || !group->is_object()) return call;
  const JsonValue* const id = group->Find("group_id");
  if (id != nullptr && id->is_string()) call.group_id = std::string(id->text);
  const JsonValue* const ranks = group->Find("group_ranks");
  if (ranks != nullptr && ranks->is_array()) {
    for (size_t i = 0; i < ranks->size; ++i) {
      const JsonValue& rank = ranks->elements[i];
      if (const auto number = IntValue(&rank); number.has_value()) {
        call.group_ranks.push_back(*number);
      }
    }
  }
  return call;
}

std::vector<CommCall> ReadCommBatch(const JsonValue& record) {
  std::vector<CommCall> batch;
  const JsonValue* const args = record.Find("input_args");
  const absl::Span<const JsonValue> lists =
      args == nullptr ? absl::Span<const JsonValue>() : args->items();
  for (const JsonValue& list : lists) {
    for (const JsonValue& item : list.items()) {
      const JsonValue* const op = item.Find("op");
      const auto peer = IntValue(item.Find("peer"));
      const JsonValue* const group = item.Find("group_id");
      if (op == nullptr || !op->is_string() || !peer.has_value()) continue;
      CommCall& call = batch.emplace_back();
      call.op = std::string(op->text);
      call.peer = *peer;
      if (group != nullptr) call.group_id = std::string(group->text);
    }
  }
  return batch;
}

void CommLinks::Add(int64_t rank, absl::string_view node,
                    const JsonValue& record) {
  const CommCall facts = ReadCommCall(node, record);
  Call call;
  call.rank = rank;
  call.node = std::string(node);
  call.op = facts.op;
  call.peer = facts.peer;
  call.group_ranks = facts.group_ranks;
  call.group_id = facts.group_id;
  if (call.group_id.empty() && !world_.empty()) {
    call.group_id = "world";
    call.group_ranks = world_;
  }
  if (call.op == "batch_isend_irecv") {
    call.batch = ReadCommBatch(record);
  }
  MakeKeys(&call);
  const size_t index = calls_.size();
  for (const std::string& key : call.keys) by_key_[{rank, key}] = index;
  by_node_[{rank, call.node}] = index;
  calls_.push_back(std::move(call));
}

// Calls are matched by their number: the k-th send to a rank belongs to the
// k-th receive there, and the k-th call of an operation in a group to that of
// the other members.
void CommLinks::MakeKeys(Call* call) {
  const auto next = [&](const std::string& family) {
    return ++counts_[{call->rank, family}];
  };
  if (call->op == "batch_isend_irecv") {
    for (const CommCall& item : call->batch) {
      const int64_t k =
          next(absl::StrCat("batch\t", item.op, *item.peer, item.group_id));
      call->keys.push_back(PeerKey(absl::StrCat("batch ", item.op), *item.peer,
                                   item.group_id, k));
    }
    return;
  }
  const OpRule* const rule = RuleOf(call->op);
  if (rule != nullptr && !rule->partner.empty()) {
    if (!call->peer.has_value()) return;
    const int64_t k = next(absl::StrCat(call->op, *call->peer));
    call->keys.push_back(PeerKey(call->op, *call->peer, "", k));
    return;
  }
  if (call->group_id.empty()) return;
  const std::string family = absl::StrCat(call->group_id, "\t", call->op);
  call->keys.push_back(absl::StrCat(family, "\t", next(family)));
}

CommLinks::Call* CommLinks::Lookup(int64_t rank, const std::string& key) {
  const auto it = by_key_.find({rank, key});
  return it == by_key_.end() ? nullptr : &calls_[it->second];
}

void CommLinks::Match() {
  for (Call& call : calls_) {
    if (!call.links.empty() || call.keys.empty()) continue;
    const OpRule* const rule = RuleOf(call.op);
    if (call.op == "batch_isend_irecv") {
      MatchBatch(&call);
    } else if (rule != nullptr && !rule->partner.empty()) {
      MatchPointToPoint(&call);
    } else {
      MatchCollective(&call);
    }
  }
}

void CommLinks::MatchPointToPoint(Call* call) {
  const OpRule* const rule = RuleOf(call->op);
  const std::string& key = call->keys[0];
  const int64_t k = std::stoll(key.substr(key.rfind('\t') + 1));
  Call* const other =
      Lookup(*call->peer, PeerKey(rule->partner, call->rank, "", k));
  if (other == nullptr || other->peer != call->rank) return;
  call->links = {{rule->kind, {{other->rank, other->node}}}};
  other->links = {{Opposite(rule->kind), {{call->rank, call->node}}}};
}

void CommLinks::MatchBatch(Call* call) {
  for (size_t i = 0; i < call->batch.size(); ++i) {
    const CommCall& item = call->batch[i];
    const OpRule* const rule = RuleOf(item.op);
    if (rule == nullptr || rule->partner.empty()) continue;
    const std::string& key = call->keys[i];
    const int64_t k = std::stoll(key.substr(key.rfind('\t') + 1));
    const Call* const other =
        Lookup(*item.peer, PeerKey(absl::StrCat("batch ", rule->partner),
                                   call->rank, item.group_id, k));
    if (other == nullptr) continue;
    call->links.push_back({rule->kind, {{other->rank, other->node}}});
  }
}

void CommLinks::MatchCollective(Call* call) {
  const OpRule* const rule = RuleOf(call->op);
  CommKind kind = CommKind::kBoth;
  if (rule != nullptr) {
    // Only the root's call determines the kind.
    if (call->peer != call->rank) return;
    kind = rule->kind;
  }
  CommLink link{kind, {}};
  for (const int64_t rank : call->group_ranks) {
    if (rank == call->rank) continue;
    Call* const other = Lookup(rank, call->keys[0]);
    if (other == nullptr) continue;
    link.peers.push_back({rank, other->node});
    if (rule != nullptr) {
      other->links = {{Opposite(kind), {{call->rank, call->node}}}};
    }
  }
  if (!link.peers.empty()) call->links = {std::move(link)};
}

const std::vector<CommLink>* CommLinks::Find(int64_t rank,
                                             absl::string_view node) const {
  const auto it = by_node_.find({rank, std::string(node)});
  return it == by_node_.end() ? nullptr : &calls_[it->second].links;
}

void CommLinks::ForEach(
    const std::function<void(int64_t, const std::string&,
                             const std::vector<CommLink>&)>& fn) const {
  for (const Call& call : calls_) {
    if (!call.links.empty()) fn(call.rank, call.node, call.links);
  }
}

}  // namespace rankprobe::analysis
