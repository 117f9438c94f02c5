// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/step_filter.h"

#include "common/filter/record_filter.h"

namespace rankprobe {

std::shared_ptr<const Plan> StepFilter::Adopt(const ActivePlan& active) {
  enabled_ = active.enabled && active.plan != nullptr;
  epoch_ = active.epoch;
  if (active.plan == nullptr || active.plan == plan_) return nullptr;
  filter_ = std::make_unique<CallFilter>(active.plan.get());
  return std::exchange(plan_, active.plan);
}

Verdict StepFilter::Ask(v1::CallTrace::Kind kind, absl::string_view entry) {
  if (watcher_ != nullptr) watcher_->OnCall(kind, entry);
  if (PlanHasWindows(*plan_)) {
    v1::CallTrace::Item* item = trace_.add_items();
    item->set_kind(kind);
    item->set_entry(entry.data(), entry.size());
  }
  switch (kind) {
    case v1::CallTrace::KIND_MODULE_BEGIN:
      return filter_->ModuleBegin(entry);
    case v1::CallTrace::KIND_MODULE_END:
      return filter_->ModuleEnd(entry);
    case v1::CallTrace::KIND_PARAMETERS_GRAD:
      return filter_->ParametersGrad(entry);
    default:
      return filter_->Api(entry);
  }
}

void StepFilter::MoveTrace(v1::CallTrace* out) {
  trace_.set_first(traced_);
  traced_ += static_cast<uint64_t>(trace_.items_size());
  *out = std::move(trace_);
  trace_.Clear();
}

void StepFilter::EndStep() {
  trace_.Clear();
  traced_ = 0;
  filter_->BeginStep();
}

}  // namespace rankprobe
