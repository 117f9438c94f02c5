// SPDX-License-Identifier: Apache-2.0
// ControlPlane: events, triggers, budgets of runs, and Explain.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/control/control_plane.h"
#include "common/base/status_macros.h"
#include "common/base/step_range.h"
#include "common/config/trigger_spec.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kExplainTimeout = absl::Seconds(2);
constexpr uint32_t kTriggerSwitchTimeoutMs = 10000;
constexpr uint32_t kMaxExplainedCalls = 20000;
constexpr int kMaxReportedCalls = 20000;

std::string Who(const v1::Identity& identity) {
  return identity.has_rank() ? absl::StrCat("rank ", identity.rank())
                             : absl::StrCat("proc", identity.pid());
}

}  // namespace

v1::Event ControlPlane::EventOf(v1::Event::Kind kind, const Agent& agent) {
  v1::Event event;
  event.set_kind(kind);
  event.set_run(agent.identity.run());
  *event.mutable_identity() = agent.identity;
  event.set_step(agent.step);
  return event;
}

uint64_t ControlPlane::EmitEvent(v1::Event event) {
  return options_.events == nullptr ? 0
                                    : options_.events->Append(std::move(event));
}

void ControlPlane::TellAllRuns(v1::Event::Kind kind, const std::string& what,
                               const std::string& outcome) {
  std::set<std::string> runs;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [session, agent] : agents_)
      if (agent.connected) runs.insert(agent.identity.run());
  }
  // It is told also where nobody is connected.
  if (runs.empty()) runs.insert("");
  for (const std::string& run : runs) {
    v1::Event event;
    event.set_kind(kind);
    event.set_run(run);
    event.set_step(-1);
    event.set_detail(what);
    event.set_outcome(outcome);
    EmitEvent(std::move(event));
  }
}

void ControlPlane::SendToRun(const std::string& run,
                             const v1::Directive& directive) {
  for (auto& [session, agent] : agents_) {
    if (agent.connected && agent.identity.run() == run) agent.sender(directive);
  }
}

absl::StatusOr<uint64_t> ControlPlane::SetTriggers(
    const v1::SetTriggersRequest& request) {
  RP_RETURN_IF_ERROR(CheckRunName(request.run()));
  RP_RETURN_IF_ERROR(CheckTriggerSpec(request.spec()));
  RP_RETURN_IF_ERROR(ReadRun(request.run()));
  uint64_t ranks = 0;
  // In the order of the saves: what the store has last is what is in force.
  RP_RETURN_IF_ERROR(plans_.Await(plans_.QueueSave(
      PlanTable::TriggerRows(request.run(), TriggerSpecToJson(request.spec())),
      [&] {
        absl::MutexLock lock(&mutex_);
        Run* const run = LoadRun(request.run());
        run->triggers.Set(request.spec());
        v1::Directive directive;
        *directive.mutable_triggers() = run->triggers.spec();
        SendToRun(request.run(), directive);
        ranks = CountConnected(request.run());
      })));
  return ranks;
}

uint64_t ControlPlane::CountConnected(const std::string& run) const {
  return static_cast<uint64_t>(
      std::count_if(agents_.begin(), agents_.end(), [&run](const auto& agent) {
        return agent.second.connected && agent.second.identity.run() == run;
      }));
}

absl::StatusOr<v1::TriggerSpec> ControlPlane::GetTriggers(
    const std::string& name) {
  RP_RETURN_IF_ERROR(CheckRunName(name));
  RP_RETURN_IF_ERROR(ReadRun(name));
  absl::MutexLock lock(&mutex_);
  const Run* const run = LoadRun(name);
  if (!run->triggers.set())
    return absl::NotFoundError(
        absl::StrCat("run \"", name, "\" has no triggers"));
  return run->triggers.spec();
}

absl::StatusOr<uint64_t> ControlPlane::ShipFlight(
    const v1::ShipFlightRequest& request) {
  RP_RETURN_IF_ERROR(CheckRunName(request.run()));
  RP_RETURN_IF_ERROR(ReadRun(request.run()));
  absl::MutexLock lock(&mutex_);
  const Run* const run = LoadRun(request.run());
  if (run->triggers.spec().flight().steps() == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "run \"", request.run(), "\" has no flight recorder (triggers set)"));
  }
  v1::Directive directive;
  directive.mutable_ship_flight()->set_reason("asked for");
  uint64_t count = 0;
  for (auto& [session, agent] : agents_) {
    const bool chosen =
        request.ranks().empty() ||
        (agent.identity.has_rank() &&
         std::find(request.ranks().begin(), request.ranks().end(),
                   agent.identity.rank()) != request.ranks().end());
    if (!agent.connected || agent.identity.run() != request.run() || !chosen)
      continue;
    agent.sender(directive);
    ++count;
  }
  if (count == 0) return absl::NotFoundError("no such rank is connected");
  return count;
}

