// SPDX-License-Identifier: Apache-2.0
// Who may have which session: Hello, the first plan of a run, room, reconnects,
// ranks that become known, and what of it the audit log is told.
#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "collector/auth/secret.h"
#include "collector/control/control_plane.h"
#include "common/base/random_bytes.h"
#include "common/base/status_macros.h"
#include "common/base/step_range.h"
#include "common/base/version.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// Of a plan in the audit log; beyond it a digest stands for the text.
constexpr size_t kMaxAuditedConfigBytes = 4096;
// An agent cannot fill memory with what waits for the audit log.
constexpr size_t kMaxWaitingAudit = 1024;
constexpr uint32_t kProtocol = 1;
constexpr size_t kSecretBytes = 32;
constexpr size_t kSessionIdBytes = 16;
// Of this collector behind another of the run; an agent says how far.
constexpr uint64_t kMaxEpochsBehind = 1 << 20;

// One in so many sessions is for other runs than the one that holds the most.
constexpr size_t kKeptForOtherRuns = 8;

// Among the names of principals, none of which has a zero byte.
std::string HolderOfRun(const v1::Identity& identity) {
  return absl::StrCat(absl::string_view("\0", 1), identity.run());
}

absl::Status TooManyNewRuns(const Peer& peer) {
  return absl::ResourceExhaustedError(
      absl::StrCat(peer.principal.name,
                   " has begun too many runs lately; one more is taken every "
                   "ten seconds. Runs that are there are served"));
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
      hello.framework_version().size() > 255 || id.job().size() > 255) {
    return absl::InvalidArgumentError(
        "host, version or job text is longer than 255 bytes");
  }
  return absl::OkStatus();
}

// An operator switched before any rank had come, and named no config: nobody's
// file has these very bytes.
bool IsOfNoConfig(const v1::PlanSpec& spec) {
  return spec.source() == v1::PlanSpec::SOURCE_OPERATOR &&
         spec.config_json() == DefaultConfigJson();
}

}  // namespace

