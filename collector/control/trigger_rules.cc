// SPDX-License-Identifier: Apache-2.0
#include "collector/control/trigger_rules.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/base/step_range.h"
#include "common/config/trigger_spec.h"
#include "common/text/counted.h"

namespace rankprobe {
namespace {

constexpr char kDifferencesReached[] = "diff_nums reached";

// Returns a plan that the run's own data causes, without an operator or a file.
v1::PlanSpec OwnSpec(const RunState& run, bool enabled,
                     const std::string& config_json, const std::string& cause) {
  v1::PlanSpec spec;
  spec.set_enabled(enabled);
  spec.set_config_json(config_json);
  spec.set_cause(cause);
  spec.set_source(v1::PlanSpec::SOURCE_TRIGGER);
  spec.set_source_detail(cause);
  spec.set_operator_config_json(run.OperatorConfig());
  return spec;
}

}  // namespace

absl::StatusOr<uint64_t> TriggerRules::Set(
    const v1::SetTriggersRequest& request) {
  RP_RETURN_IF_ERROR(CheckTriggerSpec(request.spec()));
  RP_RETURN_IF_ERROR(saved_->Read(request.run()));
  uint64_t ranks = 0;
  // Set when saved, in the order of the saves, so that the last triggers in the
  // store are those in force.
  RP_RETURN_IF_ERROR(core_->plans.Await(core_->plans.QueueSave(
      PlanTable::TriggerRows(request.run(), TriggerSpecToJson(request.spec())),
      [&] {
        const ControlLock lock(core_);
        RunState* const run = core_->LoadRun(request.run());
        run->triggers.Set(request.spec());
        v1::Directive directive;
        *directive.mutable_triggers() = run->triggers.spec();
        ranks = core_->sessions.Send(directive, request.run());
      })));
  return ranks;
}

absl::StatusOr<v1::TriggerSpec> TriggerRules::Get(const std::string& name) {
  RP_RETURN_IF_ERROR(saved_->Read(name));
  const ControlLock lock(core_);
  const RunState* const run = core_->LoadRun(name);
  if (run->triggers.set()) return run->triggers.spec();
  return absl::NotFoundError(
      absl::StrCat("run \"", name, "\" has no triggers"));
}

absl::StatusOr<uint64_t> TriggerRules::ShipFlight(
    const v1::ShipFlightRequest& request) {
  if (request.request().size() > kMaxRequestIdBytes)
    return absl::InvalidArgumentError("a request's id is over 256 bytes");
  RP_RETURN_IF_ERROR(saved_->Read(request.run()));
  const ControlLock lock(core_);
  const RunState* const run = core_->LoadRun(request.run());
  if (run->triggers.spec().flight().steps() == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "run \"", request.run(), "\" has no flight recorder (triggers set)"));
  }
  const std::vector<AgentSession*> chosen = core_->sessions.ConnectedOf(
      request.run(), {request.ranks().begin(), request.ranks().end()});
  if (chosen.empty()) return absl::NotFoundError("no such rank is connected");
  v1::Directive directive;
  directive.mutable_ship_flight()->set_reason("asked for");
  directive.mutable_ship_flight()->set_request(request.request());
  for (const AgentSession* agent : chosen) agent->sender(directive);
  return chosen.size();
}

void TriggerRules::OnFired(const AgentSession& agent, RunState* run,
                           const v1::TriggerFired& fired) {
  const auto rule = run->triggers.OnFired(agent.identity, fired);
  if (!rule.has_value()) return;
  Execute(run, *rule,
          rule->rule.reaches_all_ranks() ? Reach()
                                         : core_->sessions.ReachOf(agent));
}

void TriggerRules::OnReplica(const AgentSession& agent, RunState* run,
                             const v1::ReplicaDigest& replica) {
  for (const RunTriggers::Fired& fired :
       run->triggers.OnReplica(agent.identity, replica,
                               core_->sessions.ConnectedOf(run->name).size()))
    Execute(run, fired, Reach());
}

