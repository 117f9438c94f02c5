// SPDX-License-Identifier: Apache-2.0
// Hellos of processes that have no session yet: checks them, registers the
// incarnation, and reads from the disk the run, the rank's plan and other
// processes of the same rank. The first process with a config gives a new run
// its plan.
//
// A new run's row and plan are on disk before the Welcome, because a restarted
// collector needs them. A Hello therefore writes, and each principal has a
// budget of new runs.
//
// Ownership: the control plane's. Thread-safe; waits for the disk, not under a
// lock.
// Failure: a status.
#ifndef RANKPROBE_COLLECTOR_CONTROL_NEWCOMERS_H_
#define RANKPROBE_COLLECTOR_CONTROL_NEWCOMERS_H_

#include "collector/control/agent_audit.h"
#include "collector/control/control_core.h"
#include "collector/control/principal_budget.h"
#include "collector/control/saved_runs.h"

namespace rankprobe {

class Newcomers {
 public:
  struct Known {
    OpenedIncarnation opened;
    // Saved for this rank alone; null if there is none.
    std::shared_ptr<const CompiledPlan> own_plan;
    // Other processes that are rank 0, or have no rank, if this one is the
    // same.
    std::vector<v1::IncarnationRow> others;
  };

  Newcomers(ControlCore* core, AgentAudit* audit, SavedRuns* saved)
      : core_(core),
        audit_(audit),
        saved_(saved),
        budget_(static_cast<double>(core->options.new_runs), kRunsPerSecond) {}

  // Errors are those of AgentSessions::Admit.
  absl::StatusOr<Known> Read(const v1::Hello& hello, const Peer& peer);

  // Returns the connected process, or the last one that ended in order and left
  // records.
  std::optional<v1::OtherProcess> NewestOf(
      const std::vector<v1::IncarnationRow>& others) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);

 private:
  static constexpr double kRunsPerSecond = 0.1;

  // Checks the Hello against memory only.
  absl::Status Check(const v1::Hello& hello, const Peer& peer);
  // Takes a new run from the principal's budget.
  absl::Status BeginRun(const std::string& run, const Peer& peer);
  // Returns whether the store does not have the run.
  bool IsNewRun(const std::string& run);
  // Gives a run without a plan the plan of this Hello, and saves it.
  absl::Status AdoptPlanOf(const v1::Hello& hello, const Peer& peer);
  std::vector<v1::IncarnationRow> ReadOthers(const v1::Identity& self) const;

  ControlCore* const core_;
  AgentAudit* const audit_;
  SavedRuns* const saved_;
  // Held from the adoption of a run's first plan until it is saved; never
  // acquired while the control plane's lock is held.
  absl::Mutex adopt_mutex_ ABSL_ACQUIRED_BEFORE(kControlLock);
  PrincipalBudget budget_ ABSL_GUARDED_BY(kControlLock);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_NEWCOMERS_H_
