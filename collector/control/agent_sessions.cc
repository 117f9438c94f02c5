// SPDX-License-Identifier: Apache-2.0
#include "collector/control/agent_sessions.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "collector/auth/secret.h"
#include "common/base/limits.h"
#include "common/base/random_bytes.h"
#include "common/base/status_macros.h"
#include "common/base/step_range.h"
#include "common/config/trigger_spec.h"
#include "common/text/counted.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

constexpr size_t kSessionIdBytes = 16;
constexpr size_t kMaxLaneText = 200;
constexpr size_t kMaxLossReasonBytes = 500;
// Limit for the losses that a process may report, so that sums cannot overflow.
constexpr uint64_t kMaxUndelivered = uint64_t{1} << 40;
// How far an agent's report may raise the epoch of this collector, if another
// collector of the run is ahead.
constexpr uint64_t kMaxEpochsBehind = 1 << 20;

// Returns whether the agent's plan, if it follows it, still names a step from
// here on.
bool MayRecordFrom(const RunState& run, const AgentSession& agent) {
  const auto plan = run.plans.ForRank(RankOf(agent.identity));
  if (plan == nullptr || plan->spec.epoch() != agent.epoch) return true;
  const std::optional<int64_t> last = plan->plan.steps.Max();
  return !last.has_value() || agent.step <= *last;
}

void Refuse(const absl::Status& why, const AgentSession& agent) {
  v1::Directive directive;
  directive.mutable_goodbye()->set_reason(std::string(why.message()));
  agent.sender(directive);
}

v1::AgentInfo InfoOf(const AgentSession& agent, absl::Time now) {
  v1::AgentInfo info;
  *info.mutable_identity() = agent.identity;
  info.set_connected(agent.connected);
  info.set_step(agent.step);
  info.set_plan_epoch(agent.epoch);
  info.set_dumping(agent.dumping);
  info.set_received_bytes(agent.received_bytes);
  info.set_pending_bytes(
      static_cast<uint64_t>(std::max<int64_t>(agent.pending_bytes, 0)));
  info.set_silent_ms(absl::ToInt64Milliseconds(now - agent.last_heard));
  info.set_step_ns(agent.step_ns);
  info.set_lost_records(agent.lost_records);
  info.set_lost_payloads(agent.lost_payloads);
  info.set_framework_version(agent.framework_version);
  info.set_lane(agent.lane);
  info.set_config_fault(agent.config_fault);
  info.set_other_plan(agent.other_plan);
  return info;
}

}  // namespace

