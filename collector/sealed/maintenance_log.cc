// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/maintenance_log.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/sealed/sealed_keys.h"
#include "common/base/status_macros.h"

namespace rankprobe::sealed {
namespace {

constexpr size_t kListed = 1000;
constexpr uint64_t kMaxRunNameBytes = 64 << 10;
// Each lost race is another's success.
constexpr int kRaces = 1000;

absl::Status InEntry(const std::string& key, const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrCat("entry ", key, " of the log: ", status.message()));
}

absl::StatusOr<v1::SealedLogEntry> ReadEntry(ObjectStore* store,
                                             const std::string& run,
                                             const std::string& shard,
                                             uint64_t sequence) {
  const std::string key = LogKey(RunKey(run), shard, sequence);
  RP_ASSIGN_OR_RETURN(const std::string bytes,
                      GetObject(store, key, kMaxEntryBytes));
  absl::StatusOr<v1::SealedLogEntry> entry = DecodeEntry(bytes);
  if (!entry.ok()) return InEntry(key, entry.status());
  if (entry->run() != run || entry->shard() != shard ||
      entry->sequence() != sequence) {
    return InEntry(key, absl::DataLossError("it is one of another place"));
  }
  return entry;
}

// Last by first; ranges that meet become one.
void AddRange(int64_t first, int64_t last, std::map<int64_t, int64_t>* ranges) {
  auto it = ranges->upper_bound(first);
  if (it != ranges->begin()) {
    const auto before = std::prev(it);
    if (before->second >= first || before->second == first - 1) {
      first = before->first;
      last = std::max(last, before->second);
      it = ranges->erase(before);
    }
  }
  while (it != ranges->end() && (it->first <= last || it->first - 1 == last)) {
    last = std::max(last, it->second);
    it = ranges->erase(it);
  }
  (*ranges)[first] = last;
}

}  // namespace

const std::string& ShardOf(const v1::SealedLogEntry& entry) {
  return entry.has_merge() ? entry.merge().shard() : entry.shard();
}

void Maintenance::Note(const v1::SealedLogEntry& entry) {
  last_ = entry.sequence();
  if (entry.has_tombstone()) {
    last_tombstone_ = entry.sequence();
    const v1::SealedTombstone& tombstone = entry.tombstone();
    for (const v1::SealedTombstoneProcess& process : tombstone.processes()) {
      if (tombstone.steps().empty()) {
        int64_t& highest = gone_
                               .try_emplace(process.incarnation(),
                                            std::numeric_limits<int64_t>::min())
                               .first->second;
        if (process.has_highest_step())
          highest = std::max(highest, process.highest_step());
      }
      for (const v1::SealedStepRange& range : tombstone.steps()) {
        if (range.first() <= range.last())
          AddRange(range.first(), range.last(),
                   &deleted_[process.incarnation()]);
      }
    }
  }
  if (entry.has_merge()) {
    const v1::SealedMerge& merge = entry.merge();
    std::map<uint64_t, Merge>& of_shard = merges_[merge.shard()];
    // They nest: one is made of all that is left of its entries.
    auto it = of_shard.lower_bound(merge.first());
    while (it != of_shard.end() && it->first <= merge.last()) {
      replaced_merges_.insert(it->second.sequence);
      it = of_shard.erase(it);
    }
    of_shard[merge.first()] = {merge.last(), entry.sequence()};
  }
  removed_packs_.insert(entry.collection().packs().begin(),
                        entry.collection().packs().end());
  removed_records_.insert(entry.collection().records().begin(),
                          entry.collection().records().end());
  collected_through_ =
      std::max(collected_through_, entry.collection().through());
}

Maintenance::Fate Maintenance::FateOf(int64_t step,
                                      uint64_t incarnation) const {
  const auto gone = gone_.find(incarnation);
  if (gone != gone_.end() && step <= gone->second) return Fate::kGone;
  const auto ranges = deleted_.find(incarnation);
  if (ranges == deleted_.end()) return Fate::kThere;
  const auto after = ranges->second.upper_bound(step);
  return after != ranges->second.begin() && std::prev(after)->second >= step
             ? Fate::kDeleted
             : Fate::kThere;
}

