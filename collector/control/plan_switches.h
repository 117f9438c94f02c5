// SPDX-License-Identifier: Apache-2.0
// Switches of runs between plans: starts SwitchOperations, passes answers of ranks to them,
// saves and publishes agreed plans, and checks which plan each rank follows.
//
// Ownership: the control plane's. Threads: runs under its lock; the queue saves plans in the
// order of decisions. Failure: `done` gets the result, under the lock.
#ifndef RANKPROBE_COLLECTOR_CONTROL_PLAN_SWITCHES_H_
#define RANKPROBE_COLLECTOR_CONTROL_PLAN_SWITCHES_H_

#include "collector/control/control_core.h"
#include "collector/control/switch_operation.h"

namespace rankprobe {

class PlanSwitches {
 public:
  using Done = SwitchOperation::Done;

  explicit PlanSwitches(ControlCore* core) : core_(core) {}

  // ABORTED, if the run is not at `expected_epoch` (0: any) or another switch goes
  // on; NOT_FOUND, INVALID_ARGUMENT, FAILED_PRECONDITION (the step has passed).
  void Begin(RunState* run, SwitchOperation::Request request, Done done,
             uint64_t expected_epoch = 0)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // Calls off switches that a later request or edit replaces.
  static void CallOff(
      RunState* run,
      const std::function<bool(const SwitchOperation& op)>& is_old);
  void Tick(RunState* run, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);

  void OnPrepared(AgentSession* agent, RunState* run,
                  const v1::PlanPrepared& prepared)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  void OnApplied(AgentSession* agent, RunState* run,
                 const v1::PlanApplied& applied)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  static void OnLost(const std::string& session, RunState* run);
  // Holds what it says it follows against the run's plan of that epoch.
  void NotePlan(uint64_t epoch, const std::string& digest, const RunState& run,
                AgentSession* agent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);

  // Of a config.json that takes the place of the run's: whether dumping is on
  // under it, and until when.
  struct Switched {
    bool on = false;
    std::optional<int64_t> until;
  };
  Switched SwitchedBy(const RunState& run, const Plan& config) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // The plan (null: none) is the agent's from a step on that has not come, and
  // does then what the agent does not do now.
  static bool IsAhead(const AgentSession& agent, const CompiledPlan* plan);

 private:
  SwitchOperation::Actions ActionsFor(const std::string& run,
                                      const std::vector<int64_t>& ranks,
                                      const std::vector<std::string>& sessions);
  void Agree(const std::string& run, const std::vector<int64_t>& ranks,
             const std::vector<std::string>& sessions,
             const std::shared_ptr<const CompiledPlan>& plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // Brings a rank that did not follow a switch the plan in force for it.
  void Converge(const std::string& session, const std::string& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // Saves what is in force then, for the run or for `ranks`.
  void TakeBack(const std::string& run, const std::vector<int64_t>& ranks);
  // PlanSpec::from_first_step: now it is known.
  void FixFirstStep(RunState* run, const v1::PlanApplied& applied);

  ControlCore* const core_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_PLAN_SWITCHES_H_
