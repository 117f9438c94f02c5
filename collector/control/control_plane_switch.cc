// SPDX-License-Identifier: Apache-2.0
// The operators' side of the control plane: plans and their switches.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "collector/control/control_plane.h"
#include "common/base/monotonic_event.h"
#include "common/base/status_macros.h"
#include "common/base/step_range.h"
#include "common/config/api_list.h"
#include "common/config/request_config.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// Of what an agent says.
constexpr size_t kMaxReasonBytes = 1024;

// Triggers and files have events of their own, with their reason.
v1::Event SwitchEvent(const std::string& run, const std::vector<int64_t>& ranks,
                      const v1::PlanSpec& spec) {
  v1::Event told;
  told.set_kind(v1::Event::KIND_SWITCHED);
  told.set_run(run);
  told.set_step(spec.effective_at_step());
  std::string what = spec.enabled() ? "dumping on" : "dumping off";
  if (spec.for_steps() == 1) absl::StrAppend(&what, " for one step");
  if (spec.for_steps() > 1)
    absl::StrAppend(&what, " for ", spec.for_steps(), " steps");
  if (!ranks.empty()) absl::StrAppend(&what, ", ranks ", IntSet(ranks).Text());
  told.set_detail(absl::StrCat(
      what, ", said ",
      spec.source_detail().empty() ? "an operator" : spec.source_detail()));
  told.set_outcome(absl::StrCat("in force as plan ", spec.epoch()));
  return told;
}

// Also where nobody asked for it now: it is in the run's config.
ControlPlane::SwitchDone SayingRequest(const Plan& config,
                                       ControlPlane::SwitchDone done) {
  if (config.request_id.empty()) return done;
  return [text = absl::StrCat("; of request \"", VisibleText(config.request_id),
                              "\" only (a job that names no requests is "
                              "recorded completely)"),
          done = std::move(done)](absl::StatusOr<v1::SwitchResult> result) {
    if (result.ok()) absl::StrAppend(result->mutable_summary(), text);
    done(std::move(result));
  };
}

}  // namespace

void ControlPlane::TakeBack(const std::string& run_name,
                            const std::vector<int64_t>& ranks) {
  plans_.SaveLater([this, run_name, ranks] {
    // Looked up now: everything that was saved before is decided, or is not
    // agreed on either.
    const v1::PlanSpec none;
    absl::MutexLock lock(&mutex_);
    const Run* const run = LoadRun(run_name);
    const auto spec_of = [&none](const auto& plan) {
      return plan == nullptr ? none : plan->spec;
    };
    PlanTable::Rows rows;
    if (ranks.empty()) {
      PlanTable::AddPlan(run_name, std::nullopt, spec_of(run->plans.ForAll()),
                         &rows);
    }
    for (const int64_t rank : ranks) {
      PlanTable::AddPlan(run_name, rank, spec_of(run->plans.ForRank(rank)),
                         &rows);
    }
    return rows;
  });
}

bool ControlPlane::SwitchIsAhead(const Agent& agent, const CompiledPlan* plan) {
  return plan != nullptr && plan->spec.epoch() > agent.epoch &&
         plan->spec.enabled() != agent.dumping &&
         plan->spec.effective_at_step() > agent.step &&
         !plan->spec.from_first_step();
}

bool ControlPlane::IsChosen(const Agent& agent, const std::string& run,
                            const std::vector<int64_t>& ranks) {
  if (!agent.connected || agent.identity.run() != run) return false;
  return ranks.empty() || (agent.identity.has_rank() &&
                           std::find(ranks.begin(), ranks.end(),
                                     agent.identity.rank()) != ranks.end());
}

void ControlPlane::Agree(const std::string& run_name,
                         const std::vector<int64_t>& ranks,
                         const std::vector<std::string>& sessions,
                         const std::shared_ptr<const CompiledPlan>& plan) {
  Run* const run = LoadRun(run_name);
  run->plans.Set(plan, ranks);
  if (plan->spec.source() == v1::PlanSpec::SOURCE_OPERATOR) {
    // An operator overrules a file that cannot be used.
    run->edits.SetFault("");
    EmitEvent(SwitchEvent(run_name, ranks, plan->spec));
  }
  // Who came while it was being agreed on was welcomed with the old plan: it
  // comes again and gets this one.
  const absl::flat_hash_set<absl::string_view> asked(sessions.begin(),
                                                     sessions.end());
  for (const auto& [session, agent] : agents_) {
    if (IsChosen(agent, run_name, ranks) && agent.peer.end != nullptr &&
        !asked.contains(session))
      agent.peer.end(absl::AbortedError(
          "the plan has changed since this session's welcome; connect again"));
  }
}

