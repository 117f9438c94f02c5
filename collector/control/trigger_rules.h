// SPDX-License-Identifier: Apache-2.0
// Triggers of runs: stores their rules, evaluates those that compare ranks, and
// acts when a rule fires or when differences from a reference reach
// tensor.diff_nums.
//
// Ownership: the control plane's. Threads: Set, Get and ShipFlight are
// thread-safe and read the disk; the others run under the lock. Failure: a
// status; actions report as events.
#ifndef RANKPROBE_COLLECTOR_CONTROL_TRIGGER_RULES_H_
#define RANKPROBE_COLLECTOR_CONTROL_TRIGGER_RULES_H_

#include "collector/control/control_core.h"
#include "collector/control/plan_switches.h"
#include "collector/control/saved_runs.h"

namespace rankprobe {

class TriggerRules {
 public:
  TriggerRules(ControlCore* core, SavedRuns* saved, PlanSwitches* switches)
      : core_(core), saved_(saved), switches_(switches) {}

  // Returns the number of ranks it was sent to.
  absl::StatusOr<uint64_t> Set(const v1::SetTriggersRequest& request);
  absl::StatusOr<v1::TriggerSpec> Get(const std::string& run);
  absl::StatusOr<uint64_t> ShipFlight(const v1::ShipFlightRequest& request);

  void OnFired(const AgentSession& agent, RunState* run,
               const v1::TriggerFired& fired)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  void OnReplica(const AgentSession& agent, RunState* run,
                 const v1::ReplicaDigest& replica)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // Handles a difference from a reference (tensor.bench_path).
  void OnDifference(const AgentSession& agent, RunState* run,
                    const v1::ReferenceDifference& untrusted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // Switches off plans whose tensor.diff_nums is reached, as soon as no other
  // switch is in progress.
  void EndSpentPlans(RunState* run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // Counts bytes for the run's byte budget.
  void NoteBytes(RunState* run, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  void CheckSilence(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);

 private:
  void Execute(RunState* run, const RunTriggers::Fired& fired,
               const Reach& reach) ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  bool DumpingNow(const RunState& run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);

  ControlCore* const core_;
  SavedRuns* const saved_;
  PlanSwitches* const switches_;
  absl::Time next_silence_check_ ABSL_GUARDED_BY(kControlLock);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_TRIGGER_RULES_H_
