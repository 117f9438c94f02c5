// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/store_cleaner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "collector/sealed/pack_object.h"
#include "collector/sealed/sealed_keys.h"
#include "collector/sealed/sealed_reader.h"
#include "collector/sealed/store_deletion.h"
#include "common/base/random_bytes.h"
#include "common/base/status_macros.h"
#include "common/records/call_values.h"

namespace rankprobe {
namespace {

using sealed::Maintenance;
using StepIds = std::set<std::pair<int64_t, uint64_t>>;

// Packs of this many newest steps of a run are kept: a rank may refer to
// payloads that it sent with them (common/base/dedup_window.h) through another
// collector.
constexpr int64_t kKeptSteps = 64;

bool IsDead(const v1::SealedLogEntry& set, const Maintenance& maintenance) {
  return absl::c_all_of(set.steps(), [&](const v1::SealedStep& step) {
    return maintenance.FateOf(step.info().step(), step.info().incarnation()) !=
           Maintenance::Fate::kThere;
  });
}

// Adds the objects that an entry names and no collection does.
void AddNeeded(const std::string& run_key, const v1::SealedLogEntry& set,
               const Maintenance& maintenance, std::set<std::string>* keys) {
  if (set.has_records() && !maintenance.IsRemovedRecords(set.records().name()))
    keys->insert(sealed::RecordsKey(run_key, set.records().name()));
  for (const v1::SealedObject& pack : set.packs()) {
    if (!maintenance.IsRemoved(pack.name()))
      keys->insert(sealed::PackKey(run_key, pack.name()));
  }
}

uint64_t NeededBytes(const v1::SealedLogEntry& set,
                     const Maintenance& maintenance) {
  uint64_t bytes = 0;
  if (set.has_records() && !maintenance.IsRemovedRecords(set.records().name()))
    bytes += set.records().bytes();
  for (const v1::SealedObject& pack : set.packs()) {
    if (!maintenance.IsRemoved(pack.name())) bytes += pack.bytes();
  }
  return bytes;
}

}  // namespace

absl::Status StoreCleaner::LeaveAlone(const std::string& run,
                                      const absl::Status& status) {
  if (!sealed::IsOfOneObject(status)) return status;
  bad_.emplace(run, status);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<sealed::RunLog>> StoreCleaner::ReadLog(
    const std::string& run) {
  std::optional<sealed::RunLog> out;
  if (bad_.count(run) > 0) return out;
  absl::StatusOr<sealed::RunLog> log = logs_.Read(run);
  if (log.ok())
    out = *std::move(log);
  else
    RP_RETURN_IF_ERROR(LeaveAlone(run, log.status()));
  return out;
}

absl::Status StoreCleaner::Remove(const std::string& key, uint64_t bytes,
                                  CleanReport* report) {
  RP_RETURN_IF_ERROR(store_->Delete(key));
  ++report->objects_removed;
  report->bytes_removed += bytes;
  return absl::OkStatus();
}

absl::Status StoreCleaner::Expire(
    const std::string& run,
    const std::function<bool(int64_t step, uint64_t incarnation)>& wanted,
    absl::Time written_before, CleanReport* report) {
  RP_ASSIGN_OR_RETURN(
      const ExpiredSteps expired,
      ExpireInStore(store_, run, wanted, written_before, clock_->Now()));
  report->steps_deleted += expired.steps;
  if (expired.whole_run) ++report->runs_deleted;
  return absl::OkStatus();
}

// A step is deleted when none of its processes has written to it for that long;
// when the last step of a run is deleted, so is the run.
absl::Status StoreCleaner::DeleteOld(const std::vector<std::string>& runs,
                                     CleanReport* report) {
  if (options_.max_age == absl::InfiniteDuration()) return absl::OkStatus();
  std::map<std::string, std::map<int64_t, int64_t>> written;
  std::optional<absl::Time> newest;
  for (const std::string& run : runs) {
    RP_ASSIGN_OR_RETURN(const std::optional<sealed::RunLog> log, ReadLog(run));
    if (!log.has_value()) continue;
    for (const v1::SealedLogEntry& set : log->sets) {
      for (const v1::SealedStep& step : set.steps()) {
        const v1::StepInfo& info = step.info();
        newest = std::max(newest.value_or(absl::InfinitePast()),
                          absl::FromUnixNanos(info.updated_unix_ns()));
        if (log->maintenance.FateOf(info.step(), info.incarnation()) !=
            Maintenance::Fate::kThere)
          continue;
        int64_t& last = written[run][info.step()];
        last = std::max(last, info.updated_unix_ns());
      }
    }
  }
  if (!guard_.has_value()) guard_.emplace(clock_, newest, options_.max_age);
  report->waits_for_clock = !guard_->Trusts();
  if (report->waits_for_clock) return absl::OkStatus();
  const absl::Time now = clock_->Now();
  const int64_t before = absl::ToUnixNanos(now - options_.max_age);
  // Each deletion costs a sweep, and a check of everything that the run refers
  // to.
  const int64_t due =
      absl::ToUnixNanos(now - options_.max_age - options_.max_age / 16);
  for (const auto& [run, steps] : written) {
    std::set<int64_t> old;
    bool is_due = false;
    for (const auto& [step, last] : steps) {
      if (last < before) old.insert(step);
      is_due = is_due || last < due;
    }
    if (!is_due) continue;
    RP_RETURN_IF_ERROR(LeaveAlone(
        run,
        Expire(
            run, [&](int64_t step, uint64_t) { return old.count(step) > 0; },
            absl::FromUnixNanos(before), report)));
  }
  return absl::OkStatus();
}

// Deletes sets, the oldest first; their packs may be needed by others, which
// the next pass checks. The newest set of a run is kept, whatever older ones
// have of its steps.
absl::Status StoreCleaner::DeleteForSpace(const std::vector<std::string>& runs,
                                          CleanReport* report) {
  if (options_.max_bytes == 0) return absl::OkStatus();
  struct Set {
    int64_t updated_unix_ns = 0;
    uint64_t bytes = 0;
    std::string run;
    StepIds steps;
  };
  std::vector<Set> sets;
  uint64_t all = 0;
  for (const std::string& run : runs) {
    RP_ASSIGN_OR_RETURN(const std::optional<sealed::RunLog> log, ReadLog(run));
    if (!log.has_value()) continue;
    std::vector<Set> of_run;
    for (const v1::SealedLogEntry& entry : log->sets) {
      Set set;
      set.run = run;
      set.bytes = NeededBytes(entry, log->maintenance);
      all += set.bytes;
      for (const v1::SealedStep& step : entry.steps()) {
        set.updated_unix_ns =
            std::max(set.updated_unix_ns, step.info().updated_unix_ns());
        if (log->maintenance.FateOf(step.info().step(),
                                    step.info().incarnation()) ==
            Maintenance::Fate::kThere)
          set.steps.emplace(step.info().step(), step.info().incarnation());
      }
      if (!set.steps.empty()) of_run.push_back(std::move(set));
    }
    absl::c_stable_sort(of_run, [](const Set& a, const Set& b) {
      return a.updated_unix_ns < b.updated_unix_ns;
    });
    if (of_run.empty()) continue;
    const StepIds newest = std::move(of_run.back().steps);
    of_run.pop_back();
    for (Set& set : of_run) {
      for (const auto& id : newest) set.steps.erase(id);
      if (!set.steps.empty()) sets.push_back(std::move(set));
    }
  }
  if (all <= options_.max_bytes) return absl::OkStatus();
  absl::c_stable_sort(sets, [](const Set& a, const Set& b) {
    return a.updated_unix_ns < b.updated_unix_ns;
  });
  const uint64_t goal = options_.max_bytes - options_.max_bytes / 10;
  std::map<std::string, StepIds> chosen;
  for (const Set& set : sets) {
    if (all <= goal) break;
    all -= std::min(all, set.bytes);
    chosen[set.run].insert(set.steps.begin(), set.steps.end());
  }
  for (const auto& [run, chosen_steps] : chosen) {
    const StepIds& steps = chosen_steps;
    RP_RETURN_IF_ERROR(
        LeaveAlone(run, Expire(
                            run,
                            [&](int64_t step, uint64_t incarnation) {
                              return steps.count({step, incarnation}) > 0;
                            },
                            absl::InfiniteFuture(), report)));
  }
  return absl::OkStatus();
}

std::vector<std::string> StoreCleaner::DueOrphans(const std::string& run,
                                                  const Objects& objects,
                                                  const sealed::RunLog& log) {
  const std::string run_key = sealed::RunKey(run);
  std::set<std::string> named;
  for (const v1::SealedLogEntry& set : log.sets)
    AddNeeded(run_key, set, Maintenance(), &named);
  for (const v1::SealedCollection& collection : log.collections) {
    for (const std::string& name : collection.records())
      named.insert(sealed::RecordsKey(run_key, name));
    for (const std::string& name : collection.packs())
      named.insert(sealed::PackKey(run_key, name));
  }
  const int64_t now = clock_->MonotonicNanos();
  std::map<std::string, int64_t> since;
  std::vector<std::string> due;
  const std::map<std::string, int64_t>& known = orphans_[run];
  for (const auto& [key, bytes] : objects) {
    // Objects with other names were not made by a collector and are not
    // touched.
    if (named.count(key) > 0 || !sealed::IsObjectKey(run_key, key)) continue;
    const auto before = known.find(key);
    const int64_t first = before == known.end() ? now : before->second;
    since[key] = first;
    if (now - first >= absl::ToInt64Nanoseconds(options_.grace))
      due.push_back(key);
  }
  orphans_[run] = std::move(since);
  return due;
}

absl::Status StoreCleaner::Sweep(const std::string& run,
                                 const sealed::RunLog& log) {
  const std::string prefix = sealed::ShardsPrefix(sealed::RunKey(run));
  std::set<std::string> shards;
  for (const auto& [shard, last] : log.logs) shards.insert(shard);
  // Includes collectors that have put objects and no entry yet.
  RP_ASSIGN_OR_RETURN(const Objects marks, sealed::ListObjects(store_, prefix));
  for (const auto& [key, bytes] : marks) {
    std::string shard = key.substr(prefix.size());
    if (sealed::IsHexName(shard)) shards.insert(std::move(shard));
  }
  // The log of maintenance is not swept: the entry of this pass has a fixed
  // number.
  shards.erase(sealed::kMaintenanceShard);
  v1::SealedLogEntry sweep;
  sweep.mutable_sweep()->set_unix_ns(absl::ToUnixNanos(clock_->Now()));
  sweep.mutable_sweep()->set_nonce(absl::BytesToHexString(RandomBytes(8)));
  for (const std::string& shard : shards) {
    RP_RETURN_IF_ERROR(sealed::AppendEntry(store_, run, shard, sweep).status());
  }
  return absl::OkStatus();
}

absl::Status StoreCleaner::CollectPacks(const std::string& run,
                                        const sealed::RunLog& log,
                                        v1::SealedCollection* collection) {
  collection->set_through(log.maintenance.last_tombstone());
  SealedReader reader(store_);
  absl::flat_hash_set<std::pair<std::string, uint64_t>> referred;
  int64_t newest = std::numeric_limits<int64_t>::min();
  const absl::StatusOr<std::vector<v1::StepInfo>> steps = reader.ListSteps(run);
  // The references of a damaged step are not known, now or in the next pass.
  if (absl::IsDataLoss(steps.status())) return absl::OkStatus();
  if (!absl::IsNotFound(steps.status())) {
    RP_RETURN_IF_ERROR(steps.status());
    for (const v1::StepInfo& info : *steps) {
      if (info.deleted()) continue;
      newest = std::max(newest, info.step());
      StepKey key{
          .run = run, .step = info.step(), .incarnation = info.incarnation()};
      const absl::Status read =
          reader.ForEachRecord(key, [&](const v1::Record& record) {
            if (!record.has_call()) return absl::OkStatus();
            ForEachTensor(record.call(), [&](const v1::TensorSummary& tensor) {
              if (tensor.has_payload()) {
                referred.emplace(tensor.payload().digest(),
                                 tensor.payload().length_bytes());
              }
            });
            return absl::OkStatus();
          });
      if (absl::IsDataLoss(read)) return absl::OkStatus();
      RP_RETURN_IF_ERROR(read);
    }
  }
  const std::string run_key = sealed::RunKey(run);
  std::set<std::string> dead, kept;
  for (const v1::SealedLogEntry& set : log.sets) {
    const bool is_new = absl::c_any_of(set.steps(), [&](const auto& step) {
      return newest != std::numeric_limits<int64_t>::min() &&
             step.info().step() > newest - kKeptSteps;
    });
    for (const v1::SealedObject& pack : set.packs()) {
      if (is_new) kept.insert(pack.name());
      if (is_new || log.maintenance.IsRemoved(pack.name()) ||
          dead.count(pack.name()) > 0 || kept.count(pack.name()) > 0)
        continue;
      const absl::StatusOr<v1::SealedPackIndex> index = ReadPackIndex(
          store_, sealed::PackKey(run_key, pack.name()), pack.bytes());
      if (!absl::IsDataLoss(index.status())) RP_RETURN_IF_ERROR(index.status());
      // A pack whose index is damaged is kept, because its payloads are not
      // known.
      const bool needed =
          !index.ok() ||
          absl::c_any_of(index->payloads(),
                         [&](const v1::SealedPayload& payload) {
                           return referred.contains(
                               {payload.digest(), payload.length_bytes()});
                         });
      (needed ? kept : dead).insert(pack.name());
    }
  }
  for (const std::string& pack : dead)
    if (kept.count(pack) == 0) collection->add_packs(pack);
  return absl::OkStatus();
}

absl::Status StoreCleaner::CleanRun(const std::string& run,
                                    CleanReport* report) {
  const std::string run_key = sealed::RunKey(run);
  // Objects are listed before the log is read: those that the log does not name
  // then were put before.
  RP_ASSIGN_OR_RETURN(
      Objects objects,
      sealed::ListObjects(store_, sealed::RecordsPrefix(run_key)));
  RP_ASSIGN_OR_RETURN(
      Objects packs, sealed::ListObjects(store_, sealed::PacksPrefix(run_key)));
  objects.merge(packs);
  RP_ASSIGN_OR_RETURN(sealed::RunLog log, logs_.Read(run));
  // Removes what was collected a grace period ago.
  const int64_t before = absl::ToUnixNanos(clock_->Now() - options_.grace);
  for (const v1::SealedCollection& collection : log.collections) {
    if (collection.unix_ns() > before) continue;
    std::vector<std::string> keys;
    for (const std::string& name : collection.records())
      keys.push_back(sealed::RecordsKey(run_key, name));
    for (const std::string& name : collection.packs())
      keys.push_back(sealed::PackKey(run_key, name));
    for (const std::string& key : keys) {
      const auto object = objects.find(key);
      if (object == objects.end()) continue;
      RP_RETURN_IF_ERROR(Remove(key, object->second, report));
      objects.erase(object);
    }
  }
  std::vector<std::string> orphans = DueOrphans(run, objects, log);
  const bool sweeps = log.maintenance.HasUncollected() || !orphans.empty();
  if (sweeps) {
    RP_RETURN_IF_ERROR(Sweep(run, log));
    RP_ASSIGN_OR_RETURN(log, logs_.Read(run));
  }
  v1::SealedLogEntry entry;
  v1::SealedCollection* const collection = entry.mutable_collection();
  collection->set_unix_ns(absl::ToUnixNanos(clock_->Now()));
  for (const v1::SealedLogEntry& set : log.sets) {
    if (set.has_records() && IsDead(set, log.maintenance) &&
        !log.maintenance.IsRemovedRecords(set.records().name()))
      collection->add_records(set.records().name());
  }
  if (log.maintenance.HasUncollected())
    RP_RETURN_IF_ERROR(CollectPacks(run, log, collection));
  if (!sweeps && collection->records().empty()) return absl::OkStatus();
  const absl::Status put =
      sealed::PutEntry(store_, run, sealed::kMaintenanceShard,
                       log.maintenance.last() + 1, entry);
  // Another process deletes or cleans: the next pass tries again.
  if (absl::IsAborted(put)) return absl::OkStatus();
  RP_RETURN_IF_ERROR(put);
  report->collected += static_cast<uint64_t>(collection->records_size()) +
                       static_cast<uint64_t>(collection->packs_size());
  // Sets from before the sweeps may have been committed meanwhile.
  std::set<std::string> named;
  for (const v1::SealedLogEntry& set : log.sets)
    AddNeeded(run_key, set, Maintenance(), &named);
  for (const std::string& key : orphans) {
    if (named.count(key) > 0) continue;
    RP_RETURN_IF_ERROR(Remove(key, objects[key], report));
    orphans_[run].erase(key);
    ++report->orphans_removed;
  }
  return absl::OkStatus();
}

absl::Status StoreCleaner::CleanPlans(CleanReport* report) {
  RP_ASSIGN_OR_RETURN(const Objects plans,
                      sealed::ListObjects(store_, kPlansPrefix));
  std::map<std::string, uint64_t> last;
  for (const auto& [key, bytes] : plans) {
    const std::pair<std::string, uint64_t> place = ParsePlanKey(key);
    last[place.first] = std::max(last[place.first], place.second);
  }
  for (const auto& [key, bytes] : plans) {
    const std::pair<std::string, uint64_t> place = ParsePlanKey(key);
    if (place.second == 0 ||
        place.second + options_.kept_plans > last[place.first])
      continue;
    RP_RETURN_IF_ERROR(Remove(key, bytes, report));
    ++report->plans_removed;
  }
  return absl::OkStatus();
}

absl::Status StoreCleaner::Clean(const std::function<bool()>& stop,
                                 CleanReport* report) {
  bad_.clear();
  std::vector<absl::Status> bad_names;
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> runs,
                      logs_.Runs(&bad_names));
  absl::Status first = DeleteOld(runs, report);
  first.Update(DeleteForSpace(runs, report));
  for (const std::string& run : runs) {
    if (stop()) return first;
    if (bad_.count(run) == 0) first.Update(CleanRun(run, report));
  }
  for (const auto& [run, status] : bad_) first.Update(status);
  for (const absl::Status& status : bad_names) first.Update(status);
  first.Update(CleanPlans(report));
  return first;
}

}  // namespace rankprobe
