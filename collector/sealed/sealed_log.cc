// SPDX-License-Identifier: Apache-2.0
// SealedReader: the logs of a run, and the merged content of their entries.
#include <set>

#include "absl/strings/str_cat.h"
#include "collector/sealed/sealed_keys.h"
#include "collector/sealed/sealed_reader.h"
#include "collector/sealed/unite.h"
#include "common/base/status_macros.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

std::string FaultText(const std::string& run, const absl::Status& fault) {
  return absl::StrCat("run \"", VisibleText(run),
                      "\" of the store is damaged: ", fault.message(),
                      ". What that had is not in this answer");
}

}  // namespace

void SealedReader::AddEntry(v1::SealedLogEntry entry, Run* state) {
  const int log =
      state->log_numbers
          .try_emplace(sealed::ShardOf(entry),
                       static_cast<int>(state->log_numbers.size()) + 1)
          .first->second;
  const auto object = std::make_shared<const v1::SealedObject>(entry.records());
  for (int i = 0; i < entry.steps_size(); ++i) {
    v1::SealedStep& sealed = *entry.mutable_steps(i);
    const StepId id(sealed.info().step(), sealed.info().incarnation());
    const auto fate = state->maintenance.FateOf(id.first, id.second);
    if (fate == sealed::Maintenance::Fate::kGone) continue;
    Step& step = state->steps[id];
    if (fate == sealed::Maintenance::Fate::kDeleted) {
      sealed.mutable_info()->set_deleted(true);
      sealed.mutable_info()->set_complete(false);
      if (step.log == 0 || sealed.info().records() >= step.info.records())
        step.info.Swap(sealed.mutable_info());
      step.log = log;
      continue;
    }
    AddInfo(sealed.mutable_info(), log, &step);
    if (entry.has_records()) step.sources.push_back({object, i, log});
    if (step.several != nullptr) state->to_unite.insert(id);
  }
  for (const v1::SealedObject& pack : entry.packs()) {
    if (state->maintenance.IsRemoved(pack.name()) ||
        !state->packs.insert(pack.name()).second)
      continue;
    state->unread_packs.emplace(pack.name(), pack.bytes());
    state->payload_bytes += pack.payload_bytes();
  }
  for (v1::IncarnationRow& row : *entry.mutable_incarnations()) {
    v1::IncarnationRow& known =
        state->incarnations[row.identity().incarnation()][log];
    if (row.committed_sequence() >= known.committed_sequence())
      known.Swap(&row);
  }
  for (const v1::SealedDamage& damage : entry.damaged()) {
    state->damaged[{damage.digest(), damage.length_bytes()}] = damage.place();
  }
}

// The counts of an info are those of one collector.
void SealedReader::AddInfo(v1::StepInfo* info, int log, Step* step) {
  if (step->several == nullptr && (step->log == 0 || step->log == log)) {
    if (step->log == 0 || info->records() >= step->info.records())
      step->info.Swap(info);
    step->log = log;
    return;
  }
  if (step->several == nullptr) {
    step->several = std::make_unique<Several>();
    step->several->of_logs[step->log] = step->info;
  }
  v1::StepInfo& known = step->several->of_logs[log];
  if (info->records() >= known.records()) known.Swap(info);
}

absl::Status SealedReader::UniteSteps(const std::string& run) {
  while (true) {
    StepKey key;
    key.run = run;
    std::vector<Source> sources;
    std::map<int, v1::StepInfo> infos;
    std::string run_key;
    {
      absl::MutexLock lock(&mutex_);
      const Run& state = runs_[run];
      if (state.to_unite.empty()) return absl::OkStatus();
      const StepId id = *state.to_unite.begin();
      key.step = id.first;
      key.incarnation = id.second;
      const Step& step = state.steps.at(id);
      sources = step.sources;
      infos = step.several->of_logs;
      run_key = state.key;
    }
    sealed::StepUnion all;
    for (const Source& source : sources) {
      RP_RETURN_IF_ERROR(
          ReadSource(key, run_key, source, [&](const v1::Record& record) {
            all.Add(source.log, record);
            return absl::OkStatus();
          }));
    }
    absl::MutexLock lock(&mutex_);
    Run& state = runs_[run];
    // The step may have been deleted meanwhile.
    const auto step = state.steps.find({key.step, key.incarnation});
    if (step == state.steps.end() || step->second.several == nullptr) continue;
    step->second.info = all.Describe(infos);
    if (step->second.sources.size() == sources.size())
      state.to_unite.erase({key.step, key.incarnation});
  }
}

