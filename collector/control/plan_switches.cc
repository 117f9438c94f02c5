// SPDX-License-Identifier: Apache-2.0
#include "collector/control/plan_switches.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "collector/auth/token_table.h"
#include "common/base/step_range.h"
#include "common/config/plan_digest.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// Limit for an agent's text.
constexpr size_t kMaxReasonBytes = 1024;

// Not used for switches by triggers and files, whose events contain the reason.
std::string DescribeSwitch(const std::vector<int64_t>& ranks,
                           const v1::PlanSpec& spec) {
  std::string what = spec.enabled() ? "dumping on" : "dumping off";
  if (spec.for_steps() == 1) absl::StrAppend(&what, " for one step");
  if (spec.for_steps() > 1)
    absl::StrAppend(&what, " for ", spec.for_steps(), " steps");
  if (!ranks.empty()) absl::StrAppend(&what, ", ranks ", IntSet(ranks).Text());
  const bool is_named = !spec.source_detail().empty() &&
                        spec.source_detail() != Principal::kAnybody;
  return absl::StrCat(what, ", by ",
                      is_named ? spec.source_detail() : "an operator");
}

}  // namespace

void PlanSwitches::Begin(RunState* run, SwitchOperation::Request request,
                         Done done, uint64_t expected_epoch) {
  v1::PlanSpec& spec = request.spec;
  const v1::SwitchOptions& options = request.options;
  if (expected_epoch != 0 && expected_epoch != run->plans.last_epoch()) {
    return done(absl::AbortedError(
        absl::StrCat("the run is at epoch ", run->plans.last_epoch(), ", not ",
                     expected_epoch, ": someone else has changed it")));
  }
  // An operator's command cancels the switch of a file edit.
  if (spec.source() == v1::PlanSpec::SOURCE_OPERATOR) {
    CallOff(run, [](const SwitchOperation& op) {
      return op.source() == v1::PlanSpec::SOURCE_FILE;
    });
  }
  if (!run->switches.empty()) {
    return done(
        absl::AbortedError("another switch of this run is in progress"));
  }
  if (!IsStep(options.at_step()) || !IsStep(options.for_steps())) {
    return done(absl::InvalidArgumentError(
        absl::StrCat("at_step and for_steps must be 0 .. ", kMaxStep)));
  }
  const std::vector<int64_t> ranks(options.ranks().begin(),
                                   options.ranks().end());
  std::vector<std::string> sessions;
  std::vector<int64_t> steps;
  std::vector<AgentSession*> agents =
      core_->sessions.ConnectedOf(run->name, ranks);
  // Agents that cannot record would refuse the switch for all, so they are left
  // out. If there are only such agents, their refusal gives the reason.
  const auto cannot = [](const AgentSession* agent) {
    return agent->cannot_record;
  };
  if (spec.enabled() && !std::all_of(agents.begin(), agents.end(), cannot))
    std::erase_if(agents, cannot);
  for (const AgentSession* agent : agents) {
    sessions.push_back(agent->id);
    steps.push_back(agent->step);
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
  if (const auto plan = run->plans.ForAll(); plan != nullptr) {
    // The run's list is kept until an operator gives another.
    if (!spec.has_api_list() && plan->spec.has_api_list())
      spec.set_api_list(plan->spec.api_list());
    // An unusable file switches off a plan that is agreed on and not yet in
    // force.
    if (plan->spec.enabled() && !spec.enabled() &&
        spec.source() == v1::PlanSpec::SOURCE_FILE &&
        plan->spec.source() != v1::PlanSpec::SOURCE_OPERATOR &&
        plan->spec.effective_at_step() > furthest)
      request.not_after = plan->spec.effective_at_step();
  }
  run->switches.push_back(std::make_shared<SwitchOperation>(
      std::move(request), sessions, ActionsFor(run->name, ranks, sessions),
      std::move(done)));
  run->switches.back()->Start();
  run->ForgetFinishedSwitches();
}

void PlanSwitches::CallOff(
    RunState* run,
    const std::function<bool(const SwitchOperation& op)>& is_old) {
  for (auto& op : run->switches) {
    if (is_old(*op)) op->CallOff();
  }
  run->ForgetFinishedSwitches();
}

void PlanSwitches::Tick(RunState* run, absl::Time now) {
  for (auto& op : run->switches) op->Tick(now);
  run->ForgetFinishedSwitches();
}

SwitchOperation::Actions PlanSwitches::ActionsFor(
    const std::string& run_name, const std::vector<int64_t>& ranks,
    const std::vector<std::string>& sessions) {
  SwitchOperation::Actions actions;
  actions.send = [core = core_](const std::string& session,
                                const v1::Directive& directive) {
    core->AssertHeld();
    AgentSession* const agent = core->sessions.FindConnected(session);
    if (agent != nullptr) core->sessions.SendPlan(agent, directive);
  };
  actions.next_epoch = [core = core_, run_name] {
    core->AssertHeld();
    return core->LoadRun(run_name)->plans.NextEpoch();
  };
  actions.whose = [core = core_](const std::string& session) {
    core->AssertHeld();
    const AgentSession* const agent = core->sessions.Find(session);
    return agent == nullptr ? v1::Identity() : agent->identity;
  };
  actions.look = [core = core_](const std::string& session) {
    core->AssertHeld();
    const AgentSession* const agent = core->sessions.Find(session);
    // The session was replaced by a later one of its process.
    if (agent == nullptr) return SwitchProgress();
    const absl::Time now = core->Now();
    return SwitchProgress{
        agent->step, agent->pace.StepNanos(now),
        agent->connected && now - agent->last_moved >= agent->pace.IdleAfter()};
  };
  actions.save = [core = core_, run_name, ranks](const v1::PlanSpec& spec,
                                                 SwitchOperation::Saved saved) {
    core->plans.Save(PlanTable::NewPlan(run_name, spec, ranks),
                     [core, run_name, saved = std::move(saved)](
                         const absl::Status& status, bool synced) {
                       const ControlLock lock(core);
                       saved(status, synced);
                       core->LoadRun(run_name)->ForgetFinishedSwitches();
                     });
  };
  actions.agree = [this, run_name, ranks,
                   sessions](const std::shared_ptr<const CompiledPlan>& plan) {
    core_->AssertHeld();
    Agree(run_name, ranks, sessions, plan);
  };
  actions.converge = [this](const std::string& session,
                            const std::string& reason) {
    core_->AssertHeld();
    Converge(session, reason);
  };
  actions.take_back = [this, run_name, ranks] { TakeBack(run_name, ranks); };
  actions.now = [core = core_] { return core->Now(); };
  return actions;
}

void PlanSwitches::Agree(const std::string& run_name,
                         const std::vector<int64_t>& ranks,
                         const std::vector<std::string>& sessions,
                         const std::shared_ptr<const CompiledPlan>& plan) {
  RunState* const run = core_->LoadRun(run_name);
  run->plans.Set(plan, ranks);
  if (plan->spec.source() == v1::PlanSpec::SOURCE_OPERATOR) {
    // An operator's plan overrides a file that cannot be used.
    run->edits.SetFault("");
    core_->Tell(v1::Event::KIND_SWITCHED, run_name,
                DescribeSwitch(ranks, plan->spec),
                absl::StrCat("in force as plan ", plan->spec.epoch()),
                plan->spec.effective_at_step());
  }
  // A rank that connected during the switch got the old plan: its connection is
  // ended, so that it reconnects and gets this one.
  const absl::flat_hash_set<absl::string_view> asked(sessions.begin(),
                                                     sessions.end());
  for (const AgentSession* agent :
       core_->sessions.ConnectedOf(run_name, ranks)) {
    if (agent->peer.end != nullptr && !asked.contains(agent->id))
      agent->peer.end(absl::AbortedError(
          "the plan has changed since this session's welcome; connect again"));
  }
}

void PlanSwitches::Converge(const std::string& session,
                            const std::string& reason) {
  AgentSession* const agent = core_->sessions.FindConnected(session);
  if (agent == nullptr) return;
  const std::shared_ptr<const CompiledPlan> plan =
      core_->LoadRun(agent->identity.run())
          ->plans.ForRank(RankOf(agent->identity));
  if (plan == nullptr || agent->epoch >= plan->spec.epoch() ||
      agent->late_epoch == plan->spec.epoch())
    return;
  v1::Directive directive;
  *directive.mutable_adopt()->mutable_plan() = plan->spec;
  core_->sessions.SendPlan(agent, directive);
  agent->late_epoch = plan->spec.epoch();
  // The text is an agent's.
  agent->late_reason = VisibleText(reason.substr(0, kMaxReasonBytes));
  v1::Event told = agent->EventOf(v1::Event::KIND_SWITCHED);
  told.set_detail(absl::StrCat("did not follow to epoch ", plan->spec.epoch(),
                               " at step ", plan->spec.effective_at_step(),
                               ": ", agent->late_reason));
  told.set_outcome("it gets the plan at its next step");
  core_->Emit(std::move(told));
}

void PlanSwitches::TakeBack(const std::string& run_name,
                            const std::vector<int64_t>& ranks) {
  core_->plans.SaveLater([core = core_, run_name, ranks] {
    // Looked up when the save runs: everything that was saved before is decided
    // by then, or is not agreed on either.
    const ControlLock lock(core);
    const RunPlans& plans = core->LoadRun(run_name)->plans;
    PlanTable::Rows rows;
    const auto add = [&](std::optional<int64_t> rank) {
      const auto plan = plans.ForRank(rank);
      PlanTable::AddPlan(run_name, rank,
                         plan == nullptr ? v1::PlanSpec() : plan->spec, &rows);
    };
    if (ranks.empty()) add(std::nullopt);
    for (const int64_t rank : ranks) add(rank);
    return rows;
  });
}

void PlanSwitches::OnPrepared(AgentSession* agent, RunState* run,
                              const v1::PlanPrepared& prepared) {
  if (const int64_t step = ReportedStep(prepared.current_step()); std::all_of(
          run->switches.begin(), run->switches.end(),
          [&](const auto& op) { return op->Believes(agent->id, step); })) {
    agent->step = std::max(agent->step, step);
    agent->pace.Note(agent->step, 0, agent->last_heard);
  }
  bool answers = false;
  for (auto& op : run->switches)
    answers = op->OnPrepared(agent->id, prepared) || answers;
  if (answers || prepared.accepted()) return;
  // The switch has ended (--no-wait, or its time limit): only a plan that is
  // agreed on and was committed counts.
  const auto plan = run->plans.ForRank(RankOf(agent->identity));
  if (plan != nullptr && plan->spec.epoch() == prepared.epoch())
    Converge(agent->id, prepared.reason());
}

void PlanSwitches::OnApplied(AgentSession* agent, RunState* run,
                             const v1::PlanApplied& applied) {
  const int64_t step = ReportedStep(applied.step());
  agent->step = std::max(agent->step, step);
  NotePlan(applied.epoch(), applied.plan_digest(), *run, agent);
  if (agent->late_epoch != 0 && applied.epoch() >= agent->late_epoch) {
    agent->late_epoch = 0;
    v1::Event told = agent->EventOf(v1::Event::KIND_SWITCHED);
    told.set_step(step);
    told.set_detail(absl::StrCat("follows epoch ", applied.epoch(), " late"));
    told.set_outcome(
        absl::StrCat("the plan is in force from step ", step, " on"));
    core_->Emit(std::move(told));
  }
  FixFirstStep(run, applied);
  for (auto& op : run->switches) op->OnApplied(agent->id, applied);
}

void PlanSwitches::OnLost(const std::string& session, RunState* run) {
  for (auto& op : run->switches) op->OnLost(session);
  run->ForgetFinishedSwitches();
}

void PlanSwitches::NotePlan(uint64_t epoch, const std::string& digest,
                            const RunState& run, AgentSession* agent) {
  agent->epoch = epoch;
  agent->other_plan.clear();
  const auto plan = run.plans.ByEpoch(epoch);
  if (digest.empty() || plan == nullptr ||
      core_->sessions.IsForeign(agent->identity, epoch) ||
      PlanDigest(plan->spec) == digest)
    return;
  agent->other_plan = absl::StrCat(
      "it follows another plan of epoch ", epoch,
      " than this collector's; give it a new one: rankprobe config set");
  v1::Event told = agent->EventOf(v1::Event::KIND_ERROR);
  told.set_detail(agent->other_plan);
  core_->Emit(std::move(told));
}

void PlanSwitches::FixFirstStep(RunState* run, const v1::PlanApplied& applied) {
  const auto plan = run->plans.ByEpoch(applied.epoch());
  if (plan == nullptr || !plan->spec.from_first_step() ||
      applied.step() < plan->spec.effective_at_step())
    return;
  v1::PlanSpec spec = plan->spec;
  spec.set_effective_at_step(applied.step());
  spec.set_from_first_step(false);
  // If the step is not valid, the plan stays unresolved.
  const auto fixed = RunPlans::Compile(spec, plan->config);
  if (fixed.ok()) TakeBack(run->name, run->plans.Replace(*fixed));
}

PlanSwitches::Switched PlanSwitches::SwitchedBy(const RunState& run,
                                                const Plan& config) const {
  Switched now;
  if (const auto plan = run.plans.ForAll();
      plan != nullptr && plan->spec.enabled()) {
    const v1::PlanSpec& spec = plan->spec;
    if (spec.for_steps() > 0)
      now.until = spec.effective_at_step() + spec.for_steps();
    now.on = !now.until.has_value() ||
             core_->sessions.FurthestStep(run.name) + 1 < *now.until;
  }
  // If dumping is on for some steps, it ends with them, even if the config says
  // on.
  if (!now.on) now.until.reset();
  now.on = config.dump_enable.value_or(now.on);
  return now;
}

bool PlanSwitches::IsAhead(const AgentSession& agent,
                           const CompiledPlan* plan) {
  return plan != nullptr && plan->spec.epoch() > agent.epoch &&
         plan->spec.enabled() != agent.dumping &&
         plan->spec.effective_at_step() > agent.step &&
         !plan->spec.from_first_step();
}

}  // namespace rankprobe
