// SPDX-License-Identifier: Apache-2.0
#include "collector/control/config_edits.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collector/auth/secret.h"
#include "common/base/step_range.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// Attempts for an edit if a rank is silent or late.
constexpr int kMaxAttempts = 5;
constexpr absl::Duration kTryAgain = absl::Seconds(1);
constexpr char kSuperseded[] = "SUPERSEDED: by a newer edit";
// Ranks that one line names.
constexpr size_t kMaxNamedOthers = 8;

// Limits an agent's text in a line of the audit log.
std::string AuditedText(const std::string& visible) {
  constexpr size_t kMaxAuditedBytes = 256;
  return visible.size() <= kMaxAuditedBytes
             ? visible
             : absl::StrCat(VisibleText(visible.substr(0, kMaxAuditedBytes)),
                            "..");
}

std::string WhatIsWrong(const FileEdit& edit) {
  return absl::StrCat(edit.who, " cannot be used: ", edit.fault);
}

bool AnyMissed(const v1::SwitchResult& result) {
  return std::any_of(result.ranks().begin(), result.ranks().end(),
                     [](const v1::RankSwitch& rank) {
                       return rank.state() == v1::RankSwitch::STATE_REFUSED &&
                              !SwitchRanks::IsLeftOut(rank);
                     });
}

// Returns a text such as "rank 1, rank 3 and 4 others".
std::string NamesOf(std::vector<const AgentSession*> agents) {
  std::sort(agents.begin(), agents.end(), [](const auto* a, const auto* b) {
    return std::make_pair(a->identity.rank(), a->identity.pid()) <
           std::make_pair(b->identity.rank(), b->identity.pid());
  });
  const size_t named = std::min(agents.size(), kMaxNamedOthers);
  std::string names =
      absl::StrJoin(agents.begin(), agents.begin() + named, ", ",
                    [](std::string* out, const AgentSession* agent) {
                      absl::StrAppend(out, RankText(agent->identity));
                    });
  if (agents.size() > named)
    absl::StrAppend(&names, " and ", agents.size() - named, " others");
  return names;
}

}  // namespace

void ConfigEdits::OnConfigEdited(const std::string& session,
                                 const v1::ConfigEdited& untrusted) {
  v1::Identity identity;
  Peer peer;
  {
    const ControlLock lock(core_);
    const AgentSession* const agent = core_->sessions.Find(session);
    if (agent == nullptr) return;
    identity = agent->identity;
    peer = agent->peer;
  }
  // The run of a connected rank is in memory. If the rank has disconnected
  // meanwhile, it repeats its edit when it reconnects.
  if (!saved_->Read(identity.run()).ok()) return;
  // Outside the lock, because this compiles, and computes a digest of up to 1
  // MiB.
  FileEdit edit = FileEdit::Read(untrusted, identity);
  edit.session = session;
  edit.step = ReportedStep(untrusted.step());
  if (!peer.anonymous)
    edit.state = Sha256(edit.fault.empty() ? edit.key : "cannot be used");
  {
    const ControlLock lock(core_);
    AgentSession* const agent = core_->sessions.Find(session);
    if (agent == nullptr) return;
    agent->last_heard = core_->Now();
    agent->config_fault = edit.fault;
    if (untrusted.cannot_record()) {
      agent->cannot_record = true;
      return;
    }
    edit.seen_epoch = std::min(edit.seen_epoch, agent->sent_epoch);
    if (agent->file_state != edit.state) agent->file_seen = edit.seen_epoch;
    agent->file_state = edit.state;
    if (core_->LoadRun(identity.run())->edits.Knows(edit.key)) return;
  }
  // Outside the lock as well, because it may compute a digest of 1 MiB.
  v1::PlanSpec brought;
  brought.set_config_json(edit.config_json);
  edit.audit = AgentAudit::Describe(
      peer, "ConfigEdited", identity.run(), brought,
      edit.fault.empty()
          ? AuditedText(edit.who)
          : absl::StrCat(AuditedText(edit.who),
                         " cannot be used: ", AuditedText(edit.fault)));
  const ControlLock lock(core_);
  const AgentSession* const agent = core_->sessions.Find(session);
  if (agent == nullptr) return;
  RunState* const run = core_->LoadRun(identity.run());
  if (IsOfAll(*agent, run, &edit)) TakeEdit(*agent, run, std::move(edit));
}

bool ConfigEdits::IsOfAll(const AgentSession& speaker, RunState* run,
                          FileEdit* edit) {
  const std::vector<const AgentSession*> others =
      core_->sessions.OthersThan(speaker, /*same_file=*/true);
  if (others.empty()) {
    // The edit is as old as the first time that a rank read this content.
    for (const AgentSession* agent : core_->sessions.ConnectedOf(run->name)) {
      if (!edit->state.empty() && agent->file_state == edit->state)
        edit->seen_epoch = std::min(edit->seen_epoch, agent->file_seen);
    }
    return true;
  }
  const bool usable = edit->fault.empty();
  const std::string names = NamesOf(others);
  v1::Event told = speaker.EventOf(usable ? v1::Event::KIND_SWITCHED
                                          : v1::Event::KIND_ERROR);
  told.set_step(edit->step);
  told.set_detail(usable ? absl::StrCat(edit->who, " was edited")
                         : WhatIsWrong(*edit));
  told.set_outcome(absl::StrCat(
      "nothing changes before ", names, " read", others.size() == 1 ? "s" : "",
      usable ? " the same" : " such a file, too",
      ": the token of this rank is bound to ranks, theirs is another"));
  AuditRecord audit = edit->audit;
  if (run->edits.SetAside(std::move(*edit))) {
    audit_->Add(std::move(audit),
                absl::StrCat("WAITING: for the same of ", names));
    core_->Emit(std::move(told));
  }
  return false;
}