void ControlPlane::Converge(const std::string& session,
                            const std::string& reason) {
  const auto it = agents_.find(session);
  if (it == agents_.end() || !it->second.connected) return;
  Agent& agent = it->second;
  const std::shared_ptr<const CompiledPlan> plan =
      LoadRun(agent.identity.run())->plans.ForRank(RankOf(agent.identity));
  if (plan == nullptr || agent.epoch >= plan->spec.epoch() ||
      agent.late_epoch == plan->spec.epoch())
    return;
  v1::Directive directive;
  *directive.mutable_adopt()->mutable_plan() = plan->spec;
  SendTo(&agent, directive);
  agent.late_epoch = plan->spec.epoch();
  // An agent's words.
  agent.late_reason = VisibleText(reason.substr(0, kMaxReasonBytes));
  v1::Event told = EventOf(v1::Event::KIND_SWITCHED, agent);
  told.set_detail(absl::StrCat("did not follow to epoch ", plan->spec.epoch(),
                               " at step ", plan->spec.effective_at_step(),
                               ": ", agent.late_reason));
  told.set_outcome("it gets the plan at its next step");
  EmitEvent(std::move(told));
}

void ControlPlane::OnPrepared(const std::string& session, Run* run,
                              const v1::PlanPrepared& prepared) {
  bool answers = false;
  for (auto& op : run->switches)
    answers = op->OnPrepared(session, prepared) || answers;
  if (answers || prepared.accepted()) return;
  // Nobody waits any more (--no-wait, the time was up): only what is agreed on
  // and was committed to counts.
  const auto it = agents_.find(session);
  const auto plan = run->plans.ForRank(RankOf(it->second.identity));
  if (plan != nullptr && plan->spec.epoch() == prepared.epoch())
    Converge(session, prepared.reason());
}

void ControlPlane::OnApplied(const std::string& session, Agent* agent, Run* run,
                             const v1::PlanApplied& applied) {
  NotePlan(applied.epoch(), applied.plan_digest(), run, agent);
  if (agent->late_epoch != 0 && applied.epoch() >= agent->late_epoch) {
    agent->late_epoch = 0;
    v1::Event told = EventOf(v1::Event::KIND_SWITCHED, *agent);
    told.set_step(ReportedStep(applied.step()));
    told.set_detail(absl::StrCat("follows epoch ", applied.epoch(), " late"));
    told.set_outcome(absl::StrCat("the plan is in force from step ",
                                  ReportedStep(applied.step()), " on"));
    EmitEvent(std::move(told));
  }
  FixFirstStep(agent->identity.run(), run, applied);
  for (auto& op : run->switches) op->OnApplied(session, applied);
}

void ControlPlane::FixFirstStep(const std::string& run_name, Run* run,
                                const v1::PlanApplied& applied) {
  const auto plan = run->plans.ByEpoch(applied.epoch());
  if (plan == nullptr || !plan->spec.from_first_step() ||
      applied.step() < plan->spec.effective_at_step())
    return;
  v1::PlanSpec spec = plan->spec;
  spec.set_effective_at_step(applied.step());
  spec.set_from_first_step(false);
  // A step that cannot be leaves it open.
  const auto fixed = RunPlans::Compile(spec, plan->config);
  if (fixed.ok()) TakeBack(run_name, run->plans.Replace(*fixed));
}