bool Maintenance::IsReplaced(const std::string& shard,
                             uint64_t sequence) const {
  if (shard == kMaintenanceShard) return replaced_merges_.count(sequence) > 0;
  const auto of_shard = merges_.find(shard);
  if (of_shard == merges_.end()) return false;
  const auto after = of_shard->second.upper_bound(sequence);
  return after != of_shard->second.begin() &&
         std::prev(after)->second.last >= sequence;
}

absl::Status ReadNewEntries(ObjectStore* store, const std::string& run,
                            const Maintenance& maintenance,
                            std::map<std::string, uint64_t>* logs,
                            std::vector<v1::SealedLogEntry>* entries) {
  const std::string run_key = RunKey(run);
  const std::string prefix = LogPrefix(run_key);
  Maintenance known = maintenance;
  std::string after;
  while (true) {
    RP_ASSIGN_OR_RETURN(const ObjectList list,
                        store->List(prefix, after, kListed));
    bool skipped = false;
    for (const ObjectInfo& object : list.objects) {
      after = object.key;
      const std::optional<LogPlace> place = ParseLogKey(run_key, object.key);
      if (!place.has_value()) {
        return absl::DataLossError(
            absl::StrCat(object.key, " is no entry of a log"));
      }
      const auto found = logs->find(place->shard);
      const uint64_t last = found == logs->end() ? 0 : found->second;
      if (place->sequence <= last) {
        // All up to the last one are known.
        after = LogKey(run_key, place->shard, last);
        skipped = true;
        break;
      }
      if (place->sequence != last + 1) {
        return absl::DataLossError(absl::StrCat(
            "entry ", last + 1, " of the log ", prefix, place->shard,
            " is missing: there is entry ", place->sequence));
      }
      if (place->shard == kMaintenanceShard ||
          !known.IsReplaced(place->shard, place->sequence)) {
        RP_ASSIGN_OR_RETURN(
            v1::SealedLogEntry entry,
            ReadEntry(store, run, place->shard, place->sequence));
        if (place->shard == kMaintenanceShard) known.Note(entry);
        entries->push_back(std::move(entry));
      }
      (*logs)[place->shard] = place->sequence;
    }
    if (!list.more && !skipped) return absl::OkStatus();
  }
}

void Arrange(std::vector<v1::SealedLogEntry> entries, RunLog* log) {
  for (const v1::SealedLogEntry& entry : entries) {
    if (entry.shard() != kMaintenanceShard) continue;
    log->maintenance.Note(entry);
    if (entry.has_collection()) log->collections.push_back(entry.collection());
  }
  for (v1::SealedLogEntry& entry : entries) {
    const bool is_maintenance = entry.shard() == kMaintenanceShard;
    if ((is_maintenance && !entry.has_merge()) || entry.has_sweep() ||
        log->maintenance.IsReplaced(entry.shard(), entry.sequence()))
      continue;
    log->sets.push_back(std::move(entry));
  }
  std::stable_sort(
      log->sets.begin(), log->sets.end(),
      [](const v1::SealedLogEntry& a, const v1::SealedLogEntry& b) {
        const auto place = [](const v1::SealedLogEntry& entry) {
          return std::tuple<const std::string&, uint64_t>(
              ShardOf(entry),
              entry.has_merge() ? entry.merge().first() : entry.sequence());
        };
        return place(a) < place(b);
      });
}

absl::StatusOr<RunLog> ReadRunLog(ObjectStore* store, const std::string& run) {
  RunLog log;
  std::vector<v1::SealedLogEntry> entries;
  RP_RETURN_IF_ERROR(
      ReadNewEntries(store, run, Maintenance(), &log.logs, &entries));
  Arrange(std::move(entries), &log);
  return log;
}

absl::StatusOr<std::map<std::string, uint64_t>> ListObjects(
    ObjectStore* store, const std::string& prefix) {
  std::map<std::string, uint64_t> objects;
  std::string after;
  while (true) {
    RP_ASSIGN_OR_RETURN(const ObjectList list,
                        store->List(prefix, after, kListed));
    for (const ObjectInfo& object : list.objects) {
      after = object.key;
      objects.emplace(object.key, object.bytes);
    }
    if (!list.more) return objects;
  }
}