absl::StatusOr<AgentSessions::Admission> AgentSessions::Admit(
    const v1::Hello& hello, Sender sender, Peer peer) {
  const v1::Identity& identity = hello.identity();
  const std::optional<int64_t> rank = RankOf(identity);
  // Outside the lock, because this waits for the disk.
  RP_ASSIGN_OR_RETURN(const Newcomers::Known known,
                      to_.newcomers->Read(hello, peer));
  std::string file_state;
  if (!peer.anonymous && !hello.config_json().empty())
    file_state = Sha256(RunEdits::KeyOf(hello.config_json()));

  const ControlLock lock(core_);
  // Checked again, because another process may have got the rank meanwhile.
  RP_RETURN_IF_ERROR(core_->sessions.CheckRankFree(identity, ""));
  Admission admission;
  admission.identity = identity;
  if (auto other = to_.newcomers->NewestOf(known.others); other.has_value())
    *admission.welcome.mutable_other() = *std::move(other);
  RP_ASSIGN_OR_RETURN(admission.replaced_session,
                      core_->sessions.TakeOver(identity, known.opened.proved));
  RunState* const run = core_->LoadRun(identity.run());
  run->stored = true;
  // The replaced session sends no more messages.
  if (!admission.replaced_session.empty()) {
    if (IsRelayed())
      RelayGone(admission.replaced_session,
                "another connection took its place");
    PlanSwitches::OnLost(admission.replaced_session, run);
  }
  // A saved plan that is not agreed on (yet) is sent with its commit or not at
  // all.
  if (const auto& own = known.own_plan;
      own != nullptr && run->plans.ForAll() != nullptr &&
      run->plans.ForRank(rank) == run->plans.ForAll() &&
      own->spec.epoch() > run->plans.ForAll()->spec.epoch() &&
      !run->plans.IsUndecided(own->spec.epoch()))
    run->plans.Set(own, {*rank});
  AgentSession* const agent =
      core_->sessions.Add(absl::BytesToHexString(RandomBytes(kSessionIdBytes)),
                          identity, std::move(peer));
  agent->sender = std::move(sender);
  agent->stored_principal = known.opened.principal;
  if (!known.opened.dumping) agent->noted_dumping = Dumping::kNo;
  agent->step = ReportedStep(hello.step());
  to_.switches->NotePlan(hello.plan_epoch(), hello.plan_digest(), *run, agent);
  agent->framework_version = hello.framework_version();
  agent->last_heard = agent->last_moved = core_->Now();
  agent->connected_at = core_->clock->Now();
  agent->pace.Note(agent->step, 0, agent->last_heard);
  admission.welcome.set_resume_after_sequence(known.opened.committed);
  WelcomeWith(hello, run, agent, &admission.welcome);
  agent->file_state = std::move(file_state);
  agent->file_seen = agent->sent_epoch;
  if (IsRelayed()) RelayHello(agent->id, hello, agent->peer);
  v1::Event told = agent->EventOf(v1::Event::KIND_CONNECTED);
  // A restarted server may count its steps from the beginning.
  if (const auto plan = run->plans.ForRank(rank);
      PlanSwitches::IsAhead(*agent, plan.get())) {
    told.set_detail(
        absl::StrCat("the run's plan, epoch ", plan->spec.epoch(),
                     ", switches dumping ", plan->spec.enabled() ? "on" : "off",
                     " at its step ", plan->spec.effective_at_step()));
  }
  core_->Emit(std::move(told));
  return admission;
}

void AgentSessions::WelcomeWith(const v1::Hello& hello, RunState* run,
                                AgentSession* agent, v1::Welcome* welcome) {
  welcome->set_session_id(agent->id);
  welcome->set_credit_bytes(core_->options.credit_bytes);
  welcome->set_takes_offers(true);
  welcome->set_degrade(run->triggers.degrade());
  if (const auto plan = run->plans.ForRank(RankOf(agent->identity));
      plan != nullptr && !IsRelayed()) {
    *welcome->mutable_plan() = plan->spec;
    agent->sent_epoch = plan->spec.epoch();
    // The agent ignores a plan that is not newer than its own.
    if (plan->spec.epoch() > hello.plan_epoch())
      core_->sessions.NoteSent(agent->identity, plan->spec.epoch());
  }
  if (run->triggers.set() && !IsRelayed())
    *welcome->mutable_triggers() = run->triggers.spec();
  // The next plan from here has to be newer than the one that the agent
  // brought.
  if (core_->options.one_of_several) {
    run->plans.RaiseEpoch(std::min(hello.plan_epoch(),
                                   run->plans.last_epoch() + kMaxEpochsBehind));
  }
}

void AgentSessions::OnEvent(const std::string& session,
                            const v1::AgentEvent& event) {
  if (IsRelayed() && !event.has_metrics()) {
    v1::RelayedEvent relayed;
    relayed.set_session(session);
    *relayed.mutable_event() = event;
    core_->options.relay(std::move(relayed));
    // A leaf handles none of the other events.
    if (!event.has_progress() && !event.has_applied() &&
        !event.has_rank_known() && !event.has_goodbye())
      return;
  }
  if (event.has_config_edited())
    return to_.edits->OnConfigEdited(session, event.config_edited());
  if (event.has_rank_known()) return OnRankKnown(session, event.rank_known());
  const ControlLock lock(core_);
  AgentSession* const agent = core_->sessions.Find(session);
  if (agent == nullptr) return;
  agent->last_heard = core_->Now();
  RunState* const run = core_->LoadRun(agent->identity.run());
  Hear(event, run, agent);
  run->ForgetFinishedSwitches();
}

