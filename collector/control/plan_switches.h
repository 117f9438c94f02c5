// SPDX-License-Identifier: Apache-2.0
// Switches of runs between plans: starts SwitchOperations, passes answers of
// ranks to them, saves and publishes agreed plans, and checks which plan each
// rank follows.
//
// Ownership: the control plane's. Threads: runs under its lock; the queue saves
// plans in the order of decisions. Failure: `done` gets the result, under the
// lock.
#ifndef RANKPROBE_COLLECTOR_CONTROL_PLAN_SWITCHES_H_
#define RANKPROBE_COLLECTOR_CONTROL_PLAN_SWITCHES_H_

#include "collector/control/control_core.h"
#include "collector/control/switch_operation.h"

namespace rankprobe {

class PlanSwitches {
 public:
  using Done = SwitchOperation::Done;

  explicit PlanSwitches(ControlCore* core) : core_(core) {}

  // Begins a switch. ABORTED if the run is not at `expected_epoch` (0: any) or
  // another switch is in progress; NOT_FOUND; INVALID_ARGUMENT;
  // FAILED_PRECONDITION (the step has passed).
  void Begin(RunState* run, SwitchOperation::Request request, Done done,
             uint64_t expected_epoch = 0)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // Cancels switches that a later request or edit replaces.
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
  // Compares the plan that a rank says it follows with the run's plan of that
  // epoch.
  void NotePlan(uint64_t epoch, const std::string& digest, const RunState& run,
                AgentSession* agent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);

  // For a config.json that replaces the run's: whether dumping is on under it,
  // and until when.
  struct Switched {
    bool on = false;
    std::optional<int64_t> until;
  };
  Switched SwitchedBy(const RunState& run, const Plan& config) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // Returns whether the plan (null: none) applies to the agent only from a
  // later step, and changes what the agent does now.
  static bool IsAhead(const AgentSession& agent, const CompiledPlan* plan);

 private:
  SwitchOperation::Actions ActionsFor(const std::string& run,
                                      const std::vector<int64_t>& ranks,
                                      const std::vector<std::string>& sessions);
  void Agree(const std::string& run, const std::vector<int64_t>& ranks,
             const std::vector<std::string>& sessions,
             const std::shared_ptr<const CompiledPlan>& plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // Sends a rank that did not follow a switch the plan in force for it.
  void Converge(const std::string& session, const std::string& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(kControlLock);
  // Saves the plan that is in force when the save runs, for the run or for
  // `ranks`.
  void TakeBack(const std::string& run, const std::vector<int64_t>& ranks);
  // Resolves PlanSpec::from_first_step once a rank has reported the step.
  void FixFirstStep(RunState* run, const v1::PlanApplied& applied);

  ControlCore* const core_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_PLAN_SWITCHES_H_