SwitchOperation::Actions ControlPlane::ActionsFor(
    const std::string& run_name, const std::vector<int64_t>& ranks,
    const std::vector<std::string>& sessions) {
  SwitchOperation::Actions actions;
  actions.send = [this](const std::string& session,
                        const v1::Directive& directive) {
    mutex_.AssertHeld();
    const auto it = agents_.find(session);
    if (it != agents_.end() && it->second.connected)
      SendTo(&it->second, directive);
  };
  actions.next_epoch = [this, run_name] {
    mutex_.AssertHeld();
    return LoadRun(run_name)->plans.NextEpoch();
  };
  actions.whose = [this](const std::string& session) {
    mutex_.AssertHeld();
    const auto it = agents_.find(session);
    return it == agents_.end() ? v1::Identity() : it->second.identity;
  };
  actions.look = [this](const std::string& session) {
    mutex_.AssertHeld();
    const auto it = agents_.find(session);
    // Replaced by a later session of its process.
    if (it == agents_.end()) return SwitchProgress();
    const Agent& agent = it->second;
    const absl::Time now = MonotonicNow();
    return SwitchProgress{
        agent.step, agent.pace.StepNanos(now),
        agent.connected && now - agent.last_moved >= agent.pace.IdleAfter()};
  };
  actions.save = [this, run_name, ranks](const v1::PlanSpec& spec,
                                         SwitchOperation::Saved saved) {
    plans_.Save(PlanTable::NewPlan(run_name, spec, ranks),
                [this, run_name, saved = std::move(saved)](
                    const absl::Status& status, bool synced) {
                  absl::MutexLock lock(&mutex_);
                  saved(status, synced);
                  ForgetFinished(LoadRun(run_name));
                });
  };
  actions.agree = [this, run_name, ranks,
                   sessions](const std::shared_ptr<const CompiledPlan>& plan) {
    mutex_.AssertHeld();
    Agree(run_name, ranks, sessions, plan);
  };
  actions.converge = [this](const std::string& session,
                            const std::string& reason) {
    mutex_.AssertHeld();
    Converge(session, reason);
  };
  actions.take_back = [this, run_name, ranks] { TakeBack(run_name, ranks); };
  actions.now = [this] { return MonotonicNow(); };
  return actions;
}

void ControlPlane::Switch(const std::string& run_name, v1::PlanSpec spec,
                          std::shared_ptr<const Plan> config,
                          uint64_t expected_epoch,
                          const v1::SwitchOptions& options, SwitchDone done,
                          std::optional<int64_t> until) {
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
    if (!IsChosen(agent, run_name, ranks)) continue;
    sessions.push_back(session);
    steps.push_back(agent.step);
  }
  const int64_t furthest = SwitchRanks::FurthestBelievable(std::move(steps));
  if (!ranks.empty() && sessions.empty()) {
    return done(absl::NotFoundError("none of the chosen ranks is connected"));
  }
  if (options.has_at_step() && options.at_step() <= furthest) {
    return done(absl::FailedPreconditionError(
        absl::StrCat("step ", options.at_step(),
                     " has passed: a rank is in step ", furthest)));
  }
  spec.set_for_steps(spec.enabled() ? options.for_steps() : 0);
  // The run's, until an operator gives another.
  if (const auto plan = run->plans.ForAll();
      plan != nullptr && !spec.has_api_list() && plan->spec.has_api_list())
    spec.set_api_list(plan->spec.api_list());
  SwitchOperation::Request request{std::move(spec), options, std::move(config)};
  request.until = until;
  // A file that cannot be used overtakes what is agreed on and not yet in force.
  if (const auto plan = run->plans.ForAll();
      plan != nullptr && plan->spec.enabled() && !request.spec.enabled() &&
      request.spec.source() == v1::PlanSpec::SOURCE_FILE &&
      plan->spec.source() != v1::PlanSpec::SOURCE_OPERATOR &&
      plan->spec.effective_at_step() > furthest)
    request.not_after = plan->spec.effective_at_step();
  run->switches.push_back(std::make_shared<SwitchOperation>(
      std::move(request), sessions, ActionsFor(run_name, ranks, sessions),
      std::move(done)));
  run->switches.back()->Start();
  ForgetFinished(run);
}

