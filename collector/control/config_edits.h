// SPDX-License-Identifier: Apache-2.0
// Edits of config files while the job runs (docs/design.md, "Who decides"):
// collects them from ranks and makes the newest one the plan of the run.
//
// Ownership: the control plane's. Threads: OnConfigEdited is thread-safe and
// waits for the disk; the others run under the lock. Failure: reported as
// events and in the audit log; an unusable edit keeps dumping off.
#ifndef RANKPROBE_COLLECTOR_CONTROL_CONFIG_EDITS_H_
#define RANKPROBE_COLLECTOR_CONTROL_CONFIG_EDITS_H_

#include "collector/control/agent_audit.h"
#include "collector/control/control_core.h"
#include "collector/control/plan_switches.h"
#include "collector/control/saved_runs.h"

namespace rankprobe {

class ConfigEdits {
 public:
  ConfigEdits(ControlCore* core, AgentAudit* audit, SavedRuns* saved,
              PlanSwitches* switches)
      : core_(core), audit_(audit), saved_(saved), switches_(switches) {}

  void OnConfigEdited(const std::string& session,
                      const v1::ConfigEdited& untrusted);
  // Begins to make the waiting edit the plan of the run, if its time has come.
  void TryEdit(RunState* run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // Called when a rank that an edit waited for has disconnected.
  void TryEditSetAside(RunState* run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);

 private:
  // Returns whether the edit may become the run's plan; otherwise sets it aside
  // until the other ranks have read the same, and reports that.
  bool IsOfAll(const AgentSession& speaker, RunState* run, FileEdit* edit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  void TakeEdit(const AgentSession& speaker, RunState* run, FileEdit edit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  void EditDone(const std::string& run, FileEdit edit,
                const absl::StatusOr<v1::SwitchResult>& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // Reports the outcome of an edit, with the plan that decided it.
  void NoteEdit(const RunState& run, const FileEdit& edit,
                const v1::PlanSpec& plan, const std::string& outcome);

  ControlCore* const core_;
  AgentAudit* const audit_;
  SavedRuns* const saved_;
  PlanSwitches* const switches_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_CONFIG_EDITS_H_