void AgentSessions::Hear(const v1::AgentEvent& event, RunState* run,
                         AgentSession* agent) {
  switch (event.event_case()) {
    case v1::AgentEvent::kProgress:
      if (const int64_t step = ReportedStep(event.progress().step());
          agent->step != step) {
        agent->last_moved = agent->last_heard;
        agent->step = step;
      }
      agent->dumping = event.progress().dumping();
      NoteDumping(agent->dumping && MayRecordFrom(*run, *agent) ? Dumping::kYes
                                                                : Dumping::kNo,
                  agent);
      if (event.progress().last_step_ns() > 0)
        agent->step_ns = event.progress().last_step_ns();
      agent->pace.Note(agent->step, event.progress().last_step_ns(),
                       agent->last_heard);
      break;
    case v1::AgentEvent::kPrepared:
      to_.switches->OnPrepared(agent, run, event.prepared());
      break;
    case v1::AgentEvent::kApplied:
      to_.switches->OnApplied(agent, run, event.applied());
      break;
    case v1::AgentEvent::kMetrics:
      agent->lost_records = event.metrics().lost_records();
      agent->lost_payloads = event.metrics().lost_payloads();
      agent->lane = VisibleText(event.metrics().lane().substr(0, kMaxLaneText));
      break;
    case v1::AgentEvent::kGoodbye:
      if (!agent->farewell && event.goodbye().has_undelivered())
        NoteUndelivered(event.goodbye().undelivered(), agent);
      agent->farewell = true;
      // An earlier session of the process may still have a write queued, so its
      // value in the store is not certain.
      agent->noted_dumping.reset();
      NoteDumping(Dumping::kNo, agent);
      break;
    case v1::AgentEvent::kFired:
      to_.triggers->OnFired(*agent, run, event.fired());
      break;
    case v1::AgentEvent::kReplica:
      to_.triggers->OnReplica(*agent, run, event.replica());
      break;
    case v1::AgentEvent::kDifference:
      to_.triggers->OnDifference(*agent, run, event.difference());
      break;
    case v1::AgentEvent::kCalls:
      to_.explanations->OnCalls(agent->identity, event.calls());
      break;
    default:
      TellOf(event, *agent);
      break;
  }
}

void AgentSessions::TellOf(const v1::AgentEvent& event,
                           const AgentSession& agent) {
  v1::Event told;
  if (event.has_budget()) {
    told = agent.EventOf(v1::Event::KIND_DEGRADED);
    told.set_step(event.budget().step());
    told.set_detail(absl::StrCat(event.budget().budget().substr(0, 64), ": ",
                                 event.budget().used(), " of ",
                                 event.budget().limit()));
    told.set_outcome(event.budget().degraded() >= 2
                         ? "checksums only"
                         : "statistics instead of tensors");
  } else if (event.has_error()) {
    told = agent.EventOf(v1::Event::KIND_ERROR);
    told.set_step(ReportedStep(event.error().step()));
    told.set_detail(event.error().message().substr(0, 1024));
  } else if (event.has_flight()) {
    told = agent.EventOf(v1::Event::KIND_FLIGHT_SHIPPED);
    told.set_step(event.flight().last_step());
    told.set_detail(Counted(event.flight().steps(), "step"));
    if (event.flight().steps() > 1) {
      absl::StrAppend(told.mutable_detail(), ", ", event.flight().first_step(),
                      " to ", event.flight().last_step());
    }
  } else if (event.has_flagged()) {
    const v1::RequestFlagged& flagged = event.flagged();
    const bool known = flagged.step() >= 0;
    told = agent.EventOf(known ? v1::Event::KIND_TRIGGER_FIRED
                               : v1::Event::KIND_ERROR);
    told.set_step(ReportedStep(flagged.step()));
    told.set_rule(kFlagRule);
    told.set_entry(flagged.request().substr(0, kMaxRequestIdBytes));
    told.set_detail(flagged.detail().substr(0, 1024));
    if (known) told.set_outcome("its tokens are written to the archive");
  } else {
    return;
  }
  core_->Emit(std::move(told));
}

