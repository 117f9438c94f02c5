// SPDX-License-Identifier: Apache-2.0
#include "collector/control/agent_audit.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "collector/auth/secret.h"

namespace rankprobe {
namespace {

// Limit for records that wait for the audit log, so that an agent cannot fill
// memory with them.
constexpr size_t kMaxWaiting = 1024;
// Limit for the text of a plan; a longer one is replaced by its digest.
constexpr size_t kMaxConfigBytes = 4096;

}  // namespace

AuditRecord AgentAudit::Describe(const Peer& peer, absl::string_view action,
                                 const std::string& run,
                                 const v1::PlanSpec& spec,
                                 absl::string_view detail) {
  AuditRecord record;
  record.actor = peer.principal.name;
  record.role = std::string(
      RoleName(peer.anonymous ? Role::kAgent : peer.principal.role));
  record.peer = peer.address;
  record.action = std::string(action);
  record.run = run;
  const std::string& config = spec.config_json();
  record.detail =
      absl::StrCat(detail, ", config ", config.substr(0, kMaxConfigBytes));
  if (config.size() > kMaxConfigBytes) {
    absl::StrAppend(&record.detail, ".. (", config.size(), " bytes, SHA-256 ",
                    absl::BytesToHexString(Sha256(config)), ")");
  }
  record.epoch = spec.epoch();
  return record;
}

void AgentAudit::Add(AuditRecord record, absl::string_view outcome) {
  const absl::Time now = absl::FromUnixNanos(clock_->MonotonicNanos());
  absl::MutexLock lock(&mutex_);
  if (records_.size() >= kMaxWaiting || !budget_.HasOne(record.actor, now)) {
    ++dropped_;
    return;
  }
  budget_.Take(record.actor, 1, now);
  record.outcome = std::string(outcome);
  records_.push_back(std::move(record));
}

}  // namespace rankprobe
