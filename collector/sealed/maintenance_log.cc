// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/maintenance_log.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/sealed/log_heads.h"
#include "collector/sealed/sealed_keys.h"
#include "common/base/status_macros.h"
#include "common/text/visible_text.h"

namespace rankprobe::sealed {
namespace {

constexpr size_t kListed = 1000;
constexpr uint64_t kMaxRunNameBytes = 64 << 10;
// Each lost race is a success of another process.
constexpr int kRaces = 1000;

absl::Status InEntry(const std::string& key, const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrCat("entry ", key, " of the log: ", status.message()));
}

// `digest` gets the digest of the bytes, even if they are not an entry.
absl::StatusOr<v1::SealedLogEntry> ReadEntry(ObjectStore* store,
                                             const std::string& run,
                                             const std::string& shard,
                                             uint64_t sequence,
                                             std::string* digest) {
  const std::string key = LogKey(RunKey(run), shard, sequence);
  RP_ASSIGN_OR_RETURN(const std::string bytes,
                      GetObject(store, key, kMaxEntryBytes));
  *digest = EntryDigest(bytes);
  absl::StatusOr<v1::SealedLogEntry> entry = DecodeEntry(bytes);
  if (!entry.ok()) return InEntry(key, entry.status());
  if (entry->run() != run || entry->shard() != shard ||
      entry->sequence() != sequence) {
    return InEntry(key, absl::DataLossError("it is one of another place"));
  }
  return entry;
}

// Ranges map first to last; adjacent ones are merged.
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
    // Merges nest: a new one includes all remaining ones of its entries.
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

namespace {

// Reads the logs of a run after their known entries.
class LogReader {
 public:
  LogReader(ObjectStore* store, const std::string& run,
            const Maintenance& maintenance,
            std::map<std::string, uint64_t>* logs,
            std::vector<v1::SealedLogEntry>* entries,
            std::vector<absl::Status>* bad)
      : store_(store),
        run_(run),
        run_key_(RunKey(run)),
        known_(maintenance),
        logs_(logs),
        entries_(entries),
        bad_(bad) {}

  absl::Status Read() {
    // Heads are read before the logs: the logs may grow meanwhile, and a head
    // is never ahead of its log.
    RP_ASSIGN_OR_RETURN(heads_, ReadHeads(store_, run_key_));
    const std::string prefix = LogPrefix(run_key_);
    std::string after;
    while (true) {
      RP_ASSIGN_OR_RETURN(const ObjectList list,
                          store_->List(prefix, after, kListed));
      bool skipped = false;
      for (const ObjectInfo& object : list.objects) {
        after = object.key;
        const std::optional<LogPlace> place = ParseLogKey(run_key_, object.key);
        if (!place.has_value()) {
          RP_RETURN_IF_ERROR(Fault(absl::DataLossError(
              absl::StrCat(object.key, " is not an entry of a log"))));
          continue;
        }
        const auto found = logs_->find(place->shard);
        const uint64_t last = found == logs_->end() ? 0 : found->second;
        if (place->sequence <= last) {
          // All entries up to the last one are known.
          after = LogKey(run_key_, place->shard, last);
          skipped = true;
          break;
        }
        RP_RETURN_IF_ERROR(Take(*place, last));
      }
      if (!list.more && !skipped) return CheckHeads();
    }
  }

 private:
  absl::Status Fault(absl::Status status) {
    if (bad_ == nullptr || !IsOfOneObject(status)) return status;
    bad_->push_back(std::move(status));
    return absl::OkStatus();
  }

  std::string TextOf(const std::string& shard) const {
    return absl::StrCat(LogPrefix(run_key_), shard);
  }

  absl::Status Take(const LogPlace& place, uint64_t last) {
    if (place.sequence != last + 1) {
      RP_RETURN_IF_ERROR(Fault(absl::DataLossError(
          absl::StrCat("entry ", last + 1, " of the log ", TextOf(place.shard),
                       " is missing: there is entry ", place.sequence))));
      digests_.erase(place.shard);
    }
    (*logs_)[place.shard] = place.sequence;
    const bool is_maintenance = place.shard == kMaintenanceShard;
    if (!is_maintenance && known_.IsReplaced(place.shard, place.sequence)) {
      digests_.erase(place.shard);
      return absl::OkStatus();
    }
    std::string digest;
    absl::StatusOr<v1::SealedLogEntry> entry =
        ReadEntry(store_, run_, place.shard, place.sequence, &digest);
    // A missing entry is damage, because it was listed.
    if (absl::IsNotFound(entry.status()))
      entry = absl::DataLossError(entry.status().message());
    const auto before = digests_.find(place.shard);
    const std::string previous = before == digests_.end() ? "" : before->second;
    digests_[place.shard] = digest;
    if (!entry.ok()) {
      // A check of the next entry would only report the same fault.
      digests_.erase(place.shard);
      return Fault(entry.status());
    }
    if (!previous.empty() && entry->previous() != previous) {
      RP_RETURN_IF_ERROR(Fault(absl::DataLossError(absl::StrCat(
          "entry ", place.sequence - 1, " of the log ", TextOf(place.shard),
          " was replaced: it is not the one that entry ", place.sequence,
          " was put behind"))));
    }
    if (is_maintenance) known_.Note(*entry);
    entries_->push_back(*std::move(entry));
    NoteAtHead(place);
    return absl::OkStatus();
  }

