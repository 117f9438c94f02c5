// SPDX-License-Identifier: Apache-2.0
// ControlPlane: differences from a reference (tensor.bench_path, tensor.diff_nums).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/control/control_plane.h"
#include "common/base/step_range.h"

namespace rankprobe {
namespace {

constexpr char kCause[] = "diff_nums reached";

}  // namespace

void ControlPlane::OnDifference(const Agent& agent, Run* run,
                                const v1::ReferenceDifference& untrusted) {
  const uint64_t epoch = untrusted.plan_epoch();
  const std::shared_ptr<const CompiledPlan> in_force =
      run->plans.ForRank(RankOf(agent.identity));
  // An agent that has not yet heard of the run's plan records under its own,
  // which is the same one.
  const std::shared_ptr<const CompiledPlan> plan =
      epoch == 0 ? in_force : run->plans.ByEpoch(epoch);
  v1::Event event = EventOf(v1::Event::KIND_DIFFERENCE, agent);
  event.set_step(ReportedStep(untrusted.step()));
  event.set_entry(untrusted.entry().substr(0, 4096));
  event.set_detail(untrusted.detail().substr(0, 1024));
  if (plan != nullptr) {
    const Reach reach = ReachOf(agent);
    const int64_t count =
        run->reference.Add({plan->spec.epoch(), reach.domain}, plan->plan);
    event.set_outcome(
        plan->plan.diff_nums == -1
            ? absl::StrCat("difference ", count)
            : absl::StrCat("difference ", count, " of ", plan->plan.diff_nums,
                           reach.all ? "" : " for the ranks of its token"));
  }
  EmitEvent(std::move(event));
  EndSpentPlans(run);
}

void ControlPlane::EndSpentPlans(Run* run) {
  if (!run->switches.empty()) return;
  const std::optional<ReferenceBudget::Key> key = run->reference.TakeSpent();
  if (!key.has_value()) return;
  const std::shared_ptr<const CompiledPlan> plan =
      run->plans.ByEpoch(key->epoch);
  v1::SwitchOptions options;
  options.set_timeout_ms(kOwnSwitchTimeoutMs);
  bool in_force = plan != nullptr && plan->spec.enabled();
  if (in_force && (run->plans.ForAll() != plan || !key->domain.empty())) {
    // A plan of single ranks, or spent by those of one token.
    for (const auto& [session, agent] : agents_) {
      if (agent.connected && agent.identity.run() == run->name &&
          agent.identity.has_rank() &&
          (key->domain.empty() ||
           DomainOf(agent.peer.principal) == key->domain) &&
          run->plans.ForRank(agent.identity.rank()) == plan)
        options.add_ranks(agent.identity.rank());
    }
    in_force = options.ranks_size() > 0;
  }
  if (!in_force) return run->reference.Forget(*key);
  v1::PlanSpec spec;
  spec.set_enabled(false);
  spec.set_config_json(plan->spec.config_json());
  spec.set_cause(kCause);
  spec.set_source(v1::PlanSpec::SOURCE_TRIGGER);
  spec.set_source_detail(kCause);
  spec.set_operator_config_json(OperatorConfig(*run));
  Switch(
      run->name, std::move(spec), plan->config, /*expected_epoch=*/0, options,
      [this, name = run->name](const absl::StatusOr<v1::SwitchResult>& result) {
        v1::Event told;
        told.set_kind(v1::Event::KIND_SWITCHED);
        told.set_run(name);
        told.set_step(result.ok() ? result->effective_at_step() : -1);
        told.set_detail(absl::StrCat("off: ", kCause));
        told.set_outcome(result.ok() ? result->summary()
                                     : result.status().ToString());
        EmitEvent(std::move(told));
      });
}

}  // namespace rankprobe
