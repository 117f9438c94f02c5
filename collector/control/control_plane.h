// SPDX-License-Identifier: Apache-2.0
// The control plane of one collector: the roles over one ControlCore, and their
// clock tick. A client that needs one role takes that class instead.
//
// Ownership: one per collector; registry, archive and clock outlive it.
// Thread-safe.
// Failure: a bad request gets a status and changes nothing.
#ifndef RANKPROBE_COLLECTOR_CONTROL_CONTROL_PLANE_H_
#define RANKPROBE_COLLECTOR_CONTROL_CONTROL_PLANE_H_

#include <cstddef>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "collector/control/agent_audit.h"
#include "collector/control/agent_sessions.h"
#include "collector/control/config_edits.h"
#include "collector/control/control_core.h"
#include "collector/control/disk_queue.h"
#include "collector/control/explanations.h"
#include "collector/control/ingest_gate.h"
#include "collector/control/newcomers.h"
#include "collector/control/plan_requests.h"
#include "collector/control/plan_switches.h"
#include "collector/control/saved_runs.h"
#include "collector/control/trigger_rules.h"

namespace rankprobe {

class ControlPlane {
 public:
  using Options = ControlOptions;

  // If `registry` is null, no process is admitted and no plan can be switched.
  ControlPlane(const Options& options, RunRegistry* registry,
               ArchiveReader* archive, const Clock* clock)
      : core_(options, registry, archive, clock, &saves_),
        audit_(clock),
        saves_(options.own_thread) {}

  AgentSessions& agents() { return agents_; }
  IngestGate& gate() { return gate_; }
  PlanRequests& plans() { return plans_; }
  TriggerRules& triggers() { return triggers_; }
  Explanations& explanations() { return explanations_; }
  AgentAudit& audit() { return audit_; }
  v1::ListEventsResponse ListEvents(const v1::ListEventsRequest& request) const;

  // Advances deadlines; call it every few tens of milliseconds.
  void Tick();
  // Returns the number of runs in memory.
  size_t CountRuns();
  // Returns when all earlier decisions are saved.
  void WaitForSaves() { saves_.Wait(); }

 private:
  ControlCore core_;
  AgentAudit audit_;
  SavedRuns saved_{&core_};
  Newcomers newcomers_{&core_, &audit_, &saved_};
  PlanSwitches switches_{&core_};
  ConfigEdits edits_{&core_, &audit_, &saved_, &switches_};
  TriggerRules triggers_{&core_, &saved_, &switches_};
  Explanations explanations_{&core_, &saved_};
  PlanRequests plans_{&core_, &saved_, &switches_};
  IngestGate gate_{&core_, &triggers_};
  AgentSessions agents_{
      &core_, {&newcomers_, &switches_, &edits_, &triggers_, &explanations_}};
  absl::Time next_forgetting_ ABSL_GUARDED_BY(kControlLock) =
      absl::InfinitePast();
  // The last member, because its remaining tasks use the others.
  DiskQueue saves_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_CONTROL_PLANE_H_
