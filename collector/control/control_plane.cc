// SPDX-License-Identifier: Apache-2.0
#include "collector/control/control_plane.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/step_range.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// Disconnected processes stay visible in `status` for this long.
constexpr absl::Duration kForgetAfter = absl::Minutes(10);
constexpr absl::Duration kForgettingInterval = absl::Seconds(1);
constexpr size_t kMaxUndeliveredReasonBytes = 500;
constexpr size_t kMaxLaneText = 200;
// What a process may claim to have lost: sums of it stay numbers.
constexpr uint64_t kMaxUndelivered = uint64_t{1} << 40;

}  // namespace

ControlPlane::ControlPlane(const Options& options, RunRegistry* registry,
                           ArchiveReader* archive, const Clock* clock)
    : options_(options),
      registry_(registry),
      archive_(archive),
      clock_(clock),
      new_runs_(options.new_runs),
      plans_(registry, &saves_, options.sync_wait),
      saves_(options.own_thread) {}

absl::Status ControlPlane::CheckRunName(const std::string& run) {
  if (run.empty() || run.size() > 255)
    return absl::InvalidArgumentError("run: 1 to 255 bytes are needed");
  if (run.find('\0') != std::string::npos)
    return absl::InvalidArgumentError("run: contains a zero byte");
  return absl::OkStatus();
}

void ControlPlane::OnEvent(const std::string& session,
                           const v1::AgentEvent& event) {
  if (options_.relay != nullptr && !event.has_metrics()) {
    v1::RelayedEvent relayed;
    relayed.set_session(session);
    *relayed.mutable_event() = event;
    options_.relay(std::move(relayed));
    // The rest is not for a leaf.
    if (!event.has_progress() && !event.has_applied() &&
        !event.has_rank_known() && !event.has_goodbye())
      return;
  }
  if (event.has_config_edited())
    return OnConfigEdited(session, event.config_edited());
  if (event.has_rank_known()) return OnRankKnown(session, event.rank_known());
  const RunQueuedAfter save(&saves_);
  absl::MutexLock lock(&mutex_);
  const auto it = agents_.find(session);
  if (it == agents_.end()) return;
  Agent& agent = it->second;
  agent.last_heard = MonotonicNow();
  Run* const run = LoadRun(agent.identity.run());
  switch (event.event_case()) {
    case v1::AgentEvent::kProgress:
      if (const int64_t step = ReportedStep(event.progress().step());
          agent.step != step) {
        agent.last_moved = agent.last_heard;
        agent.step = step;
      }
      agent.dumping = event.progress().dumping();
      NoteDumping(agent.dumping && MayRecordFrom(*run, agent) ? Dumping::kYes
                                                              : Dumping::kNo,
                  &agent);
      if (event.progress().last_step_ns() > 0)
        agent.step_ns = event.progress().last_step_ns();
      agent.pace.Note(agent.step, event.progress().last_step_ns(),
                      agent.last_heard);
      break;
    case v1::AgentEvent::kPrepared:
      if (const int64_t step = ReportedStep(event.prepared().current_step());
          std::all_of(
              run->switches.begin(), run->switches.end(),
              [&](const auto& op) { return op->Believes(session, step); })) {
        agent.step = std::max(agent.step, step);
        agent.pace.Note(agent.step, 0, agent.last_heard);
      }
      OnPrepared(session, run, event.prepared());
      break;
    case v1::AgentEvent::kApplied:
      agent.step = std::max(agent.step, ReportedStep(event.applied().step()));
      OnApplied(session, &agent, run, event.applied());
      break;
    case v1::AgentEvent::kMetrics:
      agent.lost_records = event.metrics().lost_records();
      agent.lost_payloads = event.metrics().lost_payloads();
      agent.lane = VisibleText(event.metrics().lane().substr(0, kMaxLaneText));
      break;
    case v1::AgentEvent::kRankKnown:
      // OnRankKnown's.
      break;
    case v1::AgentEvent::kGoodbye:
      if (!agent.farewell && event.goodbye().has_undelivered())
        NoteUndelivered(event.goodbye().undelivered(), &agent);
      agent.farewell = true;
      // Whatever an earlier session of it still has to write.
      agent.noted_dumping.reset();
      NoteDumping(Dumping::kNo, &agent);
      break;
    default:
      OnTriggerEvent(&agent, run, event);
      break;
  }
  ForgetFinished(run);
}

