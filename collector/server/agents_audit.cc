// SPDX-License-Identifier: Apache-2.0
#include "collector/server/agents_audit.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/auth/audit_log.h"

namespace rankprobe {

void AgentsAudit::Write() {
  if (batch_waits_) return;
  std::vector<AuditRecord> records = control_->audit().Take();
  const uint64_t dropped = control_->audit().CountDropped();
  if (dropped > reported_drops_) {
    if (reported_drops_ == 0) {
      logger_->Log(Logger::Severity::kWarning, "audit_dropped",
                   {{"lines", absl::StrCat(dropped)},
                    {"why",
                     "agents acted more often than is audited, or the disk was "
                     "too slow; such actions are only counted from now on, in "
                     "audit.jsonl and the metrics"}});
    }
    AuditRecord gap;
    gap.actor = gap.role = AuditLog::kOwnRole;
    gap.action = "Dropped";
    gap.detail =
        absl::StrCat(dropped - reported_drops_, " lines of agents' actions");
    gap.outcome =
        "RESOURCE_EXHAUSTED: more than is audited of agents, or the disk was "
        "too slow";
    records.push_back(std::move(gap));
    reported_drops_ = dropped;
  }
  if (records.empty()) return;
  batch_waits_ = true;
  queue_->Add([this, records = std::move(records)] {
    for (const AuditRecord& record : records) auditor_->Write(record);
    batch_waits_ = false;
  });
}

void AgentsAudit::Drain() {
  control_->WaitForSaves();
  queue_->Wait();
  Write();
  queue_->Wait();
}

}  // namespace rankprobe