void ControlPlane::SetDumpEnable(const v1::SetDumpEnableRequest& request,
                                 SwitchDone done, const std::string& who) {
  if (const absl::Status status = CheckRunName(request.run()); !status.ok())
    return done(status);
  if (const absl::Status status = ReadRun(request.run()); !status.ok())
    return done(status);
  v1::PlanSpec spec;
  spec.set_enabled(request.enable());
  spec.set_source(v1::PlanSpec::SOURCE_OPERATOR);
  spec.set_source_detail(who);
  std::string given = request.config_json();
  for (;;) {
    if (request.config_json().empty()) {
      // What a trigger recorded with is its own affair.
      absl::MutexLock lock(&mutex_);
      given = OperatorConfig(*LoadRun(request.run()));
    }
    spec.set_config_json(given);
    if (request.has_request_id()) {
      auto chosen = ConfigForRequest(given, request.request_id());
      if (!chosen.ok()) return done(chosen.status());
      spec.set_config_json(*std::move(chosen));
    }
    auto config = RunPlans::Parse(spec.config_json());
    if (!config.ok()) return done(config.status());
    const RunQueuedAfter save(&saves_);
    absl::MutexLock lock(&mutex_);
    // Somebody has changed it meanwhile.
    if (request.config_json().empty() &&
        given != OperatorConfig(*LoadRun(request.run())))
      continue;
    if (request.enable()) done = SayingRequest(**config, std::move(done));
    return Switch(request.run(), std::move(spec), *std::move(config),
                  request.expected_epoch(), request.options(), std::move(done));
  }
}

ControlPlane::Switched ControlPlane::SwitchedBy(const Run& run,
                                                const Plan& config) const {
  Switched now;
  if (const auto plan = run.plans.ForAll();
      plan != nullptr && plan->spec.enabled()) {
    const v1::PlanSpec& spec = plan->spec;
    if (spec.for_steps() > 0)
      now.until = spec.effective_at_step() + spec.for_steps();
    now.on = !now.until.has_value() || FurthestStep(run.name) + 1 < *now.until;
  }
  // What is on for some steps ends with them, also if the config says on.
  if (!now.on) now.until.reset();
  now.on = config.dump_enable.value_or(now.on);
  return now;
}

void ControlPlane::SetConfig(const v1::SetConfigRequest& request,
                             SwitchDone done, const std::string& who) {
  if (const absl::Status status = CheckRunName(request.run()); !status.ok())
    return done(status);
  auto config = RunPlans::Parse(request.config_json());
  if (!config.ok()) return done(config.status());
  if (!request.api_list().empty()) {
    const absl::Status status = ParseApiList(request.api_list()).status();
    if (!status.ok()) {
      return done(absl::InvalidArgumentError(
          absl::StrCat("the API list: ", status.message())));
    }
  }
  if (const absl::Status status = ReadRun(request.run()); !status.ok())
    return done(status);
  const RunQueuedAfter save(&saves_);
  absl::MutexLock lock(&mutex_);
  Run* const run = LoadRun(request.run());
  v1::PlanSpec spec;
  spec.set_config_json(request.config_json());
  spec.set_source(v1::PlanSpec::SOURCE_OPERATOR);
  spec.set_source_detail(who);
  if (request.has_api_list()) spec.set_api_list(request.api_list());
  Switched switched = SwitchedBy(*run, **config);
  spec.set_enabled(switched.on);
  if (request.options().for_steps() > 0) switched.until.reset();
  Switch(request.run(), std::move(spec), *std::move(config),
         request.expected_epoch(), request.options(), std::move(done),
         switched.until);
}

absl::StatusOr<v1::GetConfigResponse> ControlPlane::GetConfig(
    const std::string& name) {
  RP_RETURN_IF_ERROR(CheckRunName(name));
  RP_RETURN_IF_ERROR(ReadRun(name));
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
  response.set_from_first_step(run->plans.ForAll()->spec.from_first_step());
  response.set_source(run->plans.ForAll()->spec.source());
  response.set_source_detail(run->plans.ForAll()->spec.source_detail());
  response.set_config_fault(run->edits.fault());
  response.set_api_list(run->plans.ForAll()->spec.api_list());
  return response;
}

void ControlPlane::ForgetFinished(Run* run) {
  run->switches.remove_if([](const std::shared_ptr<SwitchOperation>& op) {
    return op->finished();
  });
}

}  // namespace rankprobe
