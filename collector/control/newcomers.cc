// SPDX-License-Identifier: Apache-2.0
#include "collector/control/newcomers.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/auth/secret.h"
#include "common/base/status_macros.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// Bytes of a plan's text that count as one run in the budget.
constexpr double kPlanBytes = 4096;
constexpr uint32_t kProtocol = 1;
constexpr size_t kSecretBytes = 32;

absl::Status TooManyNewRuns(const Peer& peer) {
  return absl::ResourceExhaustedError(
      absl::StrCat(peer.principal.name,
                   " has begun too many runs lately; one more is taken every "
                   "ten seconds. Existing runs are served"));
}

// An agent's plan may replace no plan, or one that an operator made before any
// rank had connected and that names no config: no file has exactly this text.
bool IsOpen(const CompiledPlan* plan) {
  return plan == nullptr ||
         (plan->spec.source() == v1::PlanSpec::SOURCE_OPERATOR &&
          plan->spec.config_json() == DefaultConfigJson());
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

}  // namespace

absl::StatusOr<Newcomers::Known> Newcomers::Read(const v1::Hello& hello,
                                                 const Peer& peer) {
  if (core_->registry == nullptr) {
    return absl::FailedPreconditionError(
        "this collector serves a read-only archive and takes no ranks; point "
        "the job at a collector that records");
  }
  RP_RETURN_IF_ERROR(Check(hello, peer));
  const v1::Identity& identity = hello.identity();
  RP_RETURN_IF_ERROR(BeginRun(identity.run(), peer));
  IncarnationClaim claim;
  claim.from_agent = true;
  if (!hello.incarnation_secret().empty())
    claim.secret_sha256 = Sha256(hello.incarnation_secret());
  if (!peer.anonymous) claim.principal = peer.principal.name;
  Known known;
  RP_ASSIGN_OR_RETURN(known.opened,
                      core_->registry->OpenIncarnation(identity, claim));
  RP_RETURN_IF_ERROR(saved_->Read(identity.run()));
  // On a leaf the root decides the plans.
  if (core_->options.relay == nullptr) {
    RP_RETURN_IF_ERROR(AdoptPlanOf(hello, peer));
    RP_ASSIGN_OR_RETURN(known.own_plan, saved_->ReadOwnPlan(identity));
  }
  // A process with records got this answer at its first connection.
  if (known.opened.committed == 0) known.others = ReadOthers(identity);
  // The run may have been dropped from memory while the disk was slow.
  RP_RETURN_IF_ERROR(saved_->Read(identity.run()));
  return known;
}

bool Newcomers::IsNewRun(const std::string& name) {
  {
    const ControlLock lock(core_);
    const RunState* const run = core_->FindRun(name);
    if (run != nullptr && run->stored) return false;
  }
  // Asked once per run, because its ranks are many.
  return absl::IsNotFound(core_->archive->ForEachIncarnation(
      name, [](const v1::IncarnationRow&) {}));
}

absl::Status Newcomers::Check(const v1::Hello& hello, const Peer& peer) {
  const v1::Identity& identity = hello.identity();
  RP_RETURN_IF_ERROR(SavedRuns::CheckName(identity.run()));
  RP_RETURN_IF_ERROR(CheckHello(hello));
  RP_RETURN_IF_ERROR(peer.principal.MayBe(identity.run(), RankOf(identity)));
  const ControlLock lock(core_);
  RP_RETURN_IF_ERROR(core_->sessions.CheckRankFree(identity, ""));
  return core_->sessions.CheckRoom(identity, peer);
}

absl::Status Newcomers::BeginRun(const std::string& run, const Peer& peer) {
  if (!IsNewRun(run)) return absl::OkStatus();
  const ControlLock lock(core_);
  const absl::Time now = core_->Now();
  if (!budget_.HasOne(peer.principal.name, now)) return TooManyNewRuns(peer);
  budget_.Take(peer.principal.name, 1, now);
  return absl::OkStatus();
}