v1::ListEventsResponse ControlPlane::ListEvents(
    const v1::ListEventsRequest& request) const {
  v1::ListEventsResponse response;
  if (options_.events == nullptr) return response;
  const size_t limit = request.limit() == 0 ? 1000 : request.limit();
  for (v1::Event& event : options_.events->List(
           request.run(), request.after_id(), std::min<size_t>(limit, 10000)))
    *response.add_events() = std::move(event);
  return response;
}

void ControlPlane::OnTriggerEvent(Agent* agent, Run* run,
                                  const v1::AgentEvent& event) {
  switch (event.event_case()) {
    case v1::AgentEvent::kFired:
      if (auto fired = run->triggers.OnFired(agent->identity, event.fired());
          fired.has_value())
        ExecuteRule(
            run, *fired,
            fired->rule.reaches_all_ranks() ? Reach() : ReachOf(*agent));
      break;
    case v1::AgentEvent::kReplica:
      for (const RunTriggers::Fired& fired : run->triggers.OnReplica(
               agent->identity, event.replica(),
               static_cast<size_t>(CountConnected(agent->identity.run()))))
        ExecuteRule(run, fired, Reach());
      break;
    case v1::AgentEvent::kBudget: {
      v1::Event told = EventOf(v1::Event::KIND_DEGRADED, *agent);
      told.set_step(event.budget().step());
      told.set_detail(absl::StrCat(event.budget().budget().substr(0, 64), ": ",
                                   event.budget().used(), " of ",
                                   event.budget().limit()));
      told.set_outcome(event.budget().degraded() >= 2
                           ? "checksums only"
                           : "statistics instead of tensors");
      EmitEvent(std::move(told));
      break;
    }
    case v1::AgentEvent::kDifference:
      OnDifference(*agent, run, event.difference());
      break;
    case v1::AgentEvent::kError: {
      v1::Event told = EventOf(v1::Event::KIND_ERROR, *agent);
      told.set_step(ReportedStep(event.error().step()));
      told.set_detail(event.error().message().substr(0, 1024));
      EmitEvent(std::move(told));
      break;
    }
    case v1::AgentEvent::kFlight: {
      v1::Event told = EventOf(v1::Event::KIND_FLIGHT_SHIPPED, *agent);
      told.set_step(event.flight().last_step());
      told.set_detail(absl::StrCat(event.flight().steps(), " steps, ",
                                   event.flight().first_step(), " to ",
                                   event.flight().last_step()));
      EmitEvent(std::move(told));
      break;
    }
    case v1::AgentEvent::kCalls:
      for (auto& op : explains_) {
        if (op->id != event.calls().id()) continue;
        const auto it = op->waiting.find(agent->identity.incarnation());
        if (it == op->waiting.end()) continue;
        op->waiting.erase(it);
        if (event.calls().calls().items_size() <= kMaxReportedCalls)
          op->reports[agent->identity.incarnation()] = event.calls();
      }
      FinishExplains();
      break;
    default:
      break;
  }
}