  void NoteAtHead(const LogPlace& place) {
    const auto head = heads_.find(place.shard);
    if (head != heads_.end() && head->second.sequence == place.sequence)
      at_head_[place.shard] = digests_[place.shard];
  }

  absl::Status CheckHeads() {
    for (const auto& [shard, head] : heads_) {
      const auto found = logs_->find(shard);
      const uint64_t last = found == logs_->end() ? 0 : found->second;
      if (last < head.sequence) {
        RP_RETURN_IF_ERROR(Fault(absl::DataLossError(absl::StrCat(
            "the log ", TextOf(shard), " ends with entry ", last, ": entries ",
            last + 1, " to ", head.sequence, " were put and are missing"))));
      }
      const auto read = at_head_.find(shard);
      if (read != at_head_.end() && read->second != head.digest) {
        RP_RETURN_IF_ERROR(Fault(absl::DataLossError(
            absl::StrCat("entry ", head.sequence, " of the log ", TextOf(shard),
                         " was replaced: it is not the one that was put"))));
      }
    }
    // A log with one entry may have no head yet, so only longer ones are
    // checked.
    for (const auto& [shard, last] : *logs_) {
      if (last < 2 || heads_.find(shard) != heads_.end()) continue;
      RP_RETURN_IF_ERROR(Fault(absl::DataLossError(
          absl::StrCat("where the log ", TextOf(shard),
                       " ends is not known: its head below ", kHeadsPrefix,
                       run_key_, " is missing"))));
    }
    return absl::OkStatus();
  }

  ObjectStore* const store_;
  const std::string& run_;
  const std::string run_key_;
  Maintenance known_;
  std::map<std::string, uint64_t>* const logs_;
  std::vector<v1::SealedLogEntry>* const entries_;
  std::vector<absl::Status>* const bad_;
  std::map<std::string, LogHead> heads_;
  // Digests by log: of the last read entry, and of the one that the head names,
  // if they were read.
  std::map<std::string, std::string> digests_, at_head_;
};

}  // namespace

absl::Status ReadNewEntries(ObjectStore* store, const std::string& run,
                            const Maintenance& maintenance,
                            std::map<std::string, uint64_t>* logs,
                            std::vector<v1::SealedLogEntry>* entries,
                            std::vector<absl::Status>* bad) {
  return LogReader(store, run, maintenance, logs, entries, bad).Read();
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

absl::StatusOr<RunLog> ReadRunLog(ObjectStore* store, const std::string& run,
                                  std::vector<absl::Status>* bad) {
  RunLog log;
  std::vector<v1::SealedLogEntry> entries;
  RP_RETURN_IF_ERROR(
      ReadNewEntries(store, run, Maintenance(), &log.logs, &entries, bad));
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

// `name_key` is the key where the name of the run belongs.
absl::StatusOr<std::string> ReadRunName(ObjectStore* store,
                                        const std::string& key,
                                        const std::string& name_key) {
  RP_ASSIGN_OR_RETURN(const ObjectTail tail,
                      store->GetTail(key, kMaxRunNameBytes));
  v1::SealedRunName name;
  if (tail.object_bytes > kMaxRunNameBytes ||
      !name.ParseFromString(tail.bytes) ||
      NameKey(RunKey(name.run())) != name_key) {
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
      absl::StatusOr<std::string> name =
          ReadRunName(store, object.key, object.key);
      if (bad != nullptr && IsOfOneObject(name.status())) {
        bad->push_back(name.status());
        continue;
      }
      RP_RETURN_IF_ERROR(name.status());
      by_key[object.key] = *std::move(name);
    }
    if (!list.more) break;
  }
  RP_ASSIGN_OR_RETURN(const auto heads, ListHeads(store));
  for (const auto& [run_key, head] : heads) {
    const std::string key = NameKey(run_key);
    if (by_key.count(key) > 0) continue;
    absl::StatusOr<std::string> name = ReadRunName(store, head, key);
    if (name.ok() && bad != nullptr) {
      bad->push_back(absl::DataLossError(
          absl::StrCat("the name of run \"", VisibleText(*name),
                       "\" is missing: there is no ", key)));
    }
    if (!name.ok() && !IsOfOneObject(name.status()) &&
        !absl::IsNotFound(name.status()))
      return name.status();
    if (name.ok()) by_key[key] = *std::move(name);
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
  entry.clear_previous();
  if (sequence > 1) {
    RP_ASSIGN_OR_RETURN(
        const std::string before,
        GetObject(store, LogKey(RunKey(run), shard, sequence - 1),
                  kMaxEntryBytes));
    entry.set_previous(EntryDigest(before));
  }
  const std::string bytes = EncodeEntry(entry);
  if (bytes.size() > kMaxEntryBytes)
    return absl::ResourceExhaustedError("an entry of the log is too large");
  const std::string key = LogKey(RunKey(run), shard, sequence);
  const LogHead head{sequence, EntryDigest(bytes)};
  const absl::Status put =
      store->Put(key, bytes, ObjectStore::PutMode::kIfAbsent);
  if (put.ok()) return PutHead(store, run, shard, head);
  if (!absl::IsAlreadyExists(put)) return put;
  // The entry may be this process' own, if the answer of an earlier put was
  // lost.
  RP_ASSIGN_OR_RETURN(const std::string there,
                      GetObject(store, key, kMaxEntryBytes));
  if (there == bytes) return PutHead(store, run, shard, head);
  return absl::AbortedError(absl::StrCat("another process has put ", key));
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
            absl::StrCat(list.objects.back().key, " is not an entry of a log"));
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
