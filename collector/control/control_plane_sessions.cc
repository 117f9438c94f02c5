// Who may have which session: room, reconnects, ranks that become known, and
// what of it the audit log is told.
#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "collector/auth/secret.h"
#include "collector/control/control_plane.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Of a plan in the audit log; beyond it a digest stands for the text.
constexpr size_t kMaxAuditedConfigBytes = 4096;
// An agent cannot fill memory with what waits for the audit log.
constexpr size_t kMaxWaitingAudit = 1024;

}  // namespace

absl::Status ControlPlane::CheckRoom(const v1::Identity& identity,
                                     const Peer& peer) {
  if (agents_.size() >= options_.max_sessions) {
    for (auto it = agents_.begin(); it != agents_.end();) {
      it = it->second.connected ? std::next(it) : agents_.erase(it);
    }
    if (agents_.size() >= options_.max_sessions) {
      return absl::ResourceExhaustedError(
          absl::StrCat("more than ", options_.max_sessions, " sessions"));
    }
  }
  if (peer.anonymous || options_.agents <= 1) return absl::OkStatus();
  const size_t share =
      std::max<size_t>(options_.max_sessions / options_.agents, 1);
  const auto held =
      std::count_if(agents_.begin(), agents_.end(), [&](const auto& entry) {
        const Agent& agent = entry.second;
        return agent.connected &&
               agent.peer.principal.name == peer.principal.name &&
               agent.identity.incarnation() != identity.incarnation();
      });
  if (static_cast<size_t>(held) < share) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      peer.principal.name, " holds ", held,
      " sessions, its share of --max-sessions ", options_.max_sessions,
      " among ", options_.agents, " agents of the token file"));
}

absl::Status ControlPlane::TakeOver(const OpenedIncarnation& opened,
                                    Admission* admission) {
  const v1::Identity& identity = admission->identity;
  const auto same_process = [&](const Agent& agent) {
    return agent.identity.run() == identity.run() &&
           agent.identity.incarnation() == identity.incarnation();
  };
  for (const auto& [session, agent] : agents_) {
    if (!opened.proved && agent.connected && same_process(agent)) {
      return absl::AlreadyExistsError(
          "this process is connected, and without a secret nobody can prove "
          "to be it; try again when that connection has ended");
    }
  }
  for (auto it = agents_.begin(); it != agents_.end();) {
    const Agent& agent = it->second;
    const bool same_rank = agent.identity.run() == identity.run() &&
                           identity.has_rank() && agent.identity.has_rank() &&
                           agent.identity.rank() == identity.rank();
    if (!same_process(agent) && !same_rank) {
      ++it;
      continue;
    }
    if (agent.connected) {
      admission->replaced_session = it->first;
      if (agent.peer.end != nullptr) {
        agent.peer.end(absl::AbortedError(
            "another connection of this process has taken its place"));
      }
    }
    it = agents_.erase(it);
  }
  return absl::OkStatus();
}

AuditRecord ControlPlane::AuditOf(const Peer& peer, absl::string_view action,
                                  const std::string& run,
                                  const v1::PlanSpec& spec,
                                  absl::string_view detail) {
  AuditRecord record;
  record.actor = peer.principal.name;
  record.role = std::string(peer.anonymous ? RoleName(Role::kAgent)
                                           : RoleName(peer.principal.role));
  record.peer = peer.address;
  record.action = std::string(action);
  record.run = run;
  const std::string& config = spec.config_json();
  record.detail = absl::StrCat(detail, ", config ",
                               config.substr(0, kMaxAuditedConfigBytes));
  if (config.size() > kMaxAuditedConfigBytes) {
    absl::StrAppend(&record.detail, ".. (", config.size(), " bytes, SHA-256 ",
                    absl::BytesToHexString(Sha256(config)), ")");
  }
  record.epoch = spec.epoch();
  return record;
}

void ControlPlane::Audit(AuditRecord record, absl::string_view outcome) {
  if (audit_.size() >= kMaxWaitingAudit) {
    ++dropped_audit_;
    return;
  }
  record.outcome = std::string(outcome);
  audit_.push_back(std::move(record));
}

std::vector<AuditRecord> ControlPlane::TakeAudit() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(audit_, {});
}

void ControlPlane::OnRankKnown(const std::string& session,
                               const v1::RankKnown& known) {
  v1::Identity before, identity;
  const auto refuse = [](const absl::Status& why, const Agent& agent) {
    v1::Directive directive;
    directive.mutable_goodbye()->set_reason(std::string(why.message()));
    agent.sender(directive);
  };
  {
    absl::MutexLock lock(&mutex_);
    const auto it = agents_.find(session);
    if (it == agents_.end()) return;
    Agent& agent = it->second;
    agent.last_heard = MonotonicNow();
    before = identity = agent.identity;
    identity.set_rank(known.rank());
    identity.set_world_size(known.world_size());
    absl::Status status;
    if (identity.rank() < 0 || identity.rank() > kMaxRank)
      status = absl::InvalidArgumentError("rank out of range");
    status.Update(agent.peer.principal.MayBe(identity.run(), identity.rank()));
    status.Update(CheckRankFree(identity, session));
    if (!status.ok()) return refuse(status, agent);
    // Nobody else may claim it meanwhile.
    agent.identity = identity;
  }
  // Outside the lock: this waits for the disk.
  const absl::Status stored = store_->OpenIncarnation(identity).status();
  if (stored.ok()) return;
  absl::MutexLock lock(&mutex_);
  const auto it = agents_.find(session);
  if (it == agents_.end()) return;
  it->second.identity = before;
  refuse(stored, it->second);
}

uint64_t ControlPlane::CountDroppedAudit() const {
  absl::MutexLock lock(&mutex_);
  return dropped_audit_;
}

absl::StatusOr<ControlPlane::SessionInfo> ControlPlane::Find(
    const std::string& session, const Principal& principal) const {
  absl::MutexLock lock(&mutex_);
  const auto it = agents_.find(session);
  if (it == agents_.end() || !it->second.connected ||
      it->second.peer.principal != principal)
    return absl::NotFoundError("no such session");
  return SessionInfo{it->second.identity, it->second.stored_principal};
}

}  // namespace rankprobe
