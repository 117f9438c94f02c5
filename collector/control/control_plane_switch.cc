// The operators' side of the control plane: plans and their switches.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/control/control_plane.h"
#include "common/status_macros.h"
#include "common/step_range.h"

namespace rankprobe {

std::string ControlPlane::PlanKey(const std::string& run, int64_t rank) {
  return absl::StrCat(run, std::string(1, '\0'), rank);
}

absl::Status ControlPlane::SavePlan(const std::string& run,
                                    const v1::PlanSpec& spec,
                                    const std::vector<int64_t>& ranks) {
  if (ranks.empty()) return store_->SavePlan(run, spec);
  for (const int64_t rank : ranks)
    RP_RETURN_IF_ERROR(store_->SavePlan(PlanKey(run, rank), spec));
  return absl::OkStatus();
}

void ControlPlane::Switch(const std::string& run_name, v1::PlanSpec spec,
                          std::shared_ptr<const Plan> config,
                          uint64_t expected_epoch,
                          const v1::SwitchOptions& options, SwitchDone done) {
  Run* const run = LoadRun(run_name);
  if (expected_epoch != 0 && expected_epoch != run->plans.last_epoch()) {
    return done(absl::AbortedError(
        absl::StrCat("the run is at epoch ", run->plans.last_epoch(), ", not ",
                     expected_epoch, ": someone else has changed it")));
  }
  if (spec.source() == v1::PlanSpec::SOURCE_OPERATOR) CallOffFileSwitches(run);
  if (!run->switches.empty()) {
    return done(
        absl::AbortedError("another switch of this run is in progress"));
  }
  if (!IsStep(options.at_step()) || !IsStep(options.for_steps())) {
    return done(absl::InvalidArgumentError(
        absl::StrCat("at_step and for_steps must be 0 .. ", kMaxStep)));
  }
  std::vector<std::string> sessions;
  const std::vector<int64_t> ranks(options.ranks().begin(),
                                   options.ranks().end());
  std::vector<int64_t> steps;
  for (const auto& [session, agent] : agents_) {
    if (!agent.connected || agent.identity.run() != run_name) continue;
    if (!ranks.empty() && (!agent.identity.has_rank() ||
                           std::find(ranks.begin(), ranks.end(),
                                     agent.identity.rank()) == ranks.end())) {
      continue;
    }
    sessions.push_back(session);
    steps.push_back(agent.step);
  }
  const int64_t furthest =
      SwitchOperation::FurthestBelievable(std::move(steps));
  if (!ranks.empty() && sessions.empty()) {
    return done(absl::NotFoundError("none of the chosen ranks is connected"));
  }
  if (options.has_at_step() && options.at_step() <= furthest) {
    return done(absl::FailedPreconditionError(
        absl::StrCat("step ", options.at_step(),
                     " has passed: a rank is in step ", furthest)));
  }
  SwitchOperation::Actions actions;
  actions.send = [this](const std::string& session,
                        const v1::Directive& directive) {
    mutex_.AssertHeld();
    const auto it = agents_.find(session);
    if (it != agents_.end() && it->second.connected)
      it->second.sender(directive);
  };
  actions.next_epoch = [run] { return run->plans.NextEpoch(); };
  actions.look = [this](const std::string& session) {
    mutex_.AssertHeld();
    const auto it = agents_.find(session);
    // Replaced by a later session of its process.
    if (it == agents_.end()) return SwitchOperation::Participant();
    const Agent& agent = it->second;
    return SwitchOperation::Participant{agent.identity, agent.step,
                                        agent.step_ns};
  };
  actions.agree =
      [this, run, run_name,
       ranks](const std::shared_ptr<const CompiledPlan>& plan) -> absl::Status {
    mutex_.AssertHeld();
    RP_RETURN_IF_ERROR(SavePlan(run_name, plan->spec, ranks));
    run->plans.Set(plan, ranks);
    // An operator overrules a file that cannot be used.
    if (plan->spec.source() == v1::PlanSpec::SOURCE_OPERATOR)
      run->edits.SetFault("");
    return absl::OkStatus();
  };
  spec.set_for_steps(spec.enabled() ? options.for_steps() : 0);
  run->switches.push_back(std::make_unique<SwitchOperation>(
      SwitchOperation::Request{std::move(spec), options, std::move(config)},
      sessions, std::move(actions), MonotonicNow(), std::move(done)));
  run->switches.back()->Start();
  ForgetFinished(run);
}

void ControlPlane::SetDumpEnable(const v1::SetDumpEnableRequest& request,
                                 SwitchDone done, const std::string& who) {
  if (const absl::Status status = CheckRunName(request.run()); !status.ok())
    return done(status);
  ReadRun(request.run());
  v1::PlanSpec spec;
  spec.set_enabled(request.enable());
  spec.set_source(v1::PlanSpec::SOURCE_OPERATOR);
  spec.set_source_detail(who);
  spec.set_config_json(request.config_json());
  for (;;) {
    if (request.config_json().empty()) {
      // What a trigger recorded with is its own affair.
      absl::MutexLock lock(&mutex_);
      spec.set_config_json(OperatorConfig(*LoadRun(request.run())));
    }
    auto config = RunPlans::Parse(spec.config_json());
    if (!config.ok()) return done(config.status());
    absl::MutexLock lock(&mutex_);
    // Somebody has changed it meanwhile.
    if (request.config_json().empty() &&
        spec.config_json() != OperatorConfig(*LoadRun(request.run())))
      continue;
    return Switch(request.run(), std::move(spec), *std::move(config),
                  request.expected_epoch(), request.options(), std::move(done));
  }
}

int64_t ControlPlane::StepsLeft(const Run& run,
                                const v1::PlanSpec& spec) const {
  if (spec.for_steps() == 0) return INT64_MAX;
  const int64_t next =
      std::max(spec.effective_at_step(), FurthestStep(run.name) + 1);
  return std::max<int64_t>(spec.effective_at_step() + spec.for_steps() - next,
                           0);
}

void ControlPlane::SetConfig(const v1::SetConfigRequest& request,
                             SwitchDone done, const std::string& who) {
  if (const absl::Status status = CheckRunName(request.run()); !status.ok())
    return done(status);
  auto config = RunPlans::Parse(request.config_json());
  if (!config.ok()) return done(config.status());
  ReadRun(request.run());
  absl::MutexLock lock(&mutex_);
  Run* const run = LoadRun(request.run());
  v1::PlanSpec spec;
  spec.set_config_json(request.config_json());
  spec.set_source(v1::PlanSpec::SOURCE_OPERATOR);
  spec.set_source_detail(who);
  // Dumping goes on as long as it would have, and no longer.
  v1::SwitchOptions options = request.options();
  if (const auto plan = run->plans.ForAll();
      plan != nullptr && plan->spec.enabled()) {
    const int64_t left = StepsLeft(*run, plan->spec);
    spec.set_enabled(left > 0);
    if (plan->spec.for_steps() > 0 && options.for_steps() == 0)
      options.set_for_steps(left);
  }
  Switch(request.run(), std::move(spec), *std::move(config),
         request.expected_epoch(), options, std::move(done));
}

absl::StatusOr<v1::GetConfigResponse> ControlPlane::GetConfig(
    const std::string& name) {
  ReadRun(name);
  absl::MutexLock lock(&mutex_);
  const Run* const run = LoadRun(name);
  if (run->plans.ForAll() == nullptr)
    return absl::NotFoundError(absl::StrCat("run \"", name, "\" has no plan"));
  v1::GetConfigResponse response;
  response.set_epoch(run->plans.ForAll()->spec.epoch());
  response.set_enabled(run->plans.ForAll()->spec.enabled());
  response.set_config_json(OperatorConfig(*run));
  response.set_effective_at_step(run->plans.ForAll()->spec.effective_at_step());
  response.set_for_steps(run->plans.ForAll()->spec.for_steps());
  response.set_source(run->plans.ForAll()->spec.source());
  response.set_source_detail(run->plans.ForAll()->spec.source_detail());
  response.set_config_fault(run->edits.fault());
  return response;
}

void ControlPlane::ForgetFinished(Run* run) {
  run->switches.remove_if([](const std::unique_ptr<SwitchOperation>& op) {
    return op->finished();
  });
}

}  // namespace rankprobe