// However often a process changes its mind, one write of it waits.
void ControlPlane::NoteDumping(Dumping dumping, Agent* agent) {
  if (agent->farewell) dumping = Dumping::kNo;
  if (agent->noted_dumping == dumping) return;
  agent->noted_dumping = dumping;
  agent->note->dumping = dumping;
  if (agent->note->queued.exchange(true)) return;
  saves_.Add([this, identity = agent->identity, note = agent->note] {
    note->queued = false;
    // A disk that cannot keep this keeps no records either, and the process
    // says so itself.
    registry_->NoteDumping(identity, note->dumping).IgnoreError();
  });
}

bool ControlPlane::MayRecordFrom(const Run& run, const Agent& agent) {
  const auto plan = run.plans.ForRank(RankOf(agent.identity));
  if (plan == nullptr || plan->spec.epoch() != agent.epoch) return true;
  const std::optional<int64_t> last = plan->plan.steps.Max();
  return !last.has_value() || agent.step <= *last;
}

// Kept even where the disk takes no records: a row is small.
void ControlPlane::NoteUndelivered(const v1::Undelivered& said, Agent* agent) {
  v1::Undelivered kept = said;
  kept.set_records(std::min(said.records(), kMaxUndelivered));
  kept.set_payloads(std::min(said.payloads(), kMaxUndelivered));
  kept.set_unframed_records(std::min(said.unframed_records(), kept.records()));
  kept.set_unframed_payloads(
      std::min(said.unframed_payloads(), kept.payloads()));
  kept.set_reason(
      VisibleText(said.reason().substr(0, kMaxUndeliveredReasonBytes)));
  if (kept.records() + kept.payloads() > 0) {
    agent->undelivered =
        absl::StrCat("; ", kept.records(), " records and ", kept.payloads(),
                     " payloads are lost with it: ", kept.reason());
  }
  saves_.Add([this, identity = agent->identity, kept = std::move(kept)] {
    const absl::Status status = registry_->NoteUndelivered(identity, kept);
    if (status.ok()) return;
    absl::MutexLock lock(&mutex_);
    const auto run = runs_.find(identity.run());
    if (run == runs_.end()) return;
    v1::Event told;
    told.set_kind(v1::Event::KIND_ERROR);
    told.set_run(identity.run());
    told.set_detail(
        absl::StrCat("what was lost with a process is not in the ledger: ",
                     status.message()));
    EmitEvent(std::move(told));
  });
}

void ControlPlane::RelayGone(const std::string& session,
                             const std::string& reason) {
  v1::RelayedEvent relayed;
  relayed.set_session(session);
  relayed.set_gone(reason);
  options_.relay(std::move(relayed));
}

void ControlPlane::Say(const std::string& session,
                       const v1::Directive& directive) {
  absl::MutexLock lock(&mutex_);
  const auto it = agents_.find(session);
  // Not SendTo: a plan that comes so is none of this collector's.
  if (it != agents_.end() && it->second.connected) it->second.sender(directive);
}

void ControlPlane::Disconnected(const std::string& session,
                                const std::string& reason) {
  const RunQueuedAfter save(&saves_);
  absl::MutexLock lock(&mutex_);
  const auto it = agents_.find(session);
  if (it == agents_.end()) return;
  if (options_.relay != nullptr) RelayGone(session, reason);
  NoteDisconnected(&it->second);
  const bool was_dumping = std::exchange(it->second.dumping, false);
  // It will not find us here when it tries again.
  if (!going_down_ && it->second.noted_dumping != Dumping::kNo)
    NoteDumping(Dumping::kCutOff, &it->second);
  it->second.last_heard = MonotonicNow();
  v1::Event told = EventOf(v1::Event::KIND_DISCONNECTED, it->second);
  told.set_detail(
      it->second.farewell
          ? absl::StrCat("the process has ended", it->second.undelivered)
      : was_dumping ? absl::StrCat(reason,
                                   "; it was recording: what it has "
                                   "not sent of this step is lost if "
                                   "it does not come back")
                    : reason);
  EmitEvent(std::move(told));
  for (auto& op : explains_)
    op->waiting.erase(it->second.identity.incarnation());
  Run* const run = LoadRun(it->second.identity.run());
  for (auto& op : run->switches) op->OnLost(session);
  ForgetFinished(run);
  TryEditSetAside(run);
}

