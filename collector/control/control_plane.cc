#include "collector/control/control_plane.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "collector/auth/secret.h"
#include "common/base/random_bytes.h"
#include "common/base/status_macros.h"
#include "common/base/step_range.h"
#include "common/base/version.h"
#include "common/config/trigger_spec.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

constexpr uint32_t kProtocol = 1;
constexpr size_t kSecretBytes = 32;
constexpr size_t kSessionIdBytes = 16;
// Disconnected processes stay visible in `status` for this long.
constexpr absl::Duration kForgetAfter = absl::Minutes(10);
// A call that looks a run up again without the lock held in between does so
// sooner than this, unless it waits for the queue of saves: while anything is
// being saved no run is forgotten.
constexpr absl::Duration kIdle = absl::Seconds(30);
constexpr absl::Duration kIdleCheckInterval = absl::Seconds(1);

std::string Describe(const v1::Identity& identity) {
  return absl::StrCat("process ", identity.pid(), " on ", identity.host());
}

absl::Status CheckHello(const v1::Hello& hello) {
  const v1::Identity& id = hello.identity();
  if (hello.protocol() != kProtocol) {
    return absl::FailedPreconditionError(
        absl::StrCat("the agent speaks protocol ", hello.protocol(),
                     ", this collector protocol ", kProtocol));
  }
  if (id.has_rank() && (id.rank() < 0 || id.rank() > kMaxRank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank: ", id.rank(), " is not in 0..", kMaxRank));
  }
  if (id.incarnation() == 0)
    return absl::InvalidArgumentError("incarnation: must not be 0");
  if (!hello.incarnation_secret().empty() &&
      hello.incarnation_secret().size() != kSecretBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("incarnation_secret: ", kSecretBytes, " bytes or none"));
  }
  if (id.host().size() > 255 || hello.agent_version().size() > 255 ||
      hello.framework_version().size() > 255) {
    return absl::InvalidArgumentError(
        "host or version text is longer than 255 bytes");
  }
  return absl::OkStatus();
}

}  // namespace

ControlPlane::ControlPlane(const Options& options, Store* store,
                           const Clock* clock)
    : options_(options),
      store_(store),
      clock_(clock),
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

absl::Status ControlPlane::AdoptPlanOf(const v1::Hello& hello,
                                       const Peer& peer) {
  const std::string& name = hello.identity().run();
  if (hello.config_json().empty()) return absl::OkStatus();
  {
    absl::MutexLock lock(&mutex_);
    if (LoadRun(name)->plans.ForAll() != nullptr) return absl::OkStatus();
  }
  // A config that is not legal is the agent's own affair.
  const auto config = RunPlans::Parse(hello.config_json());
  if (!config.ok()) return absl::OkStatus();
  v1::PlanSpec spec;
  spec.set_config_json(hello.config_json());
  spec.set_enabled((*config)->dump_enable.value_or(true));
  std::string file_key = RunEdits::KeyOf(hello.config_json());
  spec.set_source(v1::PlanSpec::SOURCE_FIRST_RANK);
  spec.set_source_detail(absl::StrCat(
      hello.identity().has_rank()
          ? absl::StrCat("rank ", hello.identity().rank())
          : absl::StrCat("proc", hello.identity().pid()),
      hello.config_path().empty()
          ? ""
          : absl::StrCat(", ",
                         VisibleText(hello.config_path().substr(0, 1024)))));
  absl::MutexLock adopting(&adopt_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    Run* const run = LoadRun(name);
    // What is being agreed on is saved later than this would be.
    if (run->plans.ForAll() != nullptr || !run->switches.empty())
      return absl::OkStatus();
    spec.set_epoch(run->plans.NextEpoch());
  }
  RP_ASSIGN_OR_RETURN(std::shared_ptr<const CompiledPlan> plan,
                      RunPlans::Compile(spec, *config));
  // A switch that was begun meanwhile is saved, and so decided, after this.
  return SaveAndWait(RowsOf(name, spec, {}), [&] {
    absl::MutexLock lock(&mutex_);
    Run* const run = LoadRun(name);
    run->plans.Set(plan, {});
    run->edits.Know(file_key);
    Audit(AuditOf(peer, "Hello", name, spec,
                  absl::StrCat("plan of the run's first rank (",
                               Describe(hello.identity()), ")")),
          "OK");
  });
}