// A rule has come true: remember it, save what the ranks remember, look closer.
void ControlPlane::ExecuteRule(Run* run, const RunTriggers::Fired& fired,
                               const Reach& reach) {
  const std::string& name = fired.identity.run();
  v1::Event event;
  event.set_kind(v1::Event::KIND_TRIGGER_FIRED);
  event.set_run(name);
  *event.mutable_identity() = fired.identity;
  event.set_step(fired.step);
  event.set_rule(fired.rule.name());
  event.set_entry(fired.entry.substr(0, 4096));
  event.set_detail(fired.detail.substr(0, 1024));
  std::string why;
  const absl::Time now = MonotonicNow();
  if (!run->triggers.TryStartCooldown(fired.rule, reach.domain, now, &why)) {
    event.set_outcome(absl::StrCat("nothing more: ", why));
    EmitEvent(std::move(event));
    return;
  }
  std::string outcome;
  if (run->triggers.spec().flight().steps() > 0) {
    v1::Directive directive;
    directive.mutable_ship_flight()->set_reason(fired.rule.name());
    outcome = absl::StrCat("flight recorder of ",
                           SendTo(reach, name, directive), " ranks asked for");
  }
  const auto add = [&outcome](absl::string_view text) {
    absl::StrAppend(&outcome, outcome.empty() ? "" : "; ", text);
  };
  v1::SwitchOptions options;
  options.set_for_steps(fired.rule.for_steps());
  options.set_timeout_ms(kTriggerSwitchTimeoutMs);
  const bool one = fired.rule.only_fired_rank() && fired.identity.has_rank();
  if (one) {
    options.add_ranks(fired.identity.rank());
  } else {
    for (const int64_t rank : reach.ranks) options.add_ranks(rank);
  }
  // Without a rank it cannot be told from the others.
  const bool raise = fired.rule.raise_to() != v1::TriggerRule::EVIDENCE_NONE &&
                     (reach.all || options.ranks_size() > 0);
  const bool kept_off = !run->edits.fault().empty();
  if (raise && kept_off) {
    add("the config file cannot be used: dumping stays off");
  } else if (raise && DumpingNow(*run)) {
    add("an operator's dump is on and stays as it is");
  } else if (raise) {
    add(absl::StrCat(EvidenceName(fired.rule.raise_to()), " at level ",
                     fired.rule.level(), " for ", fired.rule.for_steps(),
                     " steps on ",
                     one         ? Who(fired.identity)
                     : reach.all ? "all ranks"
                                 : "the ranks of its token"));
  }
  if (!reach.all && !one)
    add("no other token's: reaches_all_ranks of the rule is not set");
  event.set_outcome(outcome);
  const uint64_t id = EmitEvent(event);
  if (!raise || kept_off || DumpingNow(*run)) return;
  v1::PlanSpec spec;
  spec.set_enabled(true);
  spec.set_config_json(RaisedConfigJson(fired.rule));
  spec.set_cause(fired.rule.name());
  spec.set_source(v1::PlanSpec::SOURCE_TRIGGER);
  spec.set_source_detail(fired.rule.name());
  spec.set_operator_config_json(OperatorConfig(*run));
  // Made here from a checked rule, and small.
  auto config = RunPlans::Parse(spec.config_json());
  if (!config.ok()) return;
  Switch(name, std::move(spec), *std::move(config), /*expected_epoch=*/0,
         options,
         [this, event, id](const absl::StatusOr<v1::SwitchResult>& result) {
           v1::Event told = event;
           told.set_kind(v1::Event::KIND_SWITCHED);
           told.set_detail(absl::StrCat("for event ", id));
           if (result.ok()) told.set_step(result->effective_at_step());
           told.set_outcome(result.ok() ? result->summary()
                                        : result.status().ToString());
           EmitEvent(std::move(told));
         });
}

bool ControlPlane::DumpingNow(const Run& run) const {
  const auto plan = run.plans.ForAll();
  if (!run.switches.empty()) return true;
  if (plan == nullptr || !plan->spec.enabled()) return false;
  if (plan->spec.for_steps() == 0) return true;
  const int64_t over = plan->spec.effective_at_step() + plan->spec.for_steps();
  return std::any_of(agents_.begin(), agents_.end(), [&](const auto& agent) {
    return agent.second.connected && run.name == agent.second.identity.run() &&
           agent.second.step < over;
  });
}

std::string ControlPlane::OperatorConfig(const Run& run) {
  const auto plan = run.plans.ForAll();
  if (plan == nullptr) return std::string(DefaultConfigJson());
  return plan->spec.cause().empty() ? plan->spec.config_json()
                                    : plan->spec.operator_config_json();
}

void ControlPlane::NoteRunBytes(const v1::Identity& identity, uint64_t bytes) {
  // Of a rank that is gone and whose run is forgotten nobody counts bytes: made
  // anew here it would have no plan.
  const auto it = runs_.find(identity.run());
  if (it == runs_.end()) return;
  Run* const run = &it->second;
  run->last_used = MonotonicNow();
  const std::optional<uint32_t> level = run->triggers.OnBytes(bytes);
  if (!level.has_value()) return;
  v1::Directive directive;
  directive.mutable_degrade()->set_level(*level);
  SendToRun(identity.run(), directive);
  v1::Event told;
  told.set_kind(v1::Event::KIND_DEGRADED);
  told.set_run(identity.run());
  told.set_step(-1);
  told.set_detail(absl::StrCat("bytes_per_run: ", run->triggers.bytes(), " of ",
                               run->triggers.spec().budget().bytes_per_run()));
  told.set_outcome(*level >= 2 ? "checksums only"
                               : "statistics instead of tensors");
  EmitEvent(std::move(told));
}

