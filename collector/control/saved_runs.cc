// SPDX-License-Identifier: Apache-2.0
#include "collector/control/saved_runs.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/trigger_spec.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// A call that releases the lock and looks a run up again takes less time than
// this, unless it waits for the queue of saves: while anything is being saved
// no run is dropped.
constexpr absl::Duration kIdle = absl::Seconds(30);
constexpr absl::Duration kIdleCheckInterval = absl::Seconds(1);
constexpr size_t kMaxToldFaultBytes = 1024;

absl::Status CannotRead(const std::string& run, const absl::Status& status) {
  return absl::UnavailableError(absl::StrCat(
      "what is saved of run \"", run, "\" cannot be read: ", status.message()));
}

}  // namespace

absl::StatusOr<SavedRuns::Saved> SavedRuns::ReadSaved(
    const std::string& name) const {
  Saved saved;
  const auto plan = core_->plans.ForRun(name);
  if (!plan.ok()) return CannotRead(name, plan.status());
  if (plan->has_value()) {
    saved.epoch = (*plan)->epoch();
    if (auto compiled = RunPlans::Compile(**plan); !compiled.ok()) {
      saved.faults.push_back(
          absl::StrCat("the saved plan of epoch ", saved.epoch,
                       " cannot be used: ", compiled.status().message()));
    } else {
      saved.plan = *std::move(compiled);
      if (const auto source = saved.plan->spec.source();
          source == v1::PlanSpec::SOURCE_FILE ||
          source == v1::PlanSpec::SOURCE_FIRST_RANK)
        saved.file_key = RunEdits::KeyOf(saved.plan->spec.config_json());
    }
  }
  const auto highest = core_->plans.HighestEpoch(name);
  if (!highest.ok()) return CannotRead(name, highest.status());
  saved.epoch = std::max(saved.epoch, *highest);
  const auto triggers = core_->plans.Triggers(name);
  if (!triggers.ok()) return CannotRead(name, triggers.status());
  if (triggers->has_value()) {
    if (auto spec = ParseTriggerSpec(**triggers); spec.ok()) {
      saved.triggers = *std::move(spec);
    } else {
      saved.faults.push_back(absl::StrCat("the saved triggers cannot be used: ",
                                          spec.status().message()));
    }
  }
  if (!saved.triggers.has_value())
    saved.triggers = core_->options.default_triggers;
  return saved;
}

absl::Status SavedRuns::CheckName(const std::string& run) {
  if (run.empty() || run.size() > 255)
    return absl::InvalidArgumentError("run: 1 to 255 bytes are needed");
  if (run.find('\0') != std::string::npos)
    return absl::InvalidArgumentError("run: contains a zero byte");
  return absl::OkStatus();
}

absl::Status SavedRuns::Read(const std::string& name) {
  RP_RETURN_IF_ERROR(CheckName(name));
  {
    const ControlLock lock(core_);
    if (RunState* const run = core_->FindRun(name); run != nullptr) {
      // The rest of the call needs the run.
      run->last_used = core_->Now();
      return absl::OkStatus();
    }
  }
  RP_ASSIGN_OR_RETURN(const Saved saved, ReadSaved(name));
  const ControlLock lock(core_);
  // A concurrent call has read the same.
  if (core_->FindRun(name) != nullptr) return absl::OkStatus();
  RunState* const run = core_->LoadRun(name);
  for (const std::string& fault : saved.faults) TellFault(name, fault);
  if (saved.triggers.has_value()) run->triggers.Set(*saved.triggers);
  // No epoch is used twice, not even that of a plan that cannot be used.
  run->plans.RaiseEpoch(saved.epoch);
  if (saved.plan == nullptr) return absl::OkStatus();
  run->plans.Set(saved.plan, {});
  run->edits.Know(saved.file_key);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const CompiledPlan>> SavedRuns::ReadOwnPlan(
    const v1::Identity& identity) {
  if (!identity.has_rank()) return nullptr;
  const auto own = core_->plans.ForRank(identity.run(), identity.rank());
  if (!own.ok()) return CannotRead(identity.run(), own.status());
  if (!own->has_value()) return nullptr;
  auto compiled = RunPlans::Compile(**own);
  if (compiled.ok()) return compiled;
  TellFault(identity.run(),
            absl::StrCat("the saved plan of epoch ", (*own)->epoch(),
                         " of rank ", identity.rank(),
                         " cannot be used: ", compiled.status().message()));
  return nullptr;
}

void SavedRuns::ForgetIdle(absl::Time now) {
  const size_t kept = core_->options.max_idle_runs;
  if (core_->runs.size() <= kept || now < next_idle_check_) return;
  // A run must not be dropped during a save of its plan: it would be created
  // again without the plan, and that state would be saved over it.
  if (!core_->saves->idle()) return;
  next_idle_check_ = now + kIdleCheckInterval;
  std::set<absl::string_view> live;
  for (const auto& [session, agent] : core_->sessions.all()) {
    // Frames of a disconnected rank may still be waiting for the disk.
    if (agent.connected || agent.pending_bytes > 0)
      live.insert(agent.identity.run());
  }
  std::vector<std::pair<absl::Time, const std::string*>> idle;
  for (const auto& [name, run] : core_->runs) {
    if (live.count(name) == 0 && run.switches.empty() && !run.edits.waiting() &&
        now - run.last_used > kIdle)
      idle.emplace_back(run.last_used, &name);
  }
  if (idle.size() <= kept) return;
  std::sort(idle.begin(), idle.end());
  idle.resize(idle.size() - kept);
  for (const auto& [last_used, name] : idle)
    core_->runs.erase(core_->runs.find(*name));
}

void SavedRuns::TellFault(const std::string& run, const std::string& fault) {
  core_->Tell(v1::Event::KIND_ERROR, run,
              VisibleText(fault.substr(0, kMaxToldFaultBytes)),
              "the run continues without");
}

}  // namespace rankprobe
