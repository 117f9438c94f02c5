// SPDX-License-Identifier: Apache-2.0
// ControlPlane: config files that are edited while the job runs
// (docs/design.md, "Who decides").
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/auth/secret.h"
#include "collector/control/control_plane.h"
#include "common/base/step_range.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// A rank that is silent or late gets another chance, so many times.
constexpr int kMaxAttempts = 5;
constexpr absl::Duration kTryAgain = absl::Seconds(1);
constexpr char kSuperseded[] = "SUPERSEDED: by a newer edit";

// Of what an agent says, in a line of the audit log.
std::string AuditedText(const std::string& visible) {
  constexpr size_t kMaxAuditedBytes = 256;
  return visible.size() <= kMaxAuditedBytes
             ? visible
             : absl::StrCat(VisibleText(visible.substr(0, kMaxAuditedBytes)),
                            "..");
}

bool AnyMissed(const v1::SwitchResult& result) {
  return std::any_of(result.ranks().begin(), result.ranks().end(),
                     [](const v1::RankSwitch& rank) {
                       return rank.state() == v1::RankSwitch::STATE_REFUSED &&
                              !SwitchRanks::IsLeftOut(rank);
                     });
}

}  // namespace

void ControlPlane::OnConfigEdited(const std::string& session,
                                  const v1::ConfigEdited& untrusted) {
  v1::Identity identity;
  Peer peer;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = agents_.find(session);
    if (it == agents_.end()) return;
    identity = it->second.identity;
    peer = it->second.peer;
  }
  // The run of a connected rank is in memory. If it has gone meanwhile, it tells
  // its edit when it comes again.
  if (!ReadRun(identity.run()).ok()) return;
  // Outside the lock: this compiles, and takes a digest of up to 1 MiB.
  FileEdit edit = FileEdit::Read(untrusted, identity);
  edit.session = session;
  edit.step = ReportedStep(untrusted.step());
  if (!peer.anonymous)
    edit.state = Sha256(edit.fault.empty() ? edit.key : "cannot be used");
  {
    absl::MutexLock lock(&mutex_);
    const auto it = agents_.find(session);
    if (it == agents_.end()) return;
    Agent& agent = it->second;
    agent.last_heard = MonotonicNow();
    agent.config_fault = edit.fault;
    edit.seen_epoch = std::min(edit.seen_epoch, agent.sent_epoch);
    if (agent.file_state != edit.state) agent.file_seen = edit.seen_epoch;
    agent.file_state = edit.state;
    if (LoadRun(identity.run())->edits.Knows(edit.key)) return;
  }
  // Outside as well: it may take a digest of 1 MiB.
  v1::PlanSpec brought;
  brought.set_config_json(edit.config_json);
  edit.audit =
      AuditOf(peer, "ConfigEdited", identity.run(), brought,
              edit.fault.empty()
                  ? AuditedText(edit.who)
                  : absl::StrCat(AuditedText(edit.who),
                                 " cannot be used: ", AuditedText(edit.fault)));
  const RunQueuedAfter save(&saves_);
  absl::MutexLock lock(&mutex_);
  const auto it = agents_.find(session);
  if (it == agents_.end()) return;
  Run* const run = LoadRun(identity.run());
  if (IsOfAll(it->second, run, &edit))
    TakeEdit(it->second, run, std::move(edit));
}

void ControlPlane::TakeEdit(const Agent& speaker, Run* run, FileEdit edit) {
  const AuditRecord audit = edit.audit;
  v1::Event told = EventOf(v1::Event::KIND_ERROR, speaker);
  told.set_step(edit.step);
  told.set_detail(absl::StrCat(edit.who, " cannot be used: ", edit.fault));
  told.set_outcome("dumping is kept off");
  const bool usable = edit.fault.empty();
  std::optional<FileEdit> superseded;
  if (!run->edits.Take(std::move(edit), &superseded)) return;
  if (superseded.has_value()) Audit(superseded->audit, kSuperseded);
  if (!usable) {
    EmitEvent(std::move(told));
    // Of an older state of the file: nothing of it may come into force now.
    KeepOff(run);
  }
  // While another switch goes on it waits, and only the newest does: who edits
  // without end makes one plan at a time.
  TryEdit(run);
  if (run->edits.waiting())
    Audit(audit, "WAITING: for the end of another switch of the run");
}

void ControlPlane::CallOffFileSwitches(Run* run) {
  for (auto& op : run->switches) {
    if (op->source() == v1::PlanSpec::SOURCE_FILE) op->CallOff();
  }
  ForgetFinished(run);
}