void ControlPlane::CheckSilence(absl::Time now) {
  if (now < next_silence_check_) return;
  next_silence_check_ = now + absl::Milliseconds(200);
  // One pass over the agents, however many runs there are.
  std::map<std::string, std::vector<RunTriggers::Rank>> watched;
  for (const auto& [name, run] : runs_) {
    const auto& rules = run.triggers.spec().rules();
    if (std::any_of(rules.begin(), rules.end(),
                    [](const auto& rule) { return rule.has_silence(); }))
      watched[name];
  }
  if (watched.empty()) return;
  for (const auto& [session, agent] : agents_) {
    const auto it = watched.find(agent.identity.run());
    if (it == watched.end()) continue;
    it->second.push_back({agent.identity, agent.step, agent.connected,
                          agent.farewell, agent.last_moved});
  }
  for (const auto& [name, ranks] : watched) {
    // Nobody can be silent, and to look is not to use: with a rule for all runs
    // none would ever be forgotten.
    if (ranks.empty()) continue;
    Run* const run = &runs_.find(name)->second;
    for (const RunTriggers::Fired& fired :
         run->triggers.CheckSilence(ranks, now))
      ExecuteRule(run, fired, Reach());
  }
}

void ControlPlane::Explain(const v1::ExplainRequest& request,
                           ExplainDone done) {
  if (const absl::Status status = CheckRunName(request.run()); !status.ok())
    return done(status);
  std::shared_ptr<const CompiledPlan> hypothetical;
  if (!request.config_json().empty()) {
    v1::PlanSpec spec;
    spec.set_config_json(request.config_json());
    spec.set_enabled(true);
    auto compiled = RunPlans::Compile(spec);
    if (!compiled.ok()) return done(compiled.status());
    hypothetical = *std::move(compiled);
  }
  if (const absl::Status status = ReadRun(request.run()); !status.ok())
    return done(status);
  absl::MutexLock lock(&mutex_);
  auto op = std::make_unique<ExplainOperation>();
  op->id = next_explain_++;
  op->request = request;
  op->hypothetical = std::move(hypothetical);
  op->done = std::move(done);
  op->deadline = MonotonicNow() + kExplainTimeout;
  v1::Directive directive;
  directive.mutable_report_calls()->set_id(op->id);
  for (auto& [session, agent] : agents_) {
    if (!Asked(request, agent) || !agent.connected) continue;
    op->waiting.insert(agent.identity.incarnation());
    agent.sender(directive);
  }
  explains_.push_back(std::move(op));
  FinishExplains();
}

bool ControlPlane::Asked(const v1::ExplainRequest& request,
                         const Agent& agent) {
  return agent.identity.run() == request.run() &&
         (!request.has_rank() || (agent.identity.has_rank() &&
                                  agent.identity.rank() == request.rank()));
}

void ControlPlane::FinishExplains() {
  const absl::Time now = MonotonicNow();
  for (auto it = explains_.begin(); it != explains_.end();) {
    ExplainOperation& op = **it;
    if (!op.waiting.empty() && now < op.deadline) {
      ++it;
      continue;
    }
    op.done(Answer(op));
    it = explains_.erase(it);
  }
}

v1::ExplainResponse ControlPlane::Answer(const ExplainOperation& op) {
  v1::ExplainResponse response;
  Run* const run = LoadRun(op.request.run());
  if (run->plans.ForAll() != nullptr)
    response.set_epoch(run->plans.ForAll()->spec.epoch());
  ExplainQuestion question;
  question.call = op.request.call();
  if (op.request.has_step()) question.step = op.request.step();
  question.hypothetical = op.hypothetical != nullptr;
  if (op.request.max_calls() > 0)
    question.max_calls = std::min(op.request.max_calls(), kMaxExplainedCalls);
  const absl::Time now = MonotonicNow();
  for (const auto& [session, agent] : agents_) {
    if (!Asked(op.request, agent)) continue;
    RankFacts facts;
    facts.identity = agent.identity;
    facts.connected = agent.connected;
    facts.step = agent.step;
    facts.silent_ms = absl::ToInt64Milliseconds(now - agent.last_heard);
    facts.degrade = run->triggers.degrade();
    facts.late_epoch = agent.late_epoch;
    facts.late_reason = agent.late_reason;
    const auto report = op.reports.find(agent.identity.incarnation());
    if (report != op.reports.end()) facts.report = report->second;
    const auto in_force = run->plans.ForRank(RankOf(agent.identity));
    if (in_force != nullptr) facts.api_list = in_force->spec.api_list();
    *response.add_ranks() = ExplainRank(
        question, op.hypothetical != nullptr ? op.hypothetical : in_force,
        facts);
  }
  if (response.ranks().empty()) {
    v1::Explanation& stage = *response.add_stages();
    stage.set_stage("connected");
    stage.set_reason(
        op.request.has_rank()
            ? absl::StrCat("rank ", op.request.rank(), " is not connected")
            : "no rank of this run is connected");
  }
  std::sort(response.mutable_ranks()->begin(), response.mutable_ranks()->end(),
            [](const v1::RankExplanation& a, const v1::RankExplanation& b) {
              return std::make_pair(a.identity().rank(), a.identity().pid()) <
                     std::make_pair(b.identity().rank(), b.identity().pid());
            });
  return response;
}

}  // namespace rankprobe