void TriggerRules::Execute(RunState* run, const RunTriggers::Fired& fired,
                           const Reach& reach) {
  v1::Event event;
  event.set_kind(v1::Event::KIND_TRIGGER_FIRED);
  event.set_run(run->name);
  *event.mutable_identity() = fired.identity;
  event.set_step(fired.step);
  event.set_rule(fired.rule.name());
  event.set_entry(fired.entry.substr(0, 4096));
  event.set_detail(fired.detail.substr(0, 1024));
  std::string why;
  if (!run->triggers.TryStartCooldown(fired.rule, reach.domain, core_->Now(),
                                      &why)) {
    event.set_outcome(absl::StrCat("nothing more: ", why));
    core_->Emit(std::move(event));
    return;
  }
  std::string outcome;
  if (run->triggers.spec().flight().steps() > 0) {
    v1::Directive directive;
    directive.mutable_ship_flight()->set_reason(fired.rule.name());
    outcome = absl::StrCat(
        "flight recorder of ",
        Counted(core_->sessions.Send(directive, run->name, reach), "rank"),
        " asked for");
  }
  const auto add = [&outcome](absl::string_view text) {
    absl::StrAppend(&outcome, outcome.empty() ? "" : "; ", text);
  };
  v1::SwitchOptions options;
  options.set_for_steps(fired.rule.for_steps());
  options.set_timeout_ms(kOwnSwitchTimeoutMs);
  const bool one = fired.rule.only_fired_rank() && fired.identity.has_rank();
  if (one) {
    options.add_ranks(fired.identity.rank());
  } else {
    for (const int64_t rank : reach.ranks) options.add_ranks(rank);
  }
  // Without a rank the process cannot be selected.
  bool raise = fired.rule.raise_to() != v1::TriggerRule::EVIDENCE_NONE &&
               (reach.all || options.ranks_size() > 0);
  if (raise && !run->edits.fault().empty()) {
    add("the config file cannot be used: dumping stays off");
    raise = false;
  } else if (raise && DumpingNow(*run)) {
    add("recording is on already and stays as it is");
    raise = false;
  } else if (raise) {
    add(absl::StrCat(EvidenceName(fired.rule.raise_to()), " at level ",
                     fired.rule.level(), " for ", fired.rule.for_steps(),
                     " steps on ",
                     one         ? RankText(fired.identity)
                     : reach.all ? "all ranks"
                                 : "the ranks of its token"));
  }
  if (!reach.all && !one)
    add("no other token's: reaches_all_ranks of the rule is not set");
  event.set_outcome(outcome);
  const uint64_t id = core_->Emit(event);
  if (!raise) return;
  v1::PlanSpec spec =
      OwnSpec(*run, true, RaisedConfigJson(fired.rule), fired.rule.name());
  // Not expensive under the lock: the config was made here from a checked rule,
  // and is small.
  auto config = RunPlans::Parse(spec.config_json());
  if (!config.ok()) return;
  switches_->Begin(run,
                   {std::move(spec), std::move(options), *std::move(config)},
                   [core = core_, event,
                    id](const absl::StatusOr<v1::SwitchResult>& result) {
                     v1::Event told = event;
                     told.set_kind(v1::Event::KIND_SWITCHED);
                     told.set_detail(absl::StrCat("for event ", id));
                     if (result.ok())
                       told.set_step(result->effective_at_step());
                     told.set_outcome(result.ok() ? result->summary()
                                                  : result.status().ToString());
                     core->Emit(std::move(told));
                   });
}

void TriggerRules::OnDifference(const AgentSession& agent, RunState* run,
                                const v1::ReferenceDifference& untrusted) {
  const uint64_t epoch = untrusted.plan_epoch();
  // An agent that has not yet received the run's plan records under its own,
  // which is the same one.
  const std::shared_ptr<const CompiledPlan> plan =
      epoch == 0 ? run->plans.ForRank(RankOf(agent.identity))
                 : run->plans.ByEpoch(epoch);
  v1::Event event = agent.EventOf(v1::Event::KIND_DIFFERENCE);
  event.set_step(ReportedStep(untrusted.step()));
  event.set_entry(untrusted.entry().substr(0, 4096));
  event.set_detail(untrusted.detail().substr(0, 1024));
  if (plan != nullptr) {
    const Reach reach = core_->sessions.ReachOf(agent);
    const int64_t count =
        run->reference.Add({plan->spec.epoch(), reach.domain}, plan->plan);
    event.set_outcome(
        plan->plan.diff_nums == -1
            ? absl::StrCat("difference ", count)
            : absl::StrCat("difference ", count, " of ", plan->plan.diff_nums,
                           reach.all ? "" : " for the ranks of its token"));
  }
  core_->Emit(std::move(event));
  EndSpentPlans(run);
}

