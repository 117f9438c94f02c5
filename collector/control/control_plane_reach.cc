// SPDX-License-Identifier: Apache-2.0
// ControlPlane: whom the word of a process reaches. Whoever holds a token that is
// bound to ranks answers for these, not for what others record
// (docs/security.md, "Who a rank speaks for").
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collector/control/control_plane.h"
#include "common/base/step_range.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxSentPlans = 64;

// In a line.
constexpr size_t kMaxNamedOthers = 8;

}  // namespace

std::string ControlPlane::DomainOf(const Principal& principal) {
  std::string domain = principal.name;
  // Not shared with a token of the same name for other ranks: who holds that
  // is somebody else.
  for (const auto& [first, last] : principal.ranks)
    absl::StrAppend(&domain, std::string(1, '\0'), first, "-", last);
  return domain;
}

std::vector<const ControlPlane::Agent*> ControlPlane::OthersThan(
    const Agent& speaker, bool same_file) const {
  std::vector<const Agent*> others;
  if (speaker.peer.principal.ranks.empty()) return others;
  for (const auto& [session, agent] : agents_) {
    if (!agent.connected || agent.identity.run() != speaker.identity.run() ||
        agent.peer.principal == speaker.peer.principal)
      continue;
    if (same_file && agent.file_state == speaker.file_state) continue;
    others.push_back(&agent);
  }
  return others;
}

ControlPlane::Reach ControlPlane::ReachOf(const Agent& speaker) const {
  Reach reach;
  if (OthersThan(speaker, /*same_file=*/false).empty()) return reach;
  reach.all = false;
  reach.domain = DomainOf(speaker.peer.principal);
  for (const auto& [session, agent] : agents_) {
    if (agent.connected && agent.identity.has_rank() &&
        agent.identity.run() == speaker.identity.run() &&
        agent.peer.principal == speaker.peer.principal)
      reach.ranks.push_back(agent.identity.rank());
  }
  std::sort(reach.ranks.begin(), reach.ranks.end());
  return reach;
}

bool ControlPlane::IsOfAll(const Agent& speaker, Run* run, FileEdit* edit) {
  std::vector<const Agent*> others = OthersThan(speaker, /*same_file=*/true);
  std::sort(others.begin(), others.end(), [](const Agent* a, const Agent* b) {
    return std::make_pair(a->identity.rank(), a->identity.pid()) <
           std::make_pair(b->identity.rank(), b->identity.pid());
  });
  if (others.empty()) {
    // As old as the first reading of it.
    for (const auto& [session, agent] : agents_) {
      if (!edit->state.empty() && agent.connected &&
          agent.identity.run() == run->name && agent.file_state == edit->state)
        edit->seen_epoch = std::min(edit->seen_epoch, agent.file_seen);
    }
    return true;
  }
  std::vector<std::string> names;
  for (const Agent* other : others) {
    if (names.size() == kMaxNamedOthers) break;
    names.push_back(other->identity.has_rank()
                        ? absl::StrCat("rank ", other->identity.rank())
                        : absl::StrCat("proc", other->identity.pid()));
  }
  std::string who = absl::StrJoin(names, ", ");
  if (others.size() > names.size())
    absl::StrAppend(&who, " and ", others.size() - names.size(), " others");
  v1::Event told = EventOf(
      edit->fault.empty() ? v1::Event::KIND_SWITCHED : v1::Event::KIND_ERROR,
      speaker);
  told.set_step(edit->step);
  told.set_detail(
      edit->fault.empty()
          ? absl::StrCat(edit->who, " was edited")
          : absl::StrCat(edit->who, " cannot be used: ", edit->fault));
  told.set_outcome(absl::StrCat(
      "nothing changes before ", who, " read",
      others.size() == 1 && names.size() == 1 ? "s" : "",
      edit->fault.empty() ? " the same" : " such a file, too",
      ": the token of this rank is bound to ranks, theirs is another"));
  AuditRecord audit = edit->audit;
  if (run->edits.SetAside(std::move(*edit))) {
    Audit(std::move(audit), absl::StrCat("WAITING: for the same of ", who));
    EmitEvent(std::move(told));
  }
  return false;
}

void ControlPlane::TryEditSetAside(Run* run) {
  if (!run->edits.aside().has_value()) return;
  const auto it = agents_.find(run->edits.aside()->session);
  // It was the word of that rank, and is not any more.
  if (it == agents_.end() || !it->second.connected ||
      it->second.file_state != run->edits.aside()->state) {
    run->edits.TakeAside();
    return;
  }
  if (!OthersThan(it->second, /*same_file=*/true).empty()) return;
  TakeEdit(it->second, run, *run->edits.TakeAside());
}

void ControlPlane::NoteSent(const v1::Identity& identity, uint64_t epoch) {
  if (!options_.one_of_several) return;
  // What is forgotten is not checked.
  if (sent_plans_.size() >= 2 * options_.max_sessions) sent_plans_.clear();
  std::set<uint64_t>& epochs = sent_plans_[identity.incarnation()];
  epochs.insert(epoch);
  if (epochs.size() > kMaxSentPlans) epochs.erase(epochs.begin());
}

bool ControlPlane::IsForeign(const v1::Identity& identity,
                             uint64_t epoch) const {
  if (!options_.one_of_several) return false;
  const auto sent = sent_plans_.find(identity.incarnation());
  return sent == sent_plans_.end() || !sent->second.contains(epoch);
}

void ControlPlane::SendTo(Agent* agent, const v1::Directive& directive) {
  if (directive.has_prepare()) {
    agent->sent_epoch =
        std::max(agent->sent_epoch, directive.prepare().plan().epoch());
    NoteSent(agent->identity, directive.prepare().plan().epoch());
  } else if (directive.has_adopt()) {
    agent->sent_epoch =
        std::max(agent->sent_epoch, directive.adopt().plan().epoch());
    NoteSent(agent->identity, directive.adopt().plan().epoch());
  }
  agent->sender(directive);
}

uint64_t ControlPlane::SendTo(const Reach& reach, const std::string& run,
                              const v1::Directive& directive) {
  uint64_t count = 0;
  for (auto& [session, agent] : agents_) {
    if (!agent.connected || agent.identity.run() != run ||
        (!reach.all && DomainOf(agent.peer.principal) != reach.domain))
      continue;
    agent.sender(directive);
    ++count;
  }
  return count;
}

}  // namespace rankprobe
