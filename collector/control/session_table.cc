// SPDX-License-Identifier: Apache-2.0
#include "collector/control/session_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/control/switch_ranks.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kForgetAfter = absl::Minutes(10);
constexpr size_t kMaxSentPlans = 64;
// One of this many sessions is kept for runs other than the one that holds the
// most.
constexpr size_t kKeptForOtherRuns = 8;

// Returns a key that no principal's name equals, because names have no zero
// byte.
std::string HolderOfRun(const v1::Identity& identity) {
  return absl::StrCat(absl::string_view("\0", 1), identity.run());
}

std::string RankKey(const v1::Identity& identity) {
  return identity.has_rank()
             ? absl::StrCat(identity.run(), std::string(1, '\0'), "r",
                            identity.rank())
             : "";
}

std::string ProcessKey(const v1::Identity& identity) {
  return absl::StrCat(identity.run(), std::string(1, '\0'), "p",
                      identity.incarnation());
}

// True for a process that has ended its session and begins another before the
// collector has seen the end. The job is compared because a refusal reveals pid
// and host to the peer, but not the job.
bool IsSameProcess(const v1::Identity& a, const v1::Identity& b) {
  return !a.job().empty() && a.job() == b.job() && a.pid() == b.pid() &&
         a.host() == b.host();
}

}  // namespace

std::string DescribeProcess(const v1::Identity& identity) {
  return absl::StrCat("process ", identity.pid(), " on ",
                      VisibleText(identity.host()));
}

v1::Event AgentSession::EventOf(v1::Event::Kind kind) const {
  v1::Event event;
  event.set_kind(kind);
  event.set_run(identity.run());
  *event.mutable_identity() = identity;
  event.set_step(step);
  return event;
}

AgentSession* SessionTable::Find(const std::string& id) {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : &it->second;
}

AgentSession* SessionTable::FindConnected(const std::string& id) {
  AgentSession* const agent = Find(id);
  return agent != nullptr && agent->connected ? agent : nullptr;
}

std::vector<const AgentSession*> SessionTable::SameAs(
    const v1::Identity& identity) const {
  std::set<std::string> ids;
  for (const std::string& key : {RankKey(identity), ProcessKey(identity)}) {
    const auto it = same_.find(key);
    if (it != same_.end()) ids.insert(it->second.begin(), it->second.end());
  }
  std::vector<const AgentSession*> same;
  same.reserve(ids.size());
  for (const std::string& id : ids) same.push_back(&sessions_.at(id));
  return same;
}

void SessionTable::Index(const AgentSession& agent) {
  if (agent.identity.has_rank())
    same_[RankKey(agent.identity)].insert(agent.id);
  same_[ProcessKey(agent.identity)].insert(agent.id);
}

void SessionTable::Unindex(const AgentSession& agent) {
  for (const std::string& key :
       {RankKey(agent.identity), ProcessKey(agent.identity)}) {
    const auto it = same_.find(key);
    if (it == same_.end()) continue;
    it->second.erase(agent.id);
    if (it->second.empty()) same_.erase(it);
  }
}

size_t SessionTable::CountHeld(const std::string& holder) const {
  const auto it = held_.find(holder);
  return it == held_.end() ? 0 : it->second;
}

void SessionTable::LetGo(const std::string& holder) {
  const auto it = held_.find(holder);
  if (it != held_.end() && --it->second == 0) held_.erase(it);
}

std::vector<AgentSession*> SessionTable::ConnectedOf(
    const std::string& run, const std::vector<int64_t>& ranks) {
  std::vector<AgentSession*> chosen;
  for (auto& [id, agent] : sessions_) {
    if (agent.connected && agent.identity.run() == run &&
        (ranks.empty() || (agent.identity.has_rank() &&
                           std::find(ranks.begin(), ranks.end(),
                                     agent.identity.rank()) != ranks.end())))
      chosen.push_back(&agent);
  }
  return chosen;
}