// Removes the processes of a deleted run that have no steps left.
void SealedReader::ForgetGone(Run* state) {
  if (state->maintenance.empty()) return;
  std::set<uint64_t> with_steps;
  for (const auto& [id, step] : state->steps) with_steps.insert(id.second);
  for (auto it = state->incarnations.begin();
       it != state->incarnations.end();) {
    const bool gone = state->maintenance.KnewWhenGone(it->first) &&
                      with_steps.count(it->first) == 0;
    it = gone ? state->incarnations.erase(it) : std::next(it);
  }
  state->is_gone = state->steps.empty() && state->incarnations.empty() &&
                   state->faults.empty();
}

// Adds new entries to the cached run if no maintenance has changed it;
// otherwise reads it from the beginning. Known payloads keep their place: a
// reader that used them before gets the error that they were removed, not that
// they never existed.
absl::StatusOr<std::optional<SealedReader::Run>> SealedReader::ReadAnew(
    const std::string& run) {
  std::vector<absl::Status> bad;
  RP_ASSIGN_OR_RETURN(sealed::RunLog log,
                      sealed::ReadRunLog(store_, run, &bad));
  if (log.logs.empty() && bad.empty()) return std::optional<Run>();
  Run state;
  state.faults = std::move(bad);
  state.key = sealed::RunKey(run);
  state.logs = std::move(log.logs);
  state.maintenance = std::move(log.maintenance);
  for (v1::SealedLogEntry& set : log.sets) AddEntry(std::move(set), &state);
  ForgetGone(&state);
  return state;
}

absl::Status SealedReader::Refresh(const std::string& run) {
  std::map<std::string, uint64_t> logs;
  sealed::Maintenance maintenance;
  bool had_faults = false;
  {
    absl::MutexLock lock(&mutex_);
    const auto free = [&] {
      mutex_.AssertHeld();
      return !refreshing_.contains(run);
    };
    mutex_.Await(absl::Condition(&free));
    refreshing_.insert(run);
    if (const auto it = runs_.find(run); it != runs_.end()) {
      logs = it->second.logs;
      maintenance = it->second.maintenance;
      had_faults = !it->second.faults.empty();
    }
  }
  std::vector<v1::SealedLogEntry> entries;
  std::optional<Run> anew;
  absl::Status status;
  const bool is_first = logs.empty();
  bool maintained = false;
  if (!is_first) {
    std::vector<absl::Status> bad;
    status =
        sealed::ReadNewEntries(store_, run, maintenance, &logs, &entries, &bad);
    // A run that had faults is read from the beginning too, because they may be
    // repaired.
    maintained = had_faults || !bad.empty();
  }
  for (const v1::SealedLogEntry& entry : entries)
    maintained = maintained || entry.shard() == sealed::kMaintenanceShard;
  if (is_first || maintained) {
    absl::StatusOr<std::optional<Run>> read = ReadAnew(run);
    if (read.ok())
      anew = *std::move(read);
    else
      status = read.status();
    entries.clear();
  }
  absl::MutexLock lock(&mutex_);
  refreshing_.erase(run);
  if (anew.has_value()) {
    const auto known = runs_.find(run);
    if (known != runs_.end()) {
      for (const auto& [id, place] : known->second.places) {
        if (anew->maintenance.IsRemoved(place->pack->name) ||
            !anew->packs.contains(place->pack->name))
          anew->removed_places.emplace(id, place);
      }
      anew->removed_places.merge(known->second.removed_places);
    }
    runs_[run] = *std::move(anew);
  } else if (runs_.find(run) == runs_.end()) {
    // A partial result must not be returned as the complete one.
    RP_RETURN_IF_ERROR(status);
    return absl::NotFoundError(
        absl::StrCat("there is no run \"", run, "\" in ", store_->name()));
  }
  Run& state = runs_[run];
  for (v1::SealedLogEntry& entry : entries) {
    state.logs[entry.shard()] = entry.sequence();
    if (!entry.has_sweep()) AddEntry(std::move(entry), &state);
  }
  // The run may have been created again.
  if (!entries.empty()) ForgetGone(&state);
  RP_RETURN_IF_ERROR(status);
  if (state.is_gone) {
    return absl::NotFoundError(absl::StrCat("the run \"", run, "\" in ",
                                            store_->name(), " was deleted"));
  }
  return absl::OkStatus();
}

