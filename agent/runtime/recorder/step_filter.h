// SPDX-License-Identifier: Apache-2.0
// The plan that the step in progress is recorded under, its filter, and the
// trace of the filter's questions.
//
// Ownership: the RecorderCore's. Not thread-safe: guarded by its lock. Never
// fails.
#ifndef RANKPROBE_AGENT_RUNTIME_RECORDER_STEP_FILTER_H_
#define RANKPROBE_AGENT_RUNTIME_RECORDER_STEP_FILTER_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "agent/runtime/session/session.h"
#include "agent/runtime/triggers/trigger_watcher.h"
#include "common/filter/call_filter.h"

namespace rankprobe {

class StepFilter {
 public:
  // `watcher` may be null.
  StepFilter(std::shared_ptr<const Plan> plan, TriggerWatcher* watcher)
      : watcher_(watcher),
        plan_(std::move(plan)),
        filter_(std::make_unique<CallFilter>(plan_.get())) {}

  const Plan& plan() const { return *plan_; }
  const std::shared_ptr<const Plan>& shared_plan() const { return plan_; }
  uint64_t epoch() const { return epoch_; }
  // Whether the plan that was adopted last permits recording.
  bool enabled() const { return enabled_; }
  // Whether entries of construct.json are recorded.
  bool wants_edges() const {
    return plan_->extra_info && plan_->RecordsModules();
  }
  bool WantsPayload(absl::string_view entry) const {
    return filter_->WantsPayload(entry);
  }

  // Returns the plan that was replaced, or null if this one is already in
  // force.
  std::shared_ptr<const Plan> Adopt(const ActivePlan& active);
  // Returns the filter's verdict. The question is stored for Explain and, under
  // plans with windows, sent before the next call.
  Verdict Ask(v1::CallTrace::Kind kind, absl::string_view entry);
  bool has_trace() const { return !trace_.items().empty(); }
  void MoveTrace(v1::CallTrace* out);
  void EndStep();

 private:
  TriggerWatcher* const watcher_;
  std::shared_ptr<const Plan> plan_;
  uint64_t epoch_ = 0;
  bool enabled_ = false;
  std::unique_ptr<CallFilter> filter_;
  v1::CallTrace trace_;
  uint64_t traced_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_STEP_FILTER_H_
