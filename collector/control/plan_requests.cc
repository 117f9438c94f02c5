// SPDX-License-Identifier: Apache-2.0
#include "collector/control/plan_requests.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/api_list.h"
#include "common/config/request_config.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// Adds the request to the summary even if this call did not set it, because the
// run's config contains it.
PlanSwitches::Done SayingRequest(const Plan& config, PlanSwitches::Done done) {
  if (config.request_id.empty()) return done;
  return [text = absl::StrCat("; of request \"", VisibleText(config.request_id),
                              "\" only (a job that names no requests is "
                              "recorded completely)"),
          done = std::move(done)](absl::StatusOr<v1::SwitchResult> result) {
    if (result.ok()) absl::StrAppend(result->mutable_summary(), text);
    done(std::move(result));
  };
}

v1::PlanSpec SpecOf(const std::string& who) {
  v1::PlanSpec spec;
  spec.set_source(v1::PlanSpec::SOURCE_OPERATOR);
  spec.set_source_detail(who);
  return spec;
}

}  // namespace

void PlanRequests::SetDumpEnable(const v1::SetDumpEnableRequest& request,
                                 PlanSwitches::Done done,
                                 const std::string& who) {
  if (const absl::Status status = saved_->Read(request.run()); !status.ok())
    return done(status);
  v1::PlanSpec spec = SpecOf(who);
  spec.set_enabled(request.enable());
  std::string given = request.config_json();
  for (;;) {
    if (request.config_json().empty()) {
      const ControlLock lock(core_);
      given = core_->LoadRun(request.run())->OperatorConfig();
    }
    spec.set_config_json(given);
    if (request.has_request_id()) {
      auto chosen = ConfigForRequest(given, request.request_id());
      if (!chosen.ok()) return done(chosen.status());
      spec.set_config_json(*std::move(chosen));
    }
    auto config = RunPlans::Parse(spec.config_json());
    if (!config.ok()) return done(config.status());
    const ControlLock lock(core_);
    RunState* const run = core_->LoadRun(request.run());
    // The config was changed meanwhile.
    if (request.config_json().empty() && given != run->OperatorConfig())
      continue;
    if (request.enable()) done = SayingRequest(**config, std::move(done));
    return switches_->Begin(
        run, {std::move(spec), request.options(), *std::move(config)},
        std::move(done), request.expected_epoch());
  }
}

void PlanRequests::SetConfig(const v1::SetConfigRequest& request,
                             PlanSwitches::Done done, const std::string& who) {
  auto config = RunPlans::Parse(request.config_json());
  if (!config.ok()) return done(config.status());
  if (!request.api_list().empty()) {
    const absl::Status status = ParseApiList(request.api_list()).status();
    if (!status.ok()) {
      return done(absl::InvalidArgumentError(
          absl::StrCat("the API list: ", status.message())));
    }
  }
  if (const absl::Status status = saved_->Read(request.run()); !status.ok())
    return done(status);
  v1::PlanSpec spec = SpecOf(who);
  spec.set_config_json(request.config_json());
  if (request.has_api_list()) spec.set_api_list(request.api_list());
  const ControlLock lock(core_);
  RunState* const run = core_->LoadRun(request.run());
  PlanSwitches::Switched switched = switches_->SwitchedBy(*run, **config);
  spec.set_enabled(switched.on);
  if (request.options().for_steps() > 0) switched.until.reset();
  switches_->Begin(run,
                   {std::move(spec), request.options(), *std::move(config),
                    /*not_after=*/std::nullopt, switched.until},
                   std::move(done), request.expected_epoch());
}

absl::StatusOr<v1::GetConfigResponse> PlanRequests::GetConfig(
    const std::string& name) {
  RP_RETURN_IF_ERROR(saved_->Read(name));
  const ControlLock lock(core_);
  const RunState* const run = core_->LoadRun(name);
  const auto plan = run->plans.ForAll();
  if (plan == nullptr)
    return absl::NotFoundError(absl::StrCat("run \"", name, "\" has no plan"));
  const v1::PlanSpec& spec = plan->spec;
  v1::GetConfigResponse response;
  response.set_epoch(spec.epoch());
  response.set_enabled(spec.enabled());
  response.set_config_json(run->OperatorConfig());
  response.set_effective_at_step(spec.effective_at_step());
  response.set_for_steps(spec.for_steps());
  response.set_from_first_step(spec.from_first_step());
  response.set_source(spec.source());
  response.set_source_detail(spec.source_detail());
  response.set_config_fault(run->edits.fault());
  response.set_api_list(spec.api_list());
  return response;
}

}  // namespace rankprobe
