// SPDX-License-Identifier: Apache-2.0
// SealedReader: the logs of a run, and what their entries say together.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "collector/sealed/sealed_keys.h"
#include "collector/sealed/sealed_reader.h"
#include "collector/sealed/unite.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr size_t kListed = 1000;
constexpr uint64_t kMaxRunNameBytes = 64 << 10;

absl::Status InEntry(const std::string& key, const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrCat("entry ", key, " of the log: ", status.message()));
}

}  // namespace

absl::StatusOr<v1::SealedLogEntry> SealedReader::ReadEntry(
    const std::string& run, const std::string& shard, uint64_t sequence) {
  const std::string key = sealed::LogKey(sealed::RunKey(run), shard, sequence);
  RP_ASSIGN_OR_RETURN(const std::string bytes,
                      GetObject(store_, key, sealed::kMaxEntryBytes));
  absl::StatusOr<v1::SealedLogEntry> entry = sealed::DecodeEntry(bytes);
  if (!entry.ok()) return InEntry(key, entry.status());
  if (entry->run() != run || entry->shard() != shard ||
      entry->sequence() != sequence) {
    return InEntry(key, absl::DataLossError("it is one of another place"));
  }
  return entry;
}

void SealedReader::AddEntry(v1::SealedLogEntry entry, Run* state) {
  const int log =
      state->log_numbers
          .try_emplace(entry.shard(),
                       static_cast<int>(state->log_numbers.size()) + 1)
          .first->second;
  const auto object = std::make_shared<const v1::SealedObject>(entry.records());
  for (int i = 0; i < entry.steps_size(); ++i) {
    v1::SealedStep& sealed = *entry.mutable_steps(i);
    const StepId id(sealed.info().step(), sealed.info().incarnation());
    Step& step = state->steps[id];
    AddInfo(sealed.mutable_info(), log, &step);
    if (entry.has_records()) step.sources.push_back({object, i, log});
    if (step.several != nullptr) state->to_unite.insert(id);
  }
  for (const v1::SealedObject& pack : entry.packs()) {
    if (!state->packs.insert(pack.name()).second) continue;
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
  state->logs[entry.shard()] = entry.sequence();
}

// The counts are of all that one collector had of it.
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
      Run& state = runs_[run];
      if (state.to_unite.empty()) return absl::OkStatus();
      const StepId id = *state.to_unite.begin();
      key.step = id.first;
      key.incarnation = id.second;
      const Step& step = state.steps[id];
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
    Step& step = state.steps[{key.step, key.incarnation}];
    step.info = all.Describe(infos);
    if (step.sources.size() == sources.size())
      state.to_unite.erase({key.step, key.incarnation});
  }
}

absl::Status SealedReader::ReadNewEntries(
    const std::string& run, std::map<std::string, uint64_t>* logs,
    std::vector<v1::SealedLogEntry>* entries) {
  const std::string run_key = sealed::RunKey(run);
  const std::string prefix = sealed::LogPrefix(run_key);
  std::string after;
  while (true) {
    RP_ASSIGN_OR_RETURN(const ObjectList list,
                        store_->List(prefix, after, kListed));
    bool skipped = false;
    for (const ObjectInfo& object : list.objects) {
      after = object.key;
      const std::optional<sealed::LogPlace> place =
          sealed::ParseLogKey(run_key, object.key);
      if (!place.has_value()) {
        return absl::DataLossError(
            absl::StrCat(object.key, " is no entry of a log"));
      }
      const auto known = logs->find(place->shard);
      const uint64_t last = known == logs->end() ? 0 : known->second;
      if (place->sequence <= last) {
        // All up to the last one are known.
        after = sealed::LogKey(run_key, place->shard, last);
        skipped = true;
        break;
      }
      if (place->sequence != last + 1) {
        return absl::DataLossError(absl::StrCat(
            "entry ", last + 1, " of the log ", prefix, place->shard,
            " is missing: there is entry ", place->sequence));
      }
      RP_ASSIGN_OR_RETURN(v1::SealedLogEntry entry,
                          ReadEntry(run, place->shard, place->sequence));
      entries->push_back(std::move(entry));
      (*logs)[place->shard] = place->sequence;
    }
    if (!list.more && !skipped) return absl::OkStatus();
  }
}

absl::Status SealedReader::Refresh(const std::string& run) {
  std::map<std::string, uint64_t> logs;
  {
    absl::MutexLock lock(&mutex_);
    const auto free = [&] {
      mutex_.AssertHeld();
      return !refreshing_.contains(run);
    };
    mutex_.Await(absl::Condition(&free));
    refreshing_.insert(run);
    if (const auto it = runs_.find(run); it != runs_.end())
      logs = it->second.logs;
  }
  std::vector<v1::SealedLogEntry> entries;
  const absl::Status status = ReadNewEntries(run, &logs, &entries);
  absl::MutexLock lock(&mutex_);
  refreshing_.erase(run);
  if (runs_.find(run) == runs_.end()) {
    // A part of what is there would pass for all of it.
    RP_RETURN_IF_ERROR(status);
    if (entries.empty()) {
      return absl::NotFoundError(
          absl::StrCat("there is no run \"", run, "\" in ", store_->name()));
    }
  }
  Run& state = runs_[run];
  state.key = sealed::RunKey(run);
  for (v1::SealedLogEntry& entry : entries) AddEntry(std::move(entry), &state);
  return status;
}

absl::Status SealedReader::Known(const std::string& run) {
  {
    absl::MutexLock lock(&mutex_);
    if (runs_.find(run) != runs_.end()) return absl::OkStatus();
  }
  return Refresh(run);
}

absl::StatusOr<std::vector<v1::RunInfo>> SealedReader::ListRuns() {
  std::vector<std::string> names;
  std::string after;
  while (true) {
    RP_ASSIGN_OR_RETURN(const ObjectList list,
                        store_->List(sealed::kNamesPrefix, after, kListed));
    for (const ObjectInfo& object : list.objects) {
      after = object.key;
      RP_ASSIGN_OR_RETURN(const std::string bytes,
                          GetObject(store_, object.key, kMaxRunNameBytes));
      v1::SealedRunName name;
      if (!name.ParseFromString(bytes) ||
          sealed::NameKey(sealed::RunKey(name.run())) != object.key) {
        return absl::DataLossError(
            absl::StrCat(object.key, " is not the name of its run"));
      }
      names.push_back(name.run());
    }
    if (!list.more) break;
  }
  std::sort(names.begin(), names.end());
  std::vector<v1::RunInfo> out;
  for (const std::string& name : names) {
    const absl::Status status = Refresh(name);
    // Its first set is on its way.
    if (absl::IsNotFound(status)) continue;
    RP_RETURN_IF_ERROR(status);
    RP_RETURN_IF_ERROR(UniteSteps(name));
    absl::MutexLock lock(&mutex_);
    const Run& run = runs_[name];
    v1::RunInfo& info = out.emplace_back();
    info.set_run(name);
    sealed::RunCounter counter;
    for (const auto& [id, step] : run.steps) counter.Add(step.info);
    counter.Describe(&info);
    info.set_stored_payload_bytes(run.payload_bytes);
    info.set_offered_payload_bytes(run.payload_bytes);
  }
  return out;
}

}  // namespace rankprobe