absl::Status ControlPlane::AdoptPlanOf(const v1::Hello& hello,
                                       const Peer& peer) {
  const std::string& name = hello.identity().run();
  if (hello.config_json().empty()) return absl::OkStatus();
  {
    absl::MutexLock lock(&mutex_);
    const auto plan = LoadRun(name)->plans.ForAll();
    if (plan != nullptr && !IsOfNoConfig(plan->spec)) return absl::OkStatus();
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
  AuditRecord audit = AuditOf(peer, "Hello", name, spec,
                              absl::StrCat("plan of the run's first rank (",
                                           Describe(hello.identity()), ")"));
  absl::MutexLock adopting(&adopt_mutex_);
  std::shared_ptr<PlanTable::AwaitedSave> save;
  {
    absl::MutexLock lock(&mutex_);
    Run* const run = LoadRun(name);
    // What is being agreed on is saved later than this would be.
    ForgetFinished(run);
    const auto known = run->plans.ForAll();
    if ((known != nullptr && !IsOfNoConfig(known->spec)) ||
        !run->switches.empty())
      return absl::OkStatus();
    if (known != nullptr) {
      // All that the operator said stays.
      v1::PlanSpec said = known->spec;
      said.set_config_json(hello.config_json());
      said.set_source_detail(absl::StrCat(said.source_detail(), ", config of ",
                                          spec.source_detail()));
      spec = std::move(said);
    }
    if (!new_runs_.Has(peer.principal.name, MonotonicNow()))
      return TooManyNewRuns(peer);
    new_runs_.TakePlan(peer.principal.name, hello.config_json().size(),
                       MonotonicNow());
    spec.set_epoch(run->plans.NextEpoch());
    audit.epoch = spec.epoch();
    RP_ASSIGN_OR_RETURN(std::shared_ptr<const CompiledPlan> plan,
                        RunPlans::Compile(spec, *config));
    // Epoch and place in the queue under one lock: a switch that is begun
    // after this is saved, and so decided, after this.
    save = plans_.QueueSave(
        PlanTable::NewPlan(name, spec, {}),
        [this, name, plan = std::move(plan), file_key = std::move(file_key),
         audit = std::move(audit)]() mutable {
          absl::MutexLock lock(&mutex_);
          Run* const run = LoadRun(name);
          run->plans.Set(plan, {});
          run->edits.Know(std::move(file_key));
          Audit(std::move(audit), "OK");
        });
  }
  return plans_.Await(save);
}

ControlPlane::Agents::iterator ControlPlane::Forget(Agents::iterator agent) {
  NoteDisconnected(&agent->second);
  index_.Remove(agent->first, agent->second.identity);
  return agents_.erase(agent);
}

void ControlPlane::NoteDisconnected(Agent* agent) {
  if (!std::exchange(agent->connected, false)) return;
  index_.LetGo(agent->peer.principal.name);
  index_.LetGo(HolderOfRun(agent->identity));
}

bool ControlPlane::IsNewRun(const std::string& name) {
  {
    absl::MutexLock lock(&mutex_);
    const auto it = runs_.find(name);
    if (it != runs_.end() && it->second.stored) return false;
  }
  // Once a run: its ranks are many.
  const absl::Status known =
      archive_->ForEachIncarnation(name, [](const v1::IncarnationRow&) {});
  return absl::IsNotFound(known);
}

absl::StatusOr<ControlPlane::Admission> ControlPlane::Admit(
    const v1::Hello& hello, Sender sender, Peer peer) {
  if (registry_ == nullptr) {
    return absl::FailedPreconditionError(
        "this collector serves a read-only archive and takes no ranks; point "
        "the job at a collector that records");
  }
  RP_RETURN_IF_ERROR(CheckRunName(hello.identity().run()));
  RP_RETURN_IF_ERROR(CheckHello(hello));
  const v1::Identity& identity = hello.identity();
  RP_RETURN_IF_ERROR(peer.principal.MayBe(identity.run(), RankOf(identity)));
  {
    absl::MutexLock lock(&mutex_);
    RP_RETURN_IF_ERROR(CheckRankFree(identity, ""));
    RP_RETURN_IF_ERROR(CheckRoom(identity, peer));
  }
  // Outside the lock: this waits for the disk.
  const bool is_new = IsNewRun(identity.run());
  if (is_new) {
    absl::MutexLock lock(&mutex_);
    if (!new_runs_.Has(peer.principal.name, MonotonicNow()))
      return TooManyNewRuns(peer);
    new_runs_.TakeRun(peer.principal.name, MonotonicNow());
  }
  IncarnationClaim claim;
  claim.from_agent = true;
  if (!hello.incarnation_secret().empty())
    claim.secret_sha256 = Sha256(hello.incarnation_secret());
  if (!peer.anonymous) claim.principal = peer.principal.name;
  RP_ASSIGN_OR_RETURN(const OpenedIncarnation opened,
                      registry_->OpenIncarnation(identity, claim));
  RP_RETURN_IF_ERROR(ReadRun(identity.run()));
  std::shared_ptr<const CompiledPlan> own;
  if (options_.relay == nullptr) {
    RP_RETURN_IF_ERROR(AdoptPlanOf(hello, peer));
    RP_ASSIGN_OR_RETURN(own, ReadOwnPlan(identity));
  }
  std::string file_state;
  if (!peer.anonymous && !hello.config_json().empty())
    file_state = Sha256(RunEdits::KeyOf(hello.config_json()));
  // A process that has records has been told when it came first.
  std::vector<v1::IncarnationRow> others;
  if (opened.committed == 0) others = ReadOthers(identity);
  // The disk may have taken long.
  RP_RETURN_IF_ERROR(ReadRun(identity.run()));

  const RunQueuedAfter save(&saves_);
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(CheckRankFree(identity, ""));
  Admission admission;
  admission.identity = identity;
  v1::Welcome& welcome = admission.welcome;
  if (auto other = NewestOf(others); other.has_value())
    *welcome.mutable_other() = *std::move(other);
  RP_RETURN_IF_ERROR(TakeOver(opened, &admission));
  Run* const run = LoadRun(identity.run());
  run->stored = true;
  // Nobody will hear of that session again.
  if (!admission.replaced_session.empty()) {
    if (options_.relay != nullptr)
      RelayGone(admission.replaced_session,
                "another connection took its place");
    for (auto& op : run->switches) op->OnLost(admission.replaced_session);
    ForgetFinished(run);
  }
  const std::optional<int64_t> rank = RankOf(identity);
  // What is saved and not agreed on (yet) comes with its commit or not at all.
  if (own != nullptr && run->plans.ForAll() != nullptr &&
      run->plans.ForRank(rank) == run->plans.ForAll() &&
      own->spec.epoch() > run->plans.ForAll()->spec.epoch() &&
      !run->plans.IsUndecided(own->spec.epoch()))
    run->plans.Set(own, {*rank});
  const std::string session =
      absl::BytesToHexString(RandomBytes(kSessionIdBytes));
  Agent& agent = agents_[session];
  agent.peer = std::move(peer);
  agent.stored_principal = opened.principal;
  if (!opened.dumping) agent.noted_dumping = Dumping::kNo;
  agent.identity = identity;
  index_.Add(session, identity);
  index_.Hold(agent.peer.principal.name);
  index_.Hold(HolderOfRun(identity));
  agent.sender = std::move(sender);
  agent.step = ReportedStep(hello.step());
  NotePlan(hello.plan_epoch(), hello.plan_digest(), run, &agent);
  agent.framework_version = hello.framework_version();
  agent.last_heard = MonotonicNow();
  agent.connected_at = clock_->Now();
  agent.pace.Note(agent.step, 0, agent.last_heard);
  welcome.set_session_id(session);
  welcome.set_collector_version(Version());
  welcome.set_resume_after_sequence(opened.committed);
  welcome.set_credit_bytes(options_.credit_bytes);
  welcome.set_takes_offers(true);
  // Of a leaf's ranks the root says what they record.
  const bool controlled = options_.relay == nullptr;
  if (const auto plan = run->plans.ForRank(rank);
      plan != nullptr && controlled) {
    *welcome.mutable_plan() = plan->spec;
    agent.sent_epoch = plan->spec.epoch();
    // It does not take one that is older than its own, or that one.
    if (plan->spec.epoch() > hello.plan_epoch())
      NoteSent(identity, plan->spec.epoch());
  }
  // The next plan from here is to be newer than what it brought.
  if (options_.one_of_several) {
    run->plans.RaiseEpoch(std::min(hello.plan_epoch(),
                                   run->plans.last_epoch() + kMaxEpochsBehind));
  }
  agent.file_state = std::move(file_state);
  agent.file_seen = agent.sent_epoch;
  if (run->triggers.set() && controlled)
    *welcome.mutable_triggers() = run->triggers.spec();
  welcome.set_degrade(run->triggers.degrade());
  agent.last_moved = agent.last_heard;
  if (!controlled) RelayHello(session, hello, agent.peer);
  v1::Event told = EventOf(v1::Event::KIND_CONNECTED, agent);
  // Steps may count anew, in a server that was started again.
  if (const auto plan = run->plans.ForRank(rank);
      SwitchIsAhead(agent, plan.get())) {
    told.set_detail(
        absl::StrCat("the run's plan, epoch ", plan->spec.epoch(),
                     ", switches dumping ", plan->spec.enabled() ? "on" : "off",
                     " at its step ", plan->spec.effective_at_step()));
  }
  EmitEvent(std::move(told));
  return admission;
}

void ControlPlane::RelayHello(const std::string& session,
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
  options_.relay(std::move(relayed));
}

absl::Status ControlPlane::CheckRoom(const v1::Identity& identity,
                                     const Peer& peer) {
  if (agents_.size() >= options_.max_sessions) {
    for (auto it = agents_.begin(); it != agents_.end();) {
      it = it->second.connected ? std::next(it) : Forget(it);
    }
    if (agents_.size() >= options_.max_sessions) {
      return absl::ResourceExhaustedError(
          absl::StrCat("more than ", options_.max_sessions, " sessions"));
    }
  }
  size_t held = index_.CountHeld(peer.principal.name);
  size_t held_of_run = index_.CountHeld(HolderOfRun(identity));
  // But for the session whose place this one takes.
  for (const std::string& session : index_.Find(identity)) {
    const Agent& agent = agents_.at(session);
    if (!agent.connected ||
        agent.identity.incarnation() != identity.incarnation())
      continue;
    if (agent.peer.principal.name == peer.principal.name) --held;
    --held_of_run;
  }
  // One run does not take all there are, whoever says that he is a rank of it.
  if (const size_t share =
          options_.max_sessions - options_.max_sessions / kKeptForOtherRuns;
      held_of_run >= share) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "run ", VisibleText(identity.run()), " holds ", held_of_run, " of ",
        options_.max_sessions,
        " sessions; the others are kept for other runs (rankprobed "
        "--max-sessions)"));
  }
  if (peer.anonymous || options_.agents <= 1) return absl::OkStatus();
  const size_t share =
      std::max<size_t>(options_.max_sessions / options_.agents, 1);
  if (held < share) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      peer.principal.name, " holds ", held,
      " sessions, its share of --max-sessions ", options_.max_sessions,
      " among ", options_.agents, " agents of the token file"));
}