void ControlPlane::KeepOff(Run* run) {
  for (auto& op : run->switches) {
    if (op->enables() && op->source() != v1::PlanSpec::SOURCE_OPERATOR)
      op->CallOff();
  }
  ForgetFinished(run);
}

void ControlPlane::TryEdit(Run* run) {
  if (!run->switches.empty()) return;
  std::optional<FileEdit> next = run->edits.Next(MonotonicNow());
  if (!next.has_value()) return;
  FileEdit edit = *std::move(next);
  const std::shared_ptr<const CompiledPlan> own = run->plans.ForRank(edit.rank);
  const std::shared_ptr<const CompiledPlan> plan = run->plans.ForAll();
  if (own != nullptr && edit.IsOlderThan(own->spec)) {
    return NoteEdit(*run, edit, own->spec,
                    absl::StrCat("not applied: read before the operator's plan "
                                 "of epoch ",
                                 own->spec.epoch(),
                                 "; edit the file again to overrule it"));
  }
  const bool usable = edit.fault.empty();
  v1::PlanSpec spec;
  spec.set_source(v1::PlanSpec::SOURCE_FILE);
  spec.set_source_detail(
      usable ? edit.who
             : absl::StrCat(edit.who, " cannot be used: ", edit.fault));
  v1::SwitchOptions options;
  options.set_timeout_ms(kOwnSwitchTimeoutMs);
  std::shared_ptr<const Plan> config = edit.config;
  std::optional<int64_t> until;
  if (usable) {
    spec.set_config_json(edit.config_json);
    run->edits.SetFault("");
    // A file that does not say leaves the switch as it is.
    const Switched switched = SwitchedBy(*run, *config);
    spec.set_enabled(switched.on);
    until = switched.until;
  } else {
    spec.set_config_json(OperatorConfig(*run));
    // A disabled plan's config is asked for nothing but its text.
    config = plan != nullptr ? plan->config : std::make_shared<const Plan>();
    run->edits.SetFault(edit.who + ": " + edit.fault);
  }
  ++edit.attempts;
  Switch(
      run->name, std::move(spec), std::move(config), /*expected_epoch=*/0,
      options,
      [this, name = run->name,
       edit](const absl::StatusOr<v1::SwitchResult>& result) {
        mutex_.AssertHeld();
        EditDone(name, edit, result);
      },
      until);
}

void ControlPlane::EditDone(const std::string& name, FileEdit edit,
                            const absl::StatusOr<v1::SwitchResult>& result) {
  Run* const run = LoadRun(name);
  const std::shared_ptr<const CompiledPlan> plan = run->plans.ForAll();
  const bool in_force =
      result.ok() && plan != nullptr && plan->spec.epoch() == result->epoch();
  // What called it off is newer.
  const bool again = !absl::IsCancelled(result.status()) &&
                     edit.attempts < kMaxAttempts &&
                     (!in_force || AnyMissed(*result));
  if (in_force || !again) {
    NoteEdit(*run, edit, in_force ? plan->spec : v1::PlanSpec(),
             result.ok() ? absl::StrCat(in_force ? "OK: " : "not applied: ",
                                        result->summary())
                         : result.status().ToString());
  }
  if (!again) return;
  edit.not_before = MonotonicNow();
  if (!in_force) edit.not_before += kTryAgain;
  const AuditRecord audit = edit.audit;
  if (!run->edits.TryAgain(std::move(edit)) && !in_force)
    Audit(audit, kSuperseded);
}

void ControlPlane::NoteEdit(const Run& run, const FileEdit& edit,
                            const v1::PlanSpec& plan,
                            const std::string& outcome) {
  AuditRecord audit = edit.audit;
  audit.epoch = plan.epoch();
  Audit(std::move(audit),
        edit.fault.empty()
            ? outcome
            : absl::StrCat("REFUSED: dumping is kept off: ", outcome));
  v1::Event told;
  told.set_kind(v1::Event::KIND_SWITCHED);
  told.set_run(run.name);
  told.set_step(plan.source() == v1::PlanSpec::SOURCE_FILE
                    ? plan.effective_at_step()
                    : -1);
  told.set_detail(absl::StrCat(
      edit.who, edit.fault.empty() ? " was edited" : " cannot be used"));
  told.set_outcome(outcome);
  EmitEvent(std::move(told));
}

int64_t ControlPlane::FurthestStep(const std::string& run) const {
  std::vector<int64_t> steps;
  for (const auto& [session, agent] : agents_) {
    if (agent.connected && agent.identity.run() == run)
      steps.push_back(agent.step);
  }
  return SwitchRanks::FurthestBelievable(std::move(steps));
}

}  // namespace rankprobe