std::shared_ptr<const CompiledPlan> ControlPlane::ReadOwnPlan(
    const v1::Identity& identity) const {
  if (!identity.has_rank()) return nullptr;
  const auto own = store_->LoadPlan(PlanKey(identity.run(), identity.rank()));
  if (!own.ok() || !own->has_value()) return nullptr;
  auto compiled = RunPlans::Compile(**own);
  return compiled.ok() ? *std::move(compiled) : nullptr;
}

absl::Status ControlPlane::CheckRankFree(const v1::Identity& identity,
                                         const std::string& self) const {
  if (!identity.has_rank()) return absl::OkStatus();
  for (const auto& [session, agent] : agents_) {
    if (session == self || !agent.connected ||
        agent.identity.run() != identity.run() || !agent.identity.has_rank() ||
        agent.identity.rank() != identity.rank() ||
        agent.identity.incarnation() == identity.incarnation()) {
      continue;
    }
    return absl::AlreadyExistsError(absl::StrCat(
        "rank ", identity.rank(), " of run ", identity.run(), " is claimed by ",
        Describe(agent.identity), " and by ", Describe(identity)));
  }
  return absl::OkStatus();
}

absl::StatusOr<ControlPlane::Admission> ControlPlane::Admit(
    const v1::Hello& hello, Sender sender, Peer peer) {
  RP_RETURN_IF_ERROR(CheckRunName(hello.identity().run()));
  RP_RETURN_IF_ERROR(CheckHello(hello));
  const v1::Identity& identity = hello.identity();
  RP_RETURN_IF_ERROR(peer.principal.MayBe(identity.run(), RankOf(identity)));
  {
    absl::MutexLock lock(&mutex_);
    RP_RETURN_IF_ERROR(CheckRankFree(identity, ""));
    RP_RETURN_IF_ERROR(CheckRoom(identity, peer));
  }
  IncarnationClaim claim;
  claim.from_agent = true;
  if (!hello.incarnation_secret().empty())
    claim.secret_sha256 = Sha256(hello.incarnation_secret());
  if (!peer.anonymous) claim.principal = peer.principal.name;
  // Outside the lock: this waits for the disk.
  RP_ASSIGN_OR_RETURN(const OpenedIncarnation opened,
                      store_->OpenIncarnation(identity, claim));
  ReadRun(identity.run());
  RP_RETURN_IF_ERROR(AdoptPlanOf(hello, peer));
  const std::shared_ptr<const CompiledPlan> own = ReadOwnPlan(identity);
  // The disk may have taken long.
  ReadRun(identity.run());

  const RunQueuedAfter save(&saves_);
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(CheckRankFree(identity, ""));
  Admission admission;
  admission.identity = identity;
  RP_RETURN_IF_ERROR(TakeOver(opened, &admission));
  Run* const run = LoadRun(identity.run());
  // Nobody will hear of that session again.
  if (!admission.replaced_session.empty()) {
    for (auto& op : run->switches) op->OnLost(admission.replaced_session);
    ForgetFinished(run);
  }
  const std::optional<int64_t> rank = RankOf(identity);
  if (own != nullptr && run->plans.ForAll() != nullptr &&
      run->plans.ForRank(rank) == run->plans.ForAll() &&
      own->spec.epoch() > run->plans.ForAll()->spec.epoch())
    run->plans.Set(own, {*rank});
  const std::string session =
      absl::BytesToHexString(RandomBytes(kSessionIdBytes));
  Agent& agent = agents_[session];
  agent.peer = std::move(peer);
  agent.stored_principal = opened.principal;
  agent.identity = identity;
  agent.sender = std::move(sender);
  agent.step = ReportedStep(hello.step());
  agent.epoch = hello.plan_epoch();
  agent.framework_version = hello.framework_version();
  agent.last_heard = MonotonicNow();
  agent.pace.Note(agent.step, 0, agent.last_heard);
  v1::Welcome& welcome = admission.welcome;
  welcome.set_session_id(session);
  welcome.set_collector_version(Version());
  welcome.set_resume_after_sequence(opened.committed);
  welcome.set_credit_bytes(options_.credit_bytes);
  welcome.set_takes_offers(true);
  if (const auto plan = run->plans.ForRank(rank); plan != nullptr)
    *welcome.mutable_plan() = plan->spec;
  if (run->triggers.set()) *welcome.mutable_triggers() = run->triggers.spec();
  welcome.set_degrade(run->triggers.degrade());
  agent.last_moved = agent.last_heard;
  Tell(EventOf(v1::Event::KIND_CONNECTED, agent));
  return admission;
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