absl::Status ControlPlane::TakeOver(const OpenedIncarnation& opened,
                                    Admission* admission) {
  const v1::Identity& identity = admission->identity;
  // Of this process or this rank.
  const std::set<std::string> sessions = index_.Find(identity);
  for (const std::string& session : sessions) {
    const Agent& agent = agents_.at(session);
    if (!opened.proved && agent.connected &&
        agent.identity.incarnation() == identity.incarnation()) {
      return absl::AlreadyExistsError(
          "this process is connected, and without a secret no process can "
          "prove "
          "to be it; try again when that connection has ended");
    }
  }
  for (const std::string& session : sessions) {
    const auto it = agents_.find(session);
    const Agent& agent = it->second;
    if (agent.connected) {
      admission->replaced_session = session;
      if (agent.peer.end != nullptr) {
        agent.peer.end(absl::AbortedError(
            "another connection of this process has taken its place"));
      }
    }
    Forget(it);
  }
  return absl::OkStatus();
}

AuditRecord ControlPlane::AuditOf(const Peer& peer, absl::string_view action,
                                  const std::string& run,
                                  const v1::PlanSpec& spec,
                                  absl::string_view detail) {
  AuditRecord record;
  record.actor = peer.principal.name;
  record.role = std::string(peer.anonymous ? RoleName(Role::kAgent)
                                           : RoleName(peer.principal.role));
  record.peer = peer.address;
  record.action = std::string(action);
  record.run = run;
  const std::string& config = spec.config_json();
  record.detail = absl::StrCat(detail, ", config ",
                               config.substr(0, kMaxAuditedConfigBytes));
  if (config.size() > kMaxAuditedConfigBytes) {
    absl::StrAppend(&record.detail, ".. (", config.size(), " bytes, SHA-256 ",
                    absl::BytesToHexString(Sha256(config)), ")");
  }
  record.epoch = spec.epoch();
  return record;
}