absl::Status SealedReader::Known(const std::string& run) {
  {
    absl::MutexLock lock(&mutex_);
    const auto known = runs_.find(run);
    if (known != runs_.end() && !known->second.is_gone) return absl::OkStatus();
  }
  return Refresh(run);
}

absl::Status SealedReader::Missing(const std::string& run,
                                   const std::string& object,
                                   const absl::Status& status) {
  if (!absl::IsNotFound(status)) return status;
  const absl::Status there = Refresh(run);
  if (!there.ok() && !absl::IsNotFound(there)) return there;
  bool is_named = false;
  if (there.ok()) {
    absl::MutexLock lock(&mutex_);
    const Run& known = runs_[run];
    for (const std::string& pack : known.packs)
      is_named = is_named || sealed::PackKey(known.key, pack) == object;
    for (const auto& [id, step] : known.steps) {
      for (const Source& source : step.sources) {
        is_named = is_named || sealed::RecordsKey(
                                   known.key, source.object->name()) == object;
      }
    }
  }
  if (is_named) {
    return absl::DataLossError(absl::StrCat(
        object, " is missing in ", store_->name(), ": the log names it"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(object, " of ", store_->name(),
                   " was removed while it was read: what it had is deleted, or "
                   "merged into another object; ask again"));
}

absl::StatusOr<std::vector<v1::RunInfo>> SealedReader::ListRuns() {
  std::vector<absl::Status> bad;
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      sealed::ListRunNames(store_, nullptr, &bad));
  std::vector<std::string> left_out;
  left_out.reserve(bad.size());
  for (const absl::Status& status : bad) {
    left_out.push_back(absl::StrCat(
        "something of the store is damaged or missing: ", status.message()));
  }
  std::vector<v1::RunInfo> out;
  for (const std::string& name : names) {
    absl::Status status = Refresh(name);
    // The first set of the run is not committed yet.
    if (absl::IsNotFound(status)) continue;
    if (status.ok()) status = UniteSteps(name);
    if (sealed::IsOfOneObject(status)) {
      left_out.push_back(absl::StrCat(
          "run \"", VisibleText(name),
          "\" cannot be read, and is not in this answer: ", status.message()));
      continue;
    }
    RP_RETURN_IF_ERROR(status);
    absl::MutexLock lock(&mutex_);
    const Run& run = runs_[name];
    for (const absl::Status& fault : run.faults)
      left_out.push_back(FaultText(name, fault));
    v1::RunInfo& info = out.emplace_back();
    info.set_run(name);
    sealed::RunCounter counter;
    for (const auto& [id, step] : run.steps) counter.Add(step.info);
    counter.Describe(&info);
    info.set_stored_payload_bytes(run.payload_bytes);
    info.set_offered_payload_bytes(run.payload_bytes);
  }
  absl::MutexLock lock(&mutex_);
  left_out_ = std::move(left_out);
  listed_ = MonotonicNow();
  return out;
}

std::vector<std::string> SealedReader::Unavailable(const std::string& run,
                                                   MonotonicTime since) {
  absl::MutexLock lock(&mutex_);
  if (!run.empty() || listed_ < since) return {};
  return left_out_;
}

std::vector<std::string> SealedReader::Faults(const std::string& run) {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> texts;
  const auto known = runs_.find(run);
  if (known == runs_.end()) return texts;
  for (const absl::Status& fault : known->second.faults)
    texts.push_back(FaultText(run, fault));
  return texts;
}

}  // namespace rankprobe
