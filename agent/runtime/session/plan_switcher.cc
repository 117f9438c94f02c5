// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/plan_switcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/step_range.h"
#include "common/config/api_list.h"
#include "common/config/plan_digest.h"

namespace rankprobe {
namespace {

// Committed plans whose step has not come; beyond this number the oldest are
// dropped.
constexpr size_t kMaxAgreed = 16;

absl::StatusOr<std::shared_ptr<const Plan>> PlanOf(const v1::PlanSpec& spec) {
  // A part of a plan would be a different plan.
  if (!spec.GetReflection()->GetUnknownFields(spec).empty()) {
    return absl::InvalidArgumentError(
        "the plan has fields that this agent does not know: the collector is "
        "of "
        "a newer version");
  }
  RP_ASSIGN_OR_RETURN(ConfigResult parsed, ParseConfig(spec.config_json(), {}));
  if (!spec.api_list().empty())
    RP_RETURN_IF_ERROR(ParseApiList(spec.api_list()).status());
  parsed.plan.api_list = spec.api_list();
  return std::make_shared<const Plan>(std::move(parsed.plan));
}

}  // namespace

ActivePlan PlanSwitcher::Current() const {
  ActivePlan active;
  if (edit_.has_value()) {
    // Epoch 0: the process' own plan.
    active.plan = edit_->plan;
    active.enabled = edit_->enabled;
  } else {
    active.plan = current_.plan;
    active.epoch = current_.epoch;
    active.enabled = current_.enabled &&
                     (current_.for_steps == 0 ||
                      step_ < current_.effective_at_step + current_.for_steps);
  }
  if (active.plan != nullptr && Refuses(*active.plan)) active.enabled = false;
  return active;
}

bool PlanSwitcher::Refuses(const Plan& plan) const {
  return !why_not_recording_.empty() &&
         (!refuses_only_apis_ || plan.RecordsApis());
}

ActivePlan PlanSwitcher::BeginStep(int64_t step,
                                   std::optional<v1::PlanApplied>* applied) {
  absl::MutexLock lock(&mutex_);
  step_ = step;
  // The newest plan whose step has come replaces older ones.
  const auto due = std::find_if(
      agreed_.rbegin(), agreed_.rend(),
      [step](const Held& held) { return step >= held.effective_at_step; });
  if (due != agreed_.rend()) {
    current_ = std::move(*due);
    agreed_.erase(agreed_.begin(), due.base());
    if (current_.from_first_step) current_.effective_at_step = step;
    // A plan that is newer than the edit replaces it, unless the collector made
    // the plan from a config file.
    if (edit_.has_value() && !current_.from_file &&
        current_.epoch > edit_->heard_epoch)
      edit_.reset();
    applied->emplace();
    (*applied)->set_epoch(current_.epoch);
    (*applied)->set_step(step);
    (*applied)->set_plan_digest(current_.digest);
  }
  return Current();
}

bool PlanSwitcher::BeginIdleStep(int64_t step) {
  absl::MutexLock lock(&mutex_);
  const bool due = std::any_of(
      agreed_.begin(), agreed_.end(),
      [step](const Held& held) { return step >= held.effective_at_step; });
  if (due || Current().enabled) return false;
  step_ = step;
  return true;
}

void PlanSwitcher::SetLocal(std::shared_ptr<const Plan> plan, bool enabled) {
  absl::MutexLock lock(&mutex_);
  if (current_.epoch != 0) return;
  current_.plan = std::move(plan);
  current_.enabled = enabled;
}

void PlanSwitcher::Edit(std::shared_ptr<const Plan> plan,
                        std::optional<bool> enabled, bool at_once) {
  absl::MutexLock lock(&mutex_);
  const ActivePlan before = Current();
  const bool on = plan != nullptr && enabled.value_or(before.enabled);
  if (plan == nullptr) {
    plan = before.plan;
  } else if (before.plan != nullptr && !before.plan->api_list.empty()) {
    // The list is not a field of the file, so the operator's list stays.
    auto with_list = std::make_shared<Plan>(*plan);
    with_list->api_list = before.plan->api_list;
    plan = std::move(with_list);
  }
  if (at_once) {
    edit_ = FileEdit{std::move(plan), on, heard_epoch_};
  } else if (current_.epoch == 0) {
    current_.plan = std::move(plan);
    current_.enabled = on;
  }
}

void PlanSwitcher::RefuseRecording(std::string reason, bool only_apis) {
  absl::MutexLock lock(&mutex_);
  why_not_recording_ = std::move(reason);
  refuses_only_apis_ = only_apis;
}

v1::PlanPrepared PlanSwitcher::Prepare(const v1::PlanSpec& spec) {
  // Parsing is slow, so it is done without the lock that the training thread
  // takes.
  absl::StatusOr<std::shared_ptr<const Plan>> plan = PlanOf(spec);
  absl::MutexLock lock(&mutex_);
  heard_epoch_ = std::max(heard_epoch_, spec.epoch());
  v1::PlanPrepared answer;
  answer.set_epoch(spec.epoch());
  answer.set_current_step(step_);
  if (!plan.ok()) {
    answer.set_reason(std::string(plan.status().message()));
  } else if (spec.enabled() && Refuses(**plan)) {
    answer.set_reason(why_not_recording_);
  } else if (!IsStep(spec.effective_at_step()) || !IsStep(spec.for_steps())) {
    answer.set_reason("the plan's steps are out of range");
  } else if (spec.epoch() <= current_.epoch) {
    answer.set_reason(
        absl::StrCat("epoch ", current_.epoch, " is already in force"));
  } else if (spec.effective_at_step() <= step_) {
    answer.set_reason(absl::StrCat("step ", spec.effective_at_step(),
                                   " has passed; the rank is in step ", step_));
  } else {
    answer.set_accepted(true);
    prepared_ = HeldOf(spec, *std::move(plan));
  }
  return answer;
}

std::optional<v1::PlanPrepared> PlanSwitcher::Commit(uint64_t epoch) {
  absl::MutexLock lock(&mutex_);
  // The plan was committed or adopted before.
  if (current_.epoch == epoch || IsAgreed(epoch)) return std::nullopt;
  v1::PlanPrepared late;
  late.set_epoch(epoch);
  late.set_current_step(step_);
  if (!prepared_.has_value() || prepared_->epoch != epoch) {
    late.set_reason("no such plan is prepared");
    return late;
  }
  Held plan = *std::move(prepared_);
  prepared_.reset();
  if (plan.effective_at_step <= step_) {
    late.set_reason(absl::StrCat("the commit for step ", plan.effective_at_step,
                                 " came in step ", step_));
    return late;
  }
  Agree(std::move(plan));
  return std::nullopt;
}

PlanSwitcher::Held PlanSwitcher::HeldOf(const v1::PlanSpec& spec,
                                        std::shared_ptr<const Plan> plan) {
  return Held{spec.epoch(),
              spec.enabled(),
              spec.source() == v1::PlanSpec::SOURCE_FILE,
              spec.effective_at_step(),
              spec.for_steps(),
              spec.from_first_step(),
              std::move(plan),
              PlanDigest(spec)};
}

bool PlanSwitcher::IsAgreed(uint64_t epoch) const {
  return std::any_of(agreed_.begin(), agreed_.end(),
                     [epoch](const Held& held) { return held.epoch == epoch; });
}

void PlanSwitcher::Agree(Held plan) {
  agreed_.insert(std::upper_bound(agreed_.begin(), agreed_.end(), plan,
                                  [](const Held& a, const Held& b) {
                                    return a.epoch < b.epoch;
                                  }),
                 std::move(plan));
  if (agreed_.size() > kMaxAgreed) agreed_.erase(agreed_.begin());
}

void PlanSwitcher::Abort(uint64_t epoch) {
  absl::MutexLock lock(&mutex_);
  if (prepared_.has_value() && prepared_->epoch == epoch) prepared_.reset();
}

void PlanSwitcher::Adopt(const v1::PlanSpec& spec) {
  absl::StatusOr<std::shared_ptr<const Plan>> plan = PlanOf(spec);
  if (!plan.ok() || !IsStep(spec.effective_at_step()) ||
      !IsStep(spec.for_steps()))
    return;
  absl::MutexLock lock(&mutex_);
  heard_epoch_ = std::max(heard_epoch_, spec.epoch());
  if (spec.epoch() <= current_.epoch || IsAgreed(spec.epoch())) return;
  if (prepared_.has_value() && prepared_->epoch == spec.epoch())
    prepared_.reset();
  Agree(HeldOf(spec, *std::move(plan)));
}

int64_t PlanSwitcher::step() const {
  absl::MutexLock lock(&mutex_);
  return step_;
}

uint64_t PlanSwitcher::epoch() const {
  absl::MutexLock lock(&mutex_);
  return current_.epoch;
}

std::string PlanSwitcher::plan_digest() const {
  absl::MutexLock lock(&mutex_);
  return current_.digest;
}

uint64_t PlanSwitcher::heard_epoch() const {
  absl::MutexLock lock(&mutex_);
  return heard_epoch_;
}

}  // namespace rankprobe
