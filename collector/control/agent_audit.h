// SPDX-License-Identifier: Apache-2.0
// Audit records of what agents did, until the server takes them. Each principal
// may cause a burst of records and a rate after that; further ones are counted.
// On an open port all agents are one principal.
//
// Ownership: the control plane's; the clock outlives it. Thread-safe, never
// waits or fails.
#ifndef RANKPROBE_COLLECTOR_CONTROL_AGENT_AUDIT_H_
#define RANKPROBE_COLLECTOR_CONTROL_AGENT_AUDIT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "collector/auth/audit_log.h"
#include "collector/control/principal_budget.h"
#include "collector/control/session_table.h"
#include "common/base/clock.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

class AgentAudit {
 public:
  explicit AgentAudit(const Clock* clock) : clock_(clock) {}

  // Returns a record without an outcome: an agent changed the plan of its run,
  // or tried to. Computes the digest of a long config, so do not call it under
  // a lock.
  static AuditRecord Describe(const Peer& peer, absl::string_view action,
                              const std::string& run, const v1::PlanSpec& spec,
                              absl::string_view detail);
  void Add(AuditRecord record, absl::string_view outcome);
  // Returns the records since the last call.
  std::vector<AuditRecord> Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(records_, {});
  }
  // Returns the number of records beyond a principal's budget, or not taken in
  // time.
  uint64_t CountDropped() const {
    absl::MutexLock lock(&mutex_);
    return dropped_;
  }

 private:
  // The burst is as large as the number of runs that a principal may begin,
  // each of which has a line.
  static constexpr double kBurst = 1024;
  static constexpr double kLinesPerSecond = 2;

  const Clock* const clock_;
  mutable absl::Mutex mutex_;
  PrincipalBudget budget_ ABSL_GUARDED_BY(mutex_){kBurst, kLinesPerSecond};
  std::vector<AuditRecord> records_ ABSL_GUARDED_BY(mutex_);
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_AGENT_AUDIT_H_