bool ControlPlane::Admits(const v1::Identity& identity, int64_t step,
                          uint64_t epoch) const {
  absl::MutexLock lock(&mutex_);
  const auto it = runs_.find(identity.run());
  const std::optional<int64_t> rank = RankOf(identity);
  if (epoch == 0) {
    // The agent's own plan, in force until it has heard of the run's.
    return true;
  }
  if (IsForeign(identity, epoch)) return true;
  if (it == runs_.end()) return false;
  const std::shared_ptr<const CompiledPlan> plan =
      it->second.plans.ByEpoch(epoch);
  // What a rank recorded while the collector was away, which has been given
  // another plan since it is back, is no less recorded.
  if (plan == nullptr) return it->second.plans.IsForgotten(epoch);
  return plan->Admits(rank, step);
}

std::shared_ptr<const CompiledPlan> ControlPlane::PlanOf(
    const v1::Identity& identity, uint64_t epoch) const {
  absl::MutexLock lock(&mutex_);
  const auto it = runs_.find(identity.run());
  return it == runs_.end() || IsForeign(identity, epoch)
             ? nullptr
             : it->second.plans.ByEpoch(epoch);
}

void ControlPlane::NoteReceived(const std::string& session, uint64_t bytes,
                                int64_t pending_delta) {
  absl::MutexLock lock(&mutex_);
  const auto it = agents_.find(session);
  if (it == agents_.end()) return;
  it->second.received_bytes += bytes;
  it->second.pending_bytes += pending_delta;
  if (bytes == 0) return;
  it->second.last_heard = MonotonicNow();
  NoteRunBytes(it->second.identity, bytes);
}

v1::ListAgentsResponse ControlPlane::ListAgents(const std::string& run) const {
  absl::MutexLock lock(&mutex_);
  std::map<std::string, int64_t> furthest;
  for (const auto& [session, agent] : agents_) {
    int64_t& step =
        furthest.try_emplace(agent.identity.run(), -1).first->second;
    if (agent.connected) step = std::max(step, agent.step);
  }
  v1::ListAgentsResponse response;
  for (const auto& [session, agent] : agents_) {
    if (!run.empty() && agent.identity.run() != run) continue;
    v1::AgentInfo& info = *response.add_agents();
    *info.mutable_identity() = agent.identity;
    info.set_connected(agent.connected);
    info.set_step(agent.step);
    info.set_plan_epoch(agent.epoch);
    info.set_dumping(agent.dumping);
    info.set_received_bytes(agent.received_bytes);
    info.set_pending_bytes(
        static_cast<uint64_t>(std::max<int64_t>(agent.pending_bytes, 0)));
    info.set_lag_steps(
        std::max<int64_t>(furthest[agent.identity.run()] - agent.step, 0));
    info.set_silent_ms(
        absl::ToInt64Milliseconds(MonotonicNow() - agent.last_heard));
    info.set_step_ns(agent.step_ns);
    info.set_lost_records(agent.lost_records);
    info.set_lost_payloads(agent.lost_payloads);
    info.set_framework_version(agent.framework_version);
    info.set_lane(agent.lane);
    info.set_config_fault(agent.config_fault);
    info.set_other_plan(agent.other_plan);
    if (const auto it = runs_.find(agent.identity.run());
        it != runs_.end() && agent.connected) {
      const auto plan = it->second.plans.ForRank(RankOf(agent.identity));
      if (SwitchIsAhead(agent, plan.get()))
        info.set_switches_at_step(plan->spec.effective_at_step());
    }
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

void ControlPlane::Tick() {
  const RunQueuedAfter save(&saves_);
  absl::MutexLock lock(&mutex_);
  const absl::Time now = MonotonicNow();
  CheckSilence(now);
  FinishExplains();
  for (auto& [name, run] : runs_) {
    // Most runs of a long life have nothing going on.
    if (run.switches.empty() && run.reference.empty()) {
      TryEdit(&run);
      continue;
    }
    for (auto& op : run.switches) op->Tick(now);
    ForgetFinished(&run);
    TryEdit(&run);
    EndSpentPlans(&run);
  }
  // All of them are looked at.
  if (now >= next_forgetting_) {
    next_forgetting_ = now + kForgettingInterval;
    for (auto it = agents_.begin(); it != agents_.end();) {
      const bool forget =
          !it->second.connected && now - it->second.last_heard > kForgetAfter;
      it = forget ? Forget(it) : std::next(it);
    }
  }
  ForgetIdleRuns(now);
}

void ControlPlane::Shutdown() {
  absl::MutexLock lock(&mutex_);
  going_down_ = true;
  v1::Directive directive;
  directive.mutable_goodbye()->set_reason("the collector is going down");
  for (auto& [session, agent] : agents_) {
    if (agent.connected) agent.sender(directive);
  }
}

}  // namespace rankprobe