void ConfigEdits::TryEditSetAside(RunState* run) {
  if (!run->edits.aside().has_value()) return;
  const AgentSession* const agent =
      core_->sessions.FindConnected(run->edits.aside()->session);
  // The edit was that rank's, and no longer is.
  if (agent == nullptr || agent->file_state != run->edits.aside()->state) {
    run->edits.TakeAside();
    return;
  }
  if (!core_->sessions.OthersThan(*agent, /*same_file=*/true).empty()) return;
  TakeEdit(*agent, run, *run->edits.TakeAside());
}

void ConfigEdits::TakeEdit(const AgentSession& speaker, RunState* run,
                           FileEdit edit) {
  const AuditRecord audit = edit.audit;
  v1::Event told = speaker.EventOf(v1::Event::KIND_ERROR);
  told.set_step(edit.step);
  told.set_detail(WhatIsWrong(edit));
  told.set_outcome("dumping is kept off");
  const bool usable = edit.fault.empty();
  std::optional<FileEdit> superseded;
  if (!run->edits.Take(std::move(edit), &superseded)) return;
  if (superseded.has_value()) audit_->Add(superseded->audit, kSuperseded);
  if (!usable) {
    core_->Emit(std::move(told));
    // A switch in progress was made for an older state of the file. Unless it
    // is an operator's, it must not switch dumping on after the invalid edit
    // was reported.
    PlanSwitches::CallOff(run, [](const SwitchOperation& op) {
      return op.enables() && op.source() != v1::PlanSpec::SOURCE_OPERATOR;
    });
  }
  // During another switch the edit waits, and only the newest is kept:
  // continuous edits make one plan at a time.
  TryEdit(run);
  if (run->edits.waiting())
    audit_->Add(audit, "WAITING: for the end of another switch of the run");
}

void ConfigEdits::TryEdit(RunState* run) {
  if (!run->switches.empty()) return;
  std::optional<FileEdit> next = run->edits.Next(core_->Now());
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
  SwitchOperation::Request request;
  request.spec.set_source(v1::PlanSpec::SOURCE_FILE);
  request.spec.set_source_detail(usable ? edit.who : WhatIsWrong(edit));
  request.options.set_timeout_ms(kOwnSwitchTimeoutMs);
  if (usable) {
    request.config = edit.config;
    request.spec.set_config_json(edit.config_json);
    run->edits.SetFault("");
    // A file without dump_enable leaves the switch as it is.
    const PlanSwitches::Switched switched =
        switches_->SwitchedBy(*run, *edit.config);
    request.spec.set_enabled(switched.on);
    request.until = switched.until;
  } else {
    // Only the text of a disabled plan's config is used.
    request.config =
        plan != nullptr ? plan->config : std::make_shared<const Plan>();
    request.spec.set_config_json(run->OperatorConfig());
    run->edits.SetFault(edit.who + ": " + edit.fault);
  }
  ++edit.attempts;
  switches_->Begin(run, std::move(request),
                   [this, name = run->name,
                    edit](const absl::StatusOr<v1::SwitchResult>& result) {
                     core_->AssertHeld();
                     EditDone(name, edit, result);
                   });
}

void ConfigEdits::EditDone(const std::string& name, FileEdit edit,
                           const absl::StatusOr<v1::SwitchResult>& result) {
  RunState* const run = core_->LoadRun(name);
  const std::shared_ptr<const CompiledPlan> plan = run->plans.ForAll();
  const bool in_force =
      result.ok() && plan != nullptr && plan->spec.epoch() == result->epoch();
  // A cancelled switch was replaced by a newer one, so the edit is not tried
  // again.
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
  edit.not_before = core_->Now();
  if (!in_force) edit.not_before += kTryAgain;
  const AuditRecord audit = edit.audit;
  if (!run->edits.TryAgain(std::move(edit)) && !in_force)
    audit_->Add(audit, kSuperseded);
}

void ConfigEdits::NoteEdit(const RunState& run, const FileEdit& edit,
                           const v1::PlanSpec& plan,
                           const std::string& outcome) {
  const bool usable = edit.fault.empty();
  AuditRecord audit = edit.audit;
  audit.epoch = plan.epoch();
  audit_->Add(std::move(audit),
              usable ? outcome
                     : absl::StrCat("REFUSED: dumping is kept off: ", outcome));
  core_->Tell(
      v1::Event::KIND_SWITCHED, run.name,
      absl::StrCat(edit.who, usable ? " was edited" : " cannot be used"),
      outcome,
      plan.source() == v1::PlanSpec::SOURCE_FILE ? plan.effective_at_step()
                                                 : -1);
}

}  // namespace rankprobe