void TriggerRules::EndSpentPlans(RunState* run) {
  if (!run->switches.empty()) return;
  const std::optional<ReferenceBudget::Key> key = run->reference.TakeSpent();
  if (!key.has_value()) return;
  const std::shared_ptr<const CompiledPlan> plan =
      run->plans.ByEpoch(key->epoch);
  v1::SwitchOptions options;
  options.set_timeout_ms(kOwnSwitchTimeoutMs);
  bool in_force = plan != nullptr && plan->spec.enabled();
  if (in_force && (run->plans.ForAll() != plan || !key->domain.empty())) {
    // The plan is for single ranks, or was spent by those of one token.
    for (const AgentSession* agent : core_->sessions.ConnectedOf(run->name)) {
      if (agent->identity.has_rank() &&
          (key->domain.empty() ||
           SessionTable::DomainOf(agent->peer.principal) == key->domain) &&
          run->plans.ForRank(agent->identity.rank()) == plan)
        options.add_ranks(agent->identity.rank());
    }
    in_force = options.ranks_size() > 0;
  }
  if (!in_force) return run->reference.Forget(*key);
  switches_->Begin(
      run,
      {OwnSpec(*run, false, plan->spec.config_json(), kDifferencesReached),
       std::move(options), plan->config},
      [core = core_,
       name = run->name](const absl::StatusOr<v1::SwitchResult>& result) {
        core->Tell(v1::Event::KIND_SWITCHED, name,
                   absl::StrCat("off: ", kDifferencesReached),
                   result.ok() ? result->summary() : result.status().ToString(),
                   result.ok() ? result->effective_at_step() : -1);
      });
}

bool TriggerRules::DumpingNow(const RunState& run) {
  const auto plan = run.plans.ForAll();
  if (!run.switches.empty()) return true;
  if (plan == nullptr || !plan->spec.enabled()) return false;
  if (plan->spec.for_steps() == 0) return true;
  const int64_t over = plan->spec.effective_at_step() + plan->spec.for_steps();
  const std::vector<AgentSession*> agents =
      core_->sessions.ConnectedOf(run.name);
  return std::any_of(agents.begin(), agents.end(),
                     [&](const auto* agent) { return agent->step < over; });
}

void TriggerRules::NoteBytes(RunState* run, uint64_t bytes) {
  const std::optional<uint32_t> level = run->triggers.OnBytes(bytes);
  if (!level.has_value()) return;
  v1::Directive directive;
  directive.mutable_degrade()->set_level(*level);
  core_->sessions.Send(directive, run->name);
  core_->Tell(v1::Event::KIND_DEGRADED, run->name,
              absl::StrCat("bytes_per_run: ", run->triggers.bytes(), " of ",
                           run->triggers.spec().budget().bytes_per_run()),
              *level >= 2 ? "checksums only" : "statistics instead of tensors");
}

void TriggerRules::CheckSilence(absl::Time now) {
  if (now < next_silence_check_) return;
  next_silence_check_ = now + absl::Milliseconds(200);
  // One pass over the agents, however many runs there are.
  std::map<std::string, std::vector<RunTriggers::Rank>> watched;
  for (const auto& [name, run] : core_->runs) {
    const auto& rules = run.triggers.spec().rules();
    if (std::any_of(rules.begin(), rules.end(),
                    [](const auto& rule) { return rule.has_silence(); }))
      watched[name];
  }
  if (watched.empty()) return;
  for (const auto& [session, agent] : core_->sessions.all()) {
    const auto it = watched.find(agent.identity.run());
    if (it == watched.end()) continue;
    it->second.push_back({agent.identity, agent.step, agent.connected,
                          agent.farewell, agent.last_moved});
  }
  for (const auto& [name, ranks] : watched) {
    // No rank can be silent. Also, checking must not count as use: with a rule
    // for all runs none would ever be dropped.
    if (ranks.empty()) continue;
    RunState* const run = core_->FindRun(name);
    for (const RunTriggers::Fired& fired :
         run->triggers.CheckSilence(ranks, now))
      Execute(run, fired, Reach());
  }
}

}  // namespace rankprobe
