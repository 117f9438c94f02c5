// SPDX-License-Identifier: Apache-2.0
// Requests of operators: switch dumping on or off, set a config, read the one
// in force.
//
// Ownership: the control plane's. Thread-safe; reads the disk and parses
// without the lock.
// Failure: a status in `done`, which runs in the call or later, under the lock.
#ifndef RANKPROBE_COLLECTOR_CONTROL_PLAN_REQUESTS_H_
#define RANKPROBE_COLLECTOR_CONTROL_PLAN_REQUESTS_H_

#include "collector/control/control_core.h"
#include "collector/control/plan_switches.h"
#include "collector/control/saved_runs.h"

namespace rankprobe {

class PlanRequests {
 public:
  PlanRequests(ControlCore* core, SavedRuns* saved, PlanSwitches* switches)
      : core_(core), saved_(saved), switches_(switches) {}

  // `who` names the operator in the plan.
  void SetDumpEnable(const v1::SetDumpEnableRequest& request,
                     PlanSwitches::Done done, const std::string& who = "");
  void SetConfig(const v1::SetConfigRequest& request, PlanSwitches::Done done,
                 const std::string& who = "");
  absl::StatusOr<v1::GetConfigResponse> GetConfig(const std::string& run);

 private:
  ControlCore* const core_;
  SavedRuns* const saved_;
  PlanSwitches* const switches_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_PLAN_REQUESTS_H_