// However often the state changes, at most one write per process is queued.
void AgentSessions::NoteDumping(Dumping dumping, AgentSession* agent) {
  if (agent->farewell) dumping = Dumping::kNo;
  if (agent->noted_dumping == dumping) return;
  agent->noted_dumping = dumping;
  agent->note->dumping = dumping;
  if (agent->note->queued.exchange(true)) return;
  core_->saves->Add([registry = core_->registry, identity = agent->identity,
                     note = agent->note] {
    // Cleared before the write, so that a later change queues another one.
    note->queued = false;
    // A disk that cannot store this does not store records either, which the
    // process reports itself.
    registry->NoteDumping(identity, note->dumping).IgnoreError();
  });
}

// Written even if the disk takes no records, because a row is small.
void AgentSessions::NoteUndelivered(const v1::Undelivered& said,
                                    AgentSession* agent) {
  v1::Undelivered kept = said;
  kept.set_records(std::min(said.records(), kMaxUndelivered));
  kept.set_payloads(std::min(said.payloads(), kMaxUndelivered));
  kept.set_unframed_records(std::min(said.unframed_records(), kept.records()));
  kept.set_unframed_payloads(
      std::min(said.unframed_payloads(), kept.payloads()));
  kept.set_reason(VisibleText(said.reason().substr(0, kMaxLossReasonBytes)));
  if (kept.records() + kept.payloads() > 0) {
    agent->undelivered =
        absl::StrCat("; ", kept.records(), " records and ", kept.payloads(),
                     " payloads are lost with it: ", kept.reason());
  }
  core_->saves->Add([core = core_, identity = agent->identity,
                     kept = std::move(kept)] {
    const absl::Status status = core->registry->NoteUndelivered(identity, kept);
    if (status.ok()) return;
    const ControlLock lock(core);
    if (core->FindRun(identity.run()) == nullptr) return;
    v1::Event told;
    told.set_kind(v1::Event::KIND_ERROR);
    told.set_run(identity.run());
    told.set_detail(
        absl::StrCat("what was lost with a process is not in the ledger: ",
                     status.message()));
    core->Emit(std::move(told));
  });
}

void AgentSessions::OnRankKnown(const std::string& session,
                                const v1::RankKnown& known) {
  v1::Identity before, identity;
  {
    const ControlLock lock(core_);
    AgentSession* const agent = core_->sessions.Find(session);
    if (agent == nullptr) return;
    agent->last_heard = core_->Now();
    before = identity = agent->identity;
    identity.set_rank(known.rank());
    identity.set_world_size(known.world_size());
    absl::Status status;
    if (identity.rank() < 0 || identity.rank() > kMaxRank)
      status = absl::InvalidArgumentError("rank out of range");
    status.Update(agent->peer.principal.MayBe(identity.run(), identity.rank()));
    status.Update(core_->sessions.CheckRankFree(identity, session));
    if (!status.ok()) return Refuse(status, *agent);
    // Set first, so that no other process can claim the rank meanwhile.
    core_->sessions.SetIdentity(agent, identity);
  }
  // Outside the lock, because this waits for the disk.
  const absl::Status stored =
      core_->registry->OpenIncarnation(identity).status();
  if (stored.ok()) return;
  const ControlLock lock(core_);
  AgentSession* const agent = core_->sessions.Find(session);
  if (agent == nullptr) return;
  // The rank could not be stored, so it is free again.
  core_->sessions.SetIdentity(agent, before);
  Refuse(stored, *agent);
}

void AgentSessions::Disconnected(const std::string& session,
                                 const std::string& reason) {
  const ControlLock lock(core_);
  AgentSession* const agent = core_->sessions.Find(session);
  if (agent == nullptr) return;
  if (IsRelayed()) RelayGone(session, reason);
  core_->sessions.Disconnect(agent);
  const bool was_dumping = std::exchange(agent->dumping, false);
  // After a shutdown the process will not find this collector, so the
  // connection does not count as cut off.
  if (!going_down_ && agent->noted_dumping != Dumping::kNo)
    NoteDumping(Dumping::kCutOff, agent);
  agent->last_heard = core_->Now();
  v1::Event told = agent->EventOf(v1::Event::KIND_DISCONNECTED);
  told.set_detail(
      agent->farewell
          ? absl::StrCat("the process has ended", agent->undelivered)
      : was_dumping ? absl::StrCat(reason,
                                   "; it was recording: what it has "
                                   "not sent of this step is lost if "
                                   "it does not come back")
                    : reason);
  core_->Emit(std::move(told));
  to_.explanations->OnLost(agent->identity);
  RunState* const run = core_->LoadRun(agent->identity.run());
  PlanSwitches::OnLost(session, run);
  to_.edits->TryEditSetAside(run);
}