bool IsOfOneObject(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kPermissionDenied:
      return true;
    default:
      return false;
  }
}

namespace {

absl::StatusOr<std::string> ReadRunName(ObjectStore* store,
                                        const std::string& key) {
  RP_ASSIGN_OR_RETURN(const ObjectTail tail,
                      store->GetTail(key, kMaxRunNameBytes));
  v1::SealedRunName name;
  if (tail.object_bytes > kMaxRunNameBytes ||
      !name.ParseFromString(tail.bytes) || NameKey(RunKey(name.run())) != key) {
    return absl::DataLossError(
        absl::StrCat(key, " is not the name of its run"));
  }
  return name.run();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListRunNames(
    ObjectStore* store, std::map<std::string, std::string>* known,
    std::vector<absl::Status>* bad) {
  std::map<std::string, std::string> by_key;
  std::string after;
  while (true) {
    RP_ASSIGN_OR_RETURN(const ObjectList list,
                        store->List(kNamesPrefix, after, kListed));
    for (const ObjectInfo& object : list.objects) {
      after = object.key;
      if (known != nullptr) {
        if (const auto it = known->find(object.key); it != known->end()) {
          by_key.insert(*it);
          continue;
        }
      }
      absl::StatusOr<std::string> name = ReadRunName(store, object.key);
      if (bad != nullptr && IsOfOneObject(name.status())) {
        bad->push_back(name.status());
        continue;
      }
      RP_RETURN_IF_ERROR(name.status());
      by_key[object.key] = *std::move(name);
    }
    if (!list.more) break;
  }
  std::vector<std::string> names;
  names.reserve(by_key.size());
  for (const auto& [key, name] : by_key) names.push_back(name);
  if (known != nullptr) *known = std::move(by_key);
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status PutEntry(ObjectStore* store, const std::string& run,
                      const std::string& shard, uint64_t sequence,
                      v1::SealedLogEntry entry) {
  entry.set_format(IsMaintenance(entry) ? kMaintenanceFormat : kFormat);
  entry.set_run(run);
  entry.set_shard(shard);
  entry.set_sequence(sequence);
  const std::string bytes = EncodeEntry(entry);
  if (bytes.size() > kMaxEntryBytes)
    return absl::ResourceExhaustedError("an entry of the log is too large");
  const std::string key = LogKey(RunKey(run), shard, sequence);
  const absl::Status put =
      store->Put(key, bytes, ObjectStore::PutMode::kIfAbsent);
  if (!absl::IsAlreadyExists(put)) return put;
  // Ours, whose answer was lost?
  RP_ASSIGN_OR_RETURN(const std::string there,
                      GetObject(store, key, kMaxEntryBytes));
  if (there == bytes) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("somebody else has put ", key));
}

absl::StatusOr<uint64_t> AppendEntry(ObjectStore* store, const std::string& run,
                                     const std::string& shard,
                                     const v1::SealedLogEntry& entry) {
  const std::string run_key = RunKey(run);
  uint64_t last = 0;
  for (int race = 0; race < kRaces;) {
    RP_ASSIGN_OR_RETURN(
        const ObjectList list,
        store->List(LogPrefix(run_key, shard),
                    last == 0 ? "" : LogKey(run_key, shard, last), kListed));
    if (!list.objects.empty()) {
      const std::optional<LogPlace> place =
          ParseLogKey(run_key, list.objects.back().key);
      if (!place.has_value()) {
        return absl::DataLossError(
            absl::StrCat(list.objects.back().key, " is no entry of a log"));
      }
      last = place->sequence;
    }
    if (list.more) continue;
    const absl::Status put = PutEntry(store, run, shard, last + 1, entry);
    if (put.ok()) return last + 1;
    if (!absl::IsAborted(put)) return put;
    ++race;
  }
  return absl::AbortedError(
      absl::StrCat("the log ", LogPrefix(run_key, shard), " never rests"));
}

}  // namespace rankprobe::sealed
