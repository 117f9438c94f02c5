#include "collector/control/control_plane.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/step_range.h"
#include "common/config/trigger_spec.h"

namespace rankprobe {
namespace {

// Disconnected processes stay visible in `status` for this long.
constexpr absl::Duration kForgetAfter = absl::Minutes(10);
// A call that looks a run up again without the lock held in between does so
// sooner than this, unless it waits for the queue of saves: while anything is
// being saved no run is forgotten.
constexpr absl::Duration kIdle = absl::Seconds(30);
constexpr absl::Duration kIdleCheckInterval = absl::Seconds(1);

}  // namespace

ControlPlane::ControlPlane(const Options& options, Store* store,
                           const Clock* clock)
    : options_(options),
      store_(store),
      clock_(clock),
      new_runs_(options.new_runs),
      saves_(options.own_thread) {}

absl::Status ControlPlane::CheckRunName(const std::string& run) {
  if (run.empty() || run.size() > 255)
    return absl::InvalidArgumentError("run: 1 to 255 bytes are needed");
  if (run.find('\0') != std::string::npos)
    return absl::InvalidArgumentError("run: contains a zero byte");
  return absl::OkStatus();
}

ControlPlane::SavedRun ControlPlane::ReadSaved(const std::string& name) const {
  SavedRun saved;
  if (const auto plan = store_->LoadPlan(name);
      plan.ok() && plan->has_value()) {
    if (auto compiled = RunPlans::Compile(**plan); compiled.ok()) {
      saved.plan = *std::move(compiled);
      if (const auto source = saved.plan->spec.source();
          source == v1::PlanSpec::SOURCE_FILE ||
          source == v1::PlanSpec::SOURCE_FIRST_RANK)
        saved.file_key = RunEdits::KeyOf(saved.plan->spec.config_json());
    }
  }
  if (const auto triggers = store_->LoadPlan(TriggersKey(name));
      triggers.ok() && triggers->has_value()) {
    if (auto spec = ParseTriggerSpec((*triggers)->config_json()); spec.ok())
      saved.triggers = *std::move(spec);
  }
  if (!saved.triggers.has_value()) saved.triggers = options_.default_triggers;
  return saved;
}

void ControlPlane::ReadRun(const std::string& name) {
  {
    absl::MutexLock lock(&mutex_);
    if (const auto it = runs_.find(name); it != runs_.end()) {
      // What this call does next needs it.
      it->second.last_used = MonotonicNow();
      return;
    }
  }
  const SavedRun saved = ReadSaved(name);
  absl::MutexLock lock(&mutex_);
  // Whoever came first has read the same.
  const auto [it, is_new] = runs_.try_emplace(name);
  if (!is_new) return;
  it->second.name = name;
  it->second.last_used = MonotonicNow();
  UseSaved(saved, &it->second);
}

void ControlPlane::UseSaved(const SavedRun& saved, Run* run) {
  if (saved.triggers.has_value()) run->triggers.Set(*saved.triggers);
  if (saved.plan == nullptr) return;
  run->plans.Set(saved.plan, {});
  run->edits.Know(saved.file_key);
}

ControlPlane::Run* ControlPlane::LoadRun(const std::string& name) {
  Run& run = runs_[name];
  run.name = name;
  run.last_used = MonotonicNow();
  return &run;
}

size_t ControlPlane::CountRuns() const {
  absl::MutexLock lock(&mutex_);
  return runs_.size();
}

void ControlPlane::ForgetIdleRuns(absl::Time now) {
  if (runs_.size() <= options_.max_idle_runs || now < next_idle_check_) return;
  // What is being saved, or waits for that, ends with its run in memory: made
  // anew there it would have no plan, and that would be saved over the right one.
  if (!saves_.idle()) return;
  next_idle_check_ = now + kIdleCheckInterval;
  std::set<absl::string_view> live;
  for (const auto& [session, agent] : agents_) {
    // Frames of a rank that is gone may still be on their way to the disk.
    if (agent.connected || agent.pending_bytes > 0)
      live.insert(agent.identity.run());
  }
  std::vector<std::pair<absl::Time, const std::string*>> idle;
  for (const auto& [name, run] : runs_) {
    if (live.count(name) == 0 && run.switches.empty() && !run.edits.waiting() &&
        now - run.last_used > kIdle)
      idle.emplace_back(run.last_used, &name);
  }
  if (idle.size() <= options_.max_idle_runs) return;
  std::sort(idle.begin(), idle.end());
  idle.resize(idle.size() - options_.max_idle_runs);
  for (const auto& [last_used, name] : idle) runs_.erase(runs_.find(*name));
}

void ControlPlane::OnEvent(const std::string& session,
                           const v1::AgentEvent& event) {
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
      if (event.progress().last_step_ns() > 0)
        agent.step_ns = event.progress().last_step_ns();
      agent.pace.Note(agent.step, event.progress().last_step_ns(),
                      agent.last_heard);
      break;
    case v1::AgentEvent::kPrepared:
      agent.step =
          std::max(agent.step, ReportedStep(event.prepared().current_step()));
      agent.pace.Note(agent.step, 0, agent.last_heard);
      OnPrepared(session, run, event.prepared());
      break;
    case v1::AgentEvent::kApplied:
      agent.step = std::max(agent.step, ReportedStep(event.applied().step()));
      OnApplied(session, &agent, run, event.applied());
      break;
    case v1::AgentEvent::kMetrics:
      agent.lost_records = event.metrics().lost_records();
      agent.lost_payloads = event.metrics().lost_payloads();
      break;
    case v1::AgentEvent::kRankKnown:
      // OnRankKnown's.
      break;
    case v1::AgentEvent::kGoodbye:
      agent.farewell = true;
      break;
    default:
      OnTriggerEvent(&agent, run, event);
      break;
  }
  ForgetFinished(run);
}