void AgentSessions::Say(const std::string& session,
                        const v1::Directive& directive) {
  const ControlLock lock(core_);
  // Not SendPlan, because the plan is the root's, not this collector's.
  if (const AgentSession* const agent = core_->sessions.FindConnected(session);
      agent != nullptr)
    agent->sender(directive);
}

v1::ListAgentsResponse AgentSessions::List(const std::string& run) const {
  const ControlLock lock(core_);
  std::map<std::string, int64_t> furthest;
  for (const auto& [session, agent] : core_->sessions.all()) {
    int64_t& step =
        furthest.try_emplace(agent.identity.run(), -1).first->second;
    if (agent.connected) step = std::max(step, agent.step);
  }
  const absl::Time now = core_->Now();
  v1::ListAgentsResponse response;
  for (const auto& [session, agent] : core_->sessions.all()) {
    const std::string& name = agent.identity.run();
    if (!run.empty() && name != run) continue;
    v1::AgentInfo& info = *response.add_agents() = InfoOf(agent, now);
    info.set_lag_steps(std::max<int64_t>(furthest[name] - agent.step, 0));
    const RunState* const state = core_->FindRun(name);
    if (state == nullptr || !agent.connected) continue;
    const auto plan = state->plans.ForRank(RankOf(agent.identity));
    if (PlanSwitches::IsAhead(agent, plan.get()))
      info.set_switches_at_step(plan->spec.effective_at_step());
  }
  std::sort(response.mutable_agents()->begin(),
            response.mutable_agents()->end(),
            [](const v1::AgentInfo& a, const v1::AgentInfo& b) {
              return std::make_tuple(a.identity().run(), a.identity().rank(),
                                     a.identity().pid()) <
                     std::make_tuple(b.identity().run(), b.identity().rank(),
                                     b.identity().pid());
            });
  return response;
}

void AgentSessions::TellAllRuns(v1::Event::Kind kind, const std::string& what,
                                const std::string& outcome) {
  std::set<std::string> runs;
  {
    const ControlLock lock(core_);
    for (const auto& [session, agent] : core_->sessions.all())
      if (agent.connected) runs.insert(agent.identity.run());
  }
  // The event is emitted even if no rank is connected.
  if (runs.empty()) runs.insert("");
  for (const std::string& run : runs) core_->Tell(kind, run, what, outcome);
}

void AgentSessions::Shutdown() {
  const ControlLock lock(core_);
  going_down_ = true;
  v1::Directive directive;
  directive.mutable_goodbye()->set_reason("the collector is shutting down");
  for (const auto& [session, agent] : core_->sessions.all()) {
    if (agent.connected) agent.sender(directive);
  }
}

void AgentSessions::RelayHello(const std::string& session,
                               const v1::Hello& hello, const Peer& peer) {
  v1::RelayedEvent relayed;
  relayed.set_session(session);
  *relayed.mutable_event()->mutable_hello() = hello;
  v1::RelayedPeer& who = *relayed.mutable_peer();
  who.set_name(peer.principal.name);
  who.set_anonymous(peer.anonymous);
  who.set_run(peer.principal.run);
  for (const auto& [first, last] : peer.principal.ranks) {
    who.add_ranks(first);
    who.add_ranks(last);
  }
  who.set_address(peer.address);
  core_->options.relay(std::move(relayed));
}

void AgentSessions::RelayGone(const std::string& session,
                              const std::string& reason) {
  v1::RelayedEvent relayed;
  relayed.set_session(session);
  relayed.set_gone(reason);
  core_->options.relay(std::move(relayed));
}

}  // namespace rankprobe