int64_t SessionTable::FurthestStep(const std::string& run) {
  const std::vector<AgentSession*> agents = ConnectedOf(run);
  std::vector<int64_t> steps;
  steps.reserve(agents.size());
  for (const AgentSession* agent : agents) steps.push_back(agent->step);
  return SwitchRanks::FurthestBelievable(std::move(steps));
}

absl::Status SessionTable::CheckRoom(const v1::Identity& identity,
                                     const Peer& peer) {
  if (sessions_.size() >= max_sessions_) {
    for (auto it = sessions_.begin(); it != sessions_.end();)
      it = it->second.connected ? std::next(it) : Forget(it);
    if (sessions_.size() >= max_sessions_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("more than ", max_sessions_, " sessions"));
    }
  }
  size_t held = CountHeld(peer.principal.name);
  size_t held_of_run = CountHeld(HolderOfRun(identity));
  // The session that this one replaces is not counted.
  for (const AgentSession* agent : SameAs(identity)) {
    if (!agent->connected ||
        agent->identity.incarnation() != identity.incarnation())
      continue;
    if (agent->peer.principal.name == peer.principal.name) --held;
    --held_of_run;
  }
  // No run can take all sessions, because any process may claim to be one of
  // its ranks.
  if (held_of_run >= max_sessions_ - max_sessions_ / kKeptForOtherRuns) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "run ", VisibleText(identity.run()), " holds ", held_of_run, " of ",
        max_sessions_,
        " sessions; the others are kept for other runs (rankprobed "
        "--max-sessions)"));
  }
  if (peer.anonymous || agents_ <= 1 ||
      held < std::max<size_t>(max_sessions_ / agents_, 1))
    return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(peer.principal.name, " holds ", held,
                   " sessions, its share of --max-sessions ", max_sessions_,
                   " among ", agents_, " agents of the token file"));
}

