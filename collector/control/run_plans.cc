// SPDX-License-Identifier: Apache-2.0
#include "collector/control/run_plans.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/base/step_range.h"

namespace rankprobe {
namespace {

// Agents only report under recent plans.
constexpr size_t kMaxHistory = 1024;
// A plan that was not agreed on is taken back at once, so only the last ones
// matter.
constexpr size_t kMaxUndecided = 1024;

}  // namespace

bool CompiledPlan::Admits(std::optional<int64_t> rank, int64_t step) const {
  if (!spec.enabled() || step < spec.effective_at_step()) return false;
  // While the first step of the plan is not known, its last is not either.
  if (spec.for_steps() > 0 && !spec.from_first_step() &&
      step >= spec.effective_at_step() + spec.for_steps())
    return false;
  return plan.WantsRank(rank) && plan.WantsStep(step);
}

absl::StatusOr<std::shared_ptr<const Plan>> RunPlans::Parse(
    const std::string& config_json) {
  RP_ASSIGN_OR_RETURN(ConfigResult parsed, ParseConfig(config_json, {}));
  return std::make_shared<const Plan>(std::move(parsed.plan));
}

absl::StatusOr<std::shared_ptr<const CompiledPlan>> RunPlans::Compile(
    const v1::PlanSpec& spec) {
  RP_ASSIGN_OR_RETURN(std::shared_ptr<const Plan> config,
                      Parse(spec.config_json()));
  return Compile(spec, std::move(config));
}

absl::StatusOr<std::shared_ptr<const CompiledPlan>> RunPlans::Compile(
    const v1::PlanSpec& spec, std::shared_ptr<const Plan> config) {
  if (!IsStep(spec.effective_at_step()) || !IsStep(spec.for_steps())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a plan takes effect at step ", spec.effective_at_step(), " for ",
        spec.for_steps(), " steps; 0 .. ", kMaxStep, " are legal"));
  }
  return std::make_shared<const CompiledPlan>(spec, std::move(config));
}

uint64_t RunPlans::NextEpoch() {
  undecided_.insert(++last_epoch_);
  if (undecided_.size() > kMaxUndecided) undecided_.erase(undecided_.begin());
  return last_epoch_;
}

void RunPlans::Set(std::shared_ptr<const CompiledPlan> plan,
                   const std::vector<int64_t>& ranks) {
  RaiseEpoch(plan->spec.epoch());
  undecided_.erase(plan->spec.epoch());
  history_[plan->spec.epoch()] = plan;
  if (history_.size() > kMaxHistory) history_.erase(history_.begin());
  if (ranks.empty()) {
    of_rank_.clear();
    base_ = std::move(plan);
    return;
  }
  for (const int64_t rank : ranks) of_rank_[rank] = plan;
}

std::vector<int64_t> RunPlans::Replace(
    const std::shared_ptr<const CompiledPlan>& plan) {
  const uint64_t epoch = plan->spec.epoch();
  history_[epoch] = plan;
  if (base_ != nullptr && base_->spec.epoch() == epoch) base_ = plan;
  std::vector<int64_t> ranks;
  for (auto& [rank, of] : of_rank_) {
    if (of->spec.epoch() != epoch) continue;
    of = plan;
    ranks.push_back(rank);
  }
  return ranks;
}

std::shared_ptr<const CompiledPlan> RunPlans::ForRank(
    std::optional<int64_t> rank) const {
  if (rank.has_value()) {
    const auto it = of_rank_.find(*rank);
    if (it != of_rank_.end()) return it->second;
  }
  return base_;
}

std::shared_ptr<const CompiledPlan> RunPlans::ByEpoch(uint64_t epoch) const {
  const auto it = history_.find(epoch);
  return it == history_.end() ? nullptr : it->second;
}

}  // namespace rankprobe