void ControlPlane::Audit(AuditRecord record, absl::string_view outcome) {
  if (audit_.size() >= kMaxWaitingAudit ||
      !audit_budget_.Take(record.actor, MonotonicNow())) {
    ++dropped_audit_;
    return;
  }
  record.outcome = std::string(outcome);
  audit_.push_back(std::move(record));
}

std::vector<AuditRecord> ControlPlane::TakeAudit() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(audit_, {});
}

void ControlPlane::OnRankKnown(const std::string& session,
                               const v1::RankKnown& known) {
  v1::Identity before, identity;
  const auto refuse = [](const absl::Status& why, const Agent& agent) {
    v1::Directive directive;
    directive.mutable_goodbye()->set_reason(std::string(why.message()));
    agent.sender(directive);
  };
  {
    absl::MutexLock lock(&mutex_);
    const auto it = agents_.find(session);
    if (it == agents_.end()) return;
    Agent& agent = it->second;
    agent.last_heard = MonotonicNow();
    before = identity = agent.identity;
    identity.set_rank(known.rank());
    identity.set_world_size(known.world_size());
    absl::Status status;
    if (identity.rank() < 0 || identity.rank() > kMaxRank)
      status = absl::InvalidArgumentError("rank out of range");
    status.Update(agent.peer.principal.MayBe(identity.run(), identity.rank()));
    status.Update(CheckRankFree(identity, session));
    if (!status.ok()) return refuse(status, agent);
    // Nobody else may claim it meanwhile.
    index_.Remove(session, agent.identity);
    agent.identity = identity;
    index_.Add(session, identity);
  }
  // Outside the lock: this waits for the disk.
  const absl::Status stored = registry_->OpenIncarnation(identity).status();
  if (stored.ok()) return;
  absl::MutexLock lock(&mutex_);
  const auto it = agents_.find(session);
  if (it == agents_.end()) return;
  index_.Remove(session, it->second.identity);
  it->second.identity = before;
  index_.Add(session, before);
  refuse(stored, it->second);
}

uint64_t ControlPlane::CountDroppedAudit() const {
  absl::MutexLock lock(&mutex_);
  return dropped_audit_;
}

absl::StatusOr<ControlPlane::SessionInfo> ControlPlane::Find(
    const std::string& session, const Principal& principal) const {
  absl::MutexLock lock(&mutex_);
  const auto it = agents_.find(session);
  if (it == agents_.end() || !it->second.connected ||
      it->second.peer.principal != principal)
    return absl::NotFoundError("no such session");
  return SessionInfo{it->second.identity, it->second.stored_principal};
}

}  // namespace rankprobe