absl::Status Newcomers::AdoptPlanOf(const v1::Hello& hello, const Peer& peer) {
  const std::string& name = hello.identity().run();
  if (hello.config_json().empty()) return absl::OkStatus();
  {
    const ControlLock lock(core_);
    if (!IsOpen(core_->LoadRun(name)->plans.ForAll().get()))
      return absl::OkStatus();
  }
  // A config that is not valid is reported by the agent itself.
  const auto config = RunPlans::Parse(hello.config_json());
  if (!config.ok()) return absl::OkStatus();
  v1::PlanSpec spec;
  spec.set_config_json(hello.config_json());
  spec.set_enabled((*config)->dump_enable.value_or(true));
  std::string file_key = RunEdits::KeyOf(hello.config_json());
  spec.set_source(v1::PlanSpec::SOURCE_FIRST_RANK);
  spec.set_source_detail(RankText(hello.identity()));
  if (!hello.config_path().empty()) {
    absl::StrAppend(spec.mutable_source_detail(), ", ",
                    VisibleText(hello.config_path().substr(0, 1024)));
  }
  AuditRecord record = AgentAudit::Describe(
      peer, "Hello", name, spec,
      absl::StrCat("plan of the run's first rank (",
                   DescribeProcess(hello.identity()), ")"));
  absl::MutexLock adopting(&adopt_mutex_);
  std::shared_ptr<PlanTable::AwaitedSave> save;
  {
    const ControlLock lock(core_);
    RunState* const run = core_->LoadRun(name);
    // A plan being agreed on would be saved after this one and replace it.
    run->ForgetFinishedSwitches();
    const auto known = run->plans.ForAll();
    if (!IsOpen(known.get()) || !run->switches.empty()) return absl::OkStatus();
    if (known != nullptr) {
      // Everything else that the operator set is kept.
      v1::PlanSpec said = known->spec;
      said.set_config_json(hello.config_json());
      said.set_source_detail(absl::StrCat(said.source_detail(), ", config of ",
                                          spec.source_detail()));
      spec = std::move(said);
    }
    const absl::Time now = core_->Now();
    if (!budget_.HasOne(peer.principal.name, now)) return TooManyNewRuns(peer);
    budget_.Take(peer.principal.name,
                 static_cast<double>(hello.config_json().size()) / kPlanBytes,
                 now);
    spec.set_epoch(run->plans.NextEpoch());
    record.epoch = spec.epoch();
    RP_ASSIGN_OR_RETURN(std::shared_ptr<const CompiledPlan> plan,
                        RunPlans::Compile(spec, *config));
    // The epoch and the place in the queue are taken under one lock, so that a
    // later switch is also saved and decided later.
    save = core_->plans.QueueSave(
        PlanTable::NewPlan(name, spec, {}),
        [this, name, plan = std::move(plan), file_key = std::move(file_key),
         record = std::move(record)]() mutable {
          const ControlLock lock(core_);
          RunState* const run = core_->LoadRun(name);
          run->plans.Set(plan, {});
          run->edits.Know(std::move(file_key));
          audit_->Add(std::move(record), "OK");
        });
  }
  return core_->plans.Await(save);
}

std::vector<v1::IncarnationRow> Newcomers::ReadOthers(
    const v1::Identity& self) const {
  std::vector<v1::IncarnationRow> others;
  // Only rank 0 reports for its job, because each of thousands of ranks would
  // read thousands of rows.
  if (self.has_rank() && self.rank() != 0) return others;
  // A process with records got this answer before: a root does not know which
  // records its leaf has.
  bool has_records = false;
  const absl::Status status = core_->archive->ForEachIncarnation(
      self.run(), [&](const v1::IncarnationRow& row) {
        const v1::Identity& other = row.identity();
        const bool is_same_job =
            !self.job().empty() && other.job() == self.job();
        if (other.incarnation() == self.incarnation())
          has_records = row.committed_sequence() > 0;
        else if (other.has_rank() == self.has_rank() &&
                 other.rank() == self.rank() && !is_same_job)
          others.push_back(row);
      });
  if (!status.ok() || has_records) others.clear();
  return others;
}

std::optional<v1::OtherProcess> Newcomers::NewestOf(
    const std::vector<v1::IncarnationRow>& others) const {
  std::optional<v1::OtherProcess> newest;
  for (const v1::IncarnationRow& row : others) {
    v1::OtherProcess other;
    *other.mutable_identity() = row.identity();
    other.set_unix_ns(row.updated_unix_ns());
    bool crashed = false;
    for (const AgentSession* agent : core_->sessions.SameAs(row.identity())) {
      if (agent->identity.incarnation() != row.identity().incarnation())
        continue;
      if (agent->connected) {
        other.set_connected(true);
        other.set_unix_ns(absl::ToUnixNanos(agent->connected_at));
      }
      crashed = !agent->connected && !agent->farewell;
    }
    // A process that follows a killed one continues its work.
    if (crashed || (!other.connected() && row.committed_sequence() == 0))
      continue;
    if (!newest.has_value() ||
        std::make_pair(newest->connected(), newest->unix_ns()) <
            std::make_pair(other.connected(), other.unix_ns()))
      newest = std::move(other);
  }
  return newest;
}

}  // namespace rankprobe
