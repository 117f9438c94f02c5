// SPDX-License-Identifier: Apache-2.0
// A run in memory: its plans, triggers, file edits and switches in progress.
//
// Ownership: ControlCore's. Not thread-safe: guarded by its lock. Never fails.
#ifndef RANKPROBE_COLLECTOR_CONTROL_RUN_STATE_H_
#define RANKPROBE_COLLECTOR_CONTROL_RUN_STATE_H_

#include <list>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "collector/control/reference_budget.h"
#include "collector/control/run_edits.h"
#include "collector/control/run_plans.h"
#include "collector/control/run_triggers.h"
#include "collector/control/switch_operation.h"

namespace rankprobe {

struct RunState {
  std::string name;
  absl::Time last_used = absl::InfinitePast();
  // The run has a row in the store.
  bool stored = false;
  RunTriggers triggers;
  RunPlans plans;
  RunEdits edits;
  std::list<std::shared_ptr<SwitchOperation>> switches;
  ReferenceBudget reference;

  // Returns the last config of an operator or a file, even while a trigger
  // records with another one.
  std::string OperatorConfig() const {
    const auto plan = plans.ForAll();
    if (plan == nullptr) return std::string(DefaultConfigJson());
    return plan->spec.cause().empty() ? plan->spec.config_json()
                                      : plan->spec.operator_config_json();
  }
  void ForgetFinishedSwitches() {
    switches.remove_if([](const auto& op) { return op->finished(); });
  }
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_RUN_STATE_H_