void ControlPlane::Disconnected(const std::string& session,
                                const std::string& reason) {
  const RunQueuedAfter save(&saves_);
  absl::MutexLock lock(&mutex_);
  const auto it = agents_.find(session);
  if (it == agents_.end()) return;
  it->second.connected = false;
  it->second.dumping = false;
  it->second.last_heard = MonotonicNow();
  v1::Event told = EventOf(v1::Event::KIND_DISCONNECTED, it->second);
  told.set_detail(it->second.farewell ? "the process has ended" : reason);
  Tell(std::move(told));
  for (auto& op : explains_)
    op->waiting.erase(it->second.identity.incarnation());
  Run* const run = LoadRun(it->second.identity.run());
  for (auto& op : run->switches) op->OnLost(session);
  ForgetFinished(run);
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
  if (it == runs_.end()) return false;
  const std::shared_ptr<const CompiledPlan> plan =
      it->second.plans.ByEpoch(epoch);
  return plan != nullptr && plan->Admits(rank, step);
}

std::shared_ptr<const CompiledPlan> ControlPlane::PlanOf(const std::string& run,
                                                         uint64_t epoch) const {
  absl::MutexLock lock(&mutex_);
  const auto it = runs_.find(run);
  return it == runs_.end() ? nullptr : it->second.plans.ByEpoch(epoch);
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
    info.set_config_fault(agent.config_fault);
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
  for (auto it = agents_.begin(); it != agents_.end();) {
    const bool forget =
        !it->second.connected && now - it->second.last_heard > kForgetAfter;
    it = forget ? agents_.erase(it) : std::next(it);
  }
  ForgetIdleRuns(now);
}

void ControlPlane::Shutdown() {
  absl::MutexLock lock(&mutex_);
  v1::Directive directive;
  directive.mutable_goodbye()->set_reason("the collector is going down");
  for (auto& [session, agent] : agents_) {
    if (agent.connected) agent.sender(directive);
  }
}

}  // namespace rankprobe