absl::Status SessionTable::CheckRankFree(const v1::Identity& identity,
                                         const std::string& self) const {
  if (!identity.has_rank()) return absl::OkStatus();
  for (const AgentSession* agent : SameAs(identity)) {
    if (agent->id == self || !agent->connected || !agent->identity.has_rank() ||
        agent->identity.rank() != identity.rank() ||
        agent->identity.incarnation() == identity.incarnation() ||
        IsSameProcess(agent->identity, identity)) {
      continue;
    }
    return absl::AlreadyExistsError(absl::StrCat(
        "rank ", identity.rank(), " of run ", identity.run(), " is claimed by ",
        DescribeProcess(agent->identity), ", connected since ",
        absl::FormatTime("%H:%M:%S UTC", agent->connected_at,
                         absl::UTCTimeZone()),
        ", and by ", DescribeProcess(identity),
        "; a job of its own needs a name of its own, by RANKPROBE_RUN or "
        "`rankprobe run --run NAME`"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> SessionTable::TakeOver(const v1::Identity& identity,
                                                   bool proved) {
  const std::vector<const AgentSession*> same = SameAs(identity);
  for (const AgentSession* agent : same) {
    if (!proved && agent->connected &&
        agent->identity.incarnation() == identity.incarnation()) {
      return absl::AlreadyExistsError(
          "this process is connected, and without a secret no process can "
          "prove to be it; try again when that connection has ended");
    }
  }
  std::string replaced;
  for (const AgentSession* agent : same) {
    if (agent->connected) {
      replaced = agent->id;
      if (agent->peer.end != nullptr) {
        agent->peer.end(absl::AbortedError(
            "another connection of this process has taken its place"));
      }
    }
    Forget(sessions_.find(agent->id));
  }
  return replaced;
}

AgentSession* SessionTable::Add(const std::string& id,
                                const v1::Identity& identity, Peer peer) {
  AgentSession& agent = sessions_[id];
  agent.id = id;
  agent.identity = identity;
  agent.peer = std::move(peer);
  Index(agent);
  ++held_[agent.peer.principal.name];
  ++held_[HolderOfRun(identity)];
  return &agent;
}

void SessionTable::SetIdentity(AgentSession* agent,
                               const v1::Identity& identity) {
  Unindex(*agent);
  agent->identity = identity;
  Index(*agent);
}

void SessionTable::Disconnect(AgentSession* agent) {
  if (!std::exchange(agent->connected, false)) return;
  LetGo(agent->peer.principal.name);
  LetGo(HolderOfRun(agent->identity));
}

SessionTable::Sessions::iterator SessionTable::Forget(
    Sessions::iterator agent) {
  Disconnect(&agent->second);
  Unindex(agent->second);
  return sessions_.erase(agent);
}

void SessionTable::ForgetGone(absl::Time now) {
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    const bool forget =
        !it->second.connected && now - it->second.last_heard > kForgetAfter;
    it = forget ? Forget(it) : std::next(it);
  }
}

std::vector<const AgentSession*> SessionTable::OthersThan(
    const AgentSession& speaker, bool same_file) {
  std::vector<const AgentSession*> others;
  if (speaker.peer.principal.ranks.empty()) return others;
  for (const AgentSession* agent : ConnectedOf(speaker.identity.run())) {
    if (agent->peer.principal == speaker.peer.principal ||
        (same_file && agent->file_state == speaker.file_state))
      continue;
    others.push_back(agent);
  }
  return others;
}

Reach SessionTable::ReachOf(const AgentSession& speaker) {
  Reach reach;
  if (OthersThan(speaker, /*same_file=*/false).empty()) return reach;
  reach.all = false;
  reach.domain = DomainOf(speaker.peer.principal);
  for (const AgentSession* agent : ConnectedOf(speaker.identity.run())) {
    if (agent->identity.has_rank() &&
        agent->peer.principal == speaker.peer.principal)
      reach.ranks.push_back(agent->identity.rank());
  }
  std::sort(reach.ranks.begin(), reach.ranks.end());
  return reach;
}

std::string SessionTable::DomainOf(const Principal& principal) {
  std::string domain = principal.name;
  // Includes the ranks: a token of the same name for other ranks may have
  // another holder.
  for (const auto& [first, last] : principal.ranks)
    absl::StrAppend(&domain, std::string(1, '\0'), first, "-", last);
  return domain;
}

uint64_t SessionTable::Send(const v1::Directive& directive,
                            const std::string& run, const Reach& reach) {
  uint64_t count = 0;
  for (const AgentSession* agent : ConnectedOf(run)) {
    if (!reach.all && DomainOf(agent->peer.principal) != reach.domain) continue;
    agent->sender(directive);
    ++count;
  }
  return count;
}

void SessionTable::SendPlan(AgentSession* agent,
                            const v1::Directive& directive) {
  if (directive.has_prepare() || directive.has_adopt()) {
    const uint64_t epoch = directive.has_prepare()
                               ? directive.prepare().plan().epoch()
                               : directive.adopt().plan().epoch();
    agent->sent_epoch = std::max(agent->sent_epoch, epoch);
    NoteSent(agent->identity, epoch);
  }
  agent->sender(directive);
}

void SessionTable::NoteSent(const v1::Identity& identity, uint64_t epoch) {
  if (!one_of_several_) return;
  // Epochs that were dropped are not checked.
  if (sent_plans_.size() >= 2 * max_sessions_) sent_plans_.clear();
  std::set<uint64_t>& epochs = sent_plans_[identity.incarnation()];
  epochs.insert(epoch);
  if (epochs.size() > kMaxSentPlans) epochs.erase(epochs.begin());
}

bool SessionTable::IsForeign(const v1::Identity& identity,
                             uint64_t epoch) const {
  if (!one_of_several_) return false;
  const auto sent = sent_plans_.find(identity.incarnation());
  return sent == sent_plans_.end() || !sent->second.contains(epoch);
}

}  // namespace rankprobe
