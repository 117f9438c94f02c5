// SPDX-License-Identifier: Apache-2.0
// Runs in memory: brought from the store, and forgotten when nobody speaks of
// them.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/control/control_plane.h"
#include "common/base/status_macros.h"
#include "common/config/plan_digest.h"
#include "common/config/trigger_spec.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// A call that looks a run up again without the lock held in between does so
// sooner than this, unless it waits for the queue of saves: while anything is
// being saved no run is forgotten.
constexpr absl::Duration kIdle = absl::Seconds(30);
constexpr absl::Duration kIdleCheckInterval = absl::Seconds(1);
constexpr size_t kMaxToldFaultBytes = 1024;

absl::Status CannotRead(const std::string& run, const absl::Status& status) {
  return absl::UnavailableError(absl::StrCat(
      "what is saved of run \"", run, "\" cannot be read: ", status.message()));
}

}  // namespace

absl::StatusOr<ControlPlane::SavedRun> ControlPlane::ReadSaved(
    const std::string& name) const {
  SavedRun saved;
  const auto plan = plans_.ForRun(name);
  // None, and the next Hello would save its own over it.
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
  const auto highest = plans_.HighestEpoch(name);
  if (!highest.ok()) return CannotRead(name, highest.status());
  saved.epoch = std::max(saved.epoch, *highest);
  const auto triggers = plans_.Triggers(name);
  if (!triggers.ok()) return CannotRead(name, triggers.status());
  if (triggers->has_value()) {
    if (auto spec = ParseTriggerSpec(**triggers); spec.ok()) {
      saved.triggers = *std::move(spec);
    } else {
      saved.faults.push_back(absl::StrCat("the saved triggers cannot be used: ",
                                          spec.status().message()));
    }
  }
  if (!saved.triggers.has_value()) saved.triggers = options_.default_triggers;
  return saved;
}

absl::Status ControlPlane::ReadRun(const std::string& name) {
  {
    absl::MutexLock lock(&mutex_);
    if (const auto it = runs_.find(name); it != runs_.end()) {
      // What this call does next needs it.
      it->second.last_used = MonotonicNow();
      return absl::OkStatus();
    }
  }
  RP_ASSIGN_OR_RETURN(const SavedRun saved, ReadSaved(name));
  absl::MutexLock lock(&mutex_);
  // Whoever came first has read the same.
  const auto [it, is_new] = runs_.try_emplace(name);
  if (!is_new) return absl::OkStatus();
  it->second.name = name;
  it->second.last_used = MonotonicNow();
  UseSaved(saved, &it->second);
  return absl::OkStatus();
}

void ControlPlane::TellFault(const std::string& run, const std::string& fault) {
  v1::Event told;
  told.set_kind(v1::Event::KIND_ERROR);
  told.set_run(run);
  told.set_step(-1);
  told.set_detail(VisibleText(fault.substr(0, kMaxToldFaultBytes)));
  told.set_outcome("the run continues without");
  EmitEvent(std::move(told));
}

void ControlPlane::UseSaved(const SavedRun& saved, Run* run) {
  for (const std::string& fault : saved.faults) TellFault(run->name, fault);
  if (saved.triggers.has_value()) run->triggers.Set(*saved.triggers);
  // No epoch is used twice, also of a plan that cannot be used.
  run->plans.RaiseEpoch(saved.epoch);
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

absl::StatusOr<std::shared_ptr<const CompiledPlan>> ControlPlane::ReadOwnPlan(
    const v1::Identity& identity) {
  if (!identity.has_rank()) return nullptr;
  const auto own = plans_.ForRank(identity.run(), identity.rank());
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

void ControlPlane::NotePlan(uint64_t epoch, const std::string& digest, Run* run,
                            Agent* agent) {
  agent->epoch = epoch;
  agent->other_plan.clear();
  const auto plan = run->plans.ByEpoch(epoch);
  if (digest.empty() || plan == nullptr || IsForeign(agent->identity, epoch) ||
      PlanDigest(plan->spec) == digest)
    return;
  agent->other_plan = absl::StrCat(
      "it follows another plan of epoch ", epoch,
      " than this collector's; give it a new one: rankprobe config set");
  v1::Event told = EventOf(v1::Event::KIND_ERROR, *agent);
  told.set_detail(agent->other_plan);
  EmitEvent(std::move(told));
}

}  // namespace rankprobe
