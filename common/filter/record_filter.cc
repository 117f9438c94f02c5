// SPDX-License-Identifier: Apache-2.0
#include "common/filter/record_filter.h"

#include <utility>

#include "common/records/entry_names.h"

namespace rankprobe {
namespace {

// Limit of entries in one step; beyond it windows count as open.
constexpr size_t kMaxVerdicts = 1 << 20;

}  // namespace

bool PlanHasWindows(const Plan& plan) {
  return !plan.scope.empty() || plan.HasListWindows();
}

RecordFilter::RecordFilter(std::shared_ptr<const Plan> plan)
    : plan_(std::move(plan)), filter_(plan_.get()) {}

void RecordFilter::Replay(const v1::CallTrace& untrusted) {
  if (untrusted.first() != next_) gap_ = true;
  next_ = untrusted.first() + static_cast<uint64_t>(untrusted.items_size());
  replays_ = true;
  if (gap_) return;
  ReplayTrace(untrusted, &filter_,
              [this](const v1::CallTrace::Item& item, Verdict verdict) {
                if (verdicts_.size() >= kMaxVerdicts) {
                  gap_ = true;
                } else {
                  verdicts_[item.entry()] = verdict;
                }
              });
}

Verdict RecordFilter::CheckSections(const v1::CallPhase& call) const {
  const DataMode& mode = plan_->data_mode;
  if (!mode.input &&
      (call.has_input_args() || call.has_input_kwargs() || call.has_input()))
    return Verdict::kDataMode;
  if (!mode.output && call.has_output()) return Verdict::kDataMode;
  return Verdict::kKeep;
}

Verdict RecordFilter::Check(const v1::CallPhase& call) const {
  // Task structure has no values.
  if (!plan_->RecordsValues()) return Verdict::kLevel;
  const bool debug = call.kind() == v1::CALL_KIND_DEBUG;
  if (debug && plan_->Monitors()) return Verdict::kKeep;
  if (debug || plan_->RecordsSaved()) {
    return debug && plan_->RecordsSaved() ? Verdict::kKeep : Verdict::kLevel;
  }
  std::string name = call.entry();
  Verdict verdict;
  if (call.kind() == v1::CALL_KIND_PARAMETERS_GRAD) {
    name = std::string(ModuleOfEntry(name));
    verdict = filter_.CouldKeepParametersGrad();
  } else {
    const bool is_module = call.kind() == v1::CALL_KIND_MODULE_FORWARD ||
                           call.kind() == v1::CALL_KIND_MODULE_BACKWARD;
    verdict = filter_.CouldKeep(name, is_module);
  }
  if (replays_ && !gap_) {
    const auto it = verdicts_.find(name);
    if (it != verdicts_.end()) {
      verdict = it->second;
    } else if (verdict == Verdict::kKeep) {
      // Agents send the trace before the calls, so a call that is not in it
      // was not passed by their filter.
      verdict = Verdict::kScope;
    }
  }
  // Modules that the user selected (module_dump) are recorded at L1 too.
  if (verdict == Verdict::kLevel && plan_->RecordsApis() &&
      call.kind() != v1::CALL_KIND_API_FORWARD &&
      call.kind() != v1::CALL_KIND_API_BACKWARD)
    verdict = Verdict::kKeep;
  return verdict == Verdict::kKeep ? CheckSections(call) : verdict;
}

}  // namespace rankprobe
