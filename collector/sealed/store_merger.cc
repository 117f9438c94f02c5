// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/store_merger.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "collector/sealed/pack_object.h"
#include "collector/sealed/read_ahead.h"
#include "collector/sealed/records_object.h"
#include "collector/sealed/sealed_keys.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

using sealed::Maintenance;

constexpr char kRecordsFile[] = "records";
constexpr char kPackFile[] = "pack";

uint64_t FirstOf(const v1::SealedLogEntry& set) {
  return set.has_merge() ? set.merge().first() : set.sequence();
}
uint64_t LastOf(const v1::SealedLogEntry& set) {
  return set.has_merge() ? set.merge().last() : set.sequence();
}

uint64_t BytesOf(const v1::SealedLogEntry& set) {
  uint64_t bytes = set.records().bytes();
  for (const v1::SealedObject& pack : set.packs()) bytes += pack.bytes();
  return bytes;
}

// Merges accounts and damage of one log as a reader does.
void JoinAccounts(const sealed::RunLog& log, size_t begin, size_t end,
                  v1::SealedLogEntry* entry) {
  std::map<uint64_t, v1::IncarnationRow> rows;
  std::map<std::pair<std::string, uint64_t>, v1::SealedDamage> damaged;
  for (size_t i = begin; i < end; ++i) {
    for (const v1::IncarnationRow& row : log.sets[i].incarnations()) {
      v1::IncarnationRow& known = rows[row.identity().incarnation()];
      if (row.committed_sequence() >= known.committed_sequence()) known = row;
    }
    for (const v1::SealedDamage& damage : log.sets[i].damaged())
      damaged[{damage.digest(), damage.length_bytes()}] = damage;
  }
  for (auto& [incarnation, row] : rows) entry->add_incarnations()->Swap(&row);
  for (auto& [payload, damage] : damaged) entry->add_damaged()->Swap(&damage);
}

}  // namespace

std::string StoreMerger::Path(const std::string& name) const {
  return absl::StrCat(options_.directory, "/", name);
}

std::vector<StoreMerger::Group> StoreMerger::Groups(
    const sealed::RunLog& log) const {
  std::vector<Group> groups;
  Group group;
  uint64_t bytes = 0;
  int steps = 0;
  const auto end_at = [&](size_t end) {
    group.end = end;
    if (group.end - group.begin >= std::max<size_t>(options_.sets, 2))
      groups.push_back(group);
  };
  for (size_t i = 0; i < log.sets.size(); ++i) {
    const v1::SealedLogEntry& set = log.sets[i];
    const uint64_t of_set = BytesOf(set);
    const bool fits =
        of_set < options_.bytes / 2 && i > group.begin &&
        sealed::ShardOf(log.sets[group.begin]) == sealed::ShardOf(set) &&
        bytes + of_set <= options_.bytes &&
        steps + set.steps_size() <= options_.steps;
    if (!fits) {
      end_at(i);
      group.begin = i;
      bytes = 0;
      steps = 0;
      // A set that is already large is not the beginning of a group.
      if (of_set >= options_.bytes / 2) {
        group.begin = i + 1;
        continue;
      }
    }
    bytes += of_set;
    steps += set.steps_size();
  }
  end_at(log.sets.size());
  return groups;
}

absl::Status StoreMerger::WriteRecords(const std::string& run,
                                       const sealed::RunLog& log,
                                       const Group& group,
                                       const std::string& origin,
                                       v1::SealedLogEntry* entry) {
  const std::string run_key = sealed::RunKey(run);
  RP_ASSIGN_OR_RETURN(
      const std::unique_ptr<RecordsObjectWriter> records,
      RecordsObjectWriter::Create(file_system_, Path(kRecordsFile)));
  records->SetOrigin(origin);
  std::vector<const v1::SealedStep*> deleted;
  for (size_t i = group.begin; i < group.end; ++i) {
    const v1::SealedLogEntry& set = log.sets[i];
    std::string key;
    v1::SealedRecordsIndex index;
    for (int member = 0; member < set.steps_size(); ++member) {
      const v1::SealedStep& step = set.steps(member);
      const Maintenance::Fate fate =
          log.maintenance.FateOf(step.info().step(), step.info().incarnation());
      if (fate == Maintenance::Fate::kDeleted) deleted.push_back(&step);
      if (fate != Maintenance::Fate::kThere) continue;
      if (key.empty()) {
        key = sealed::RecordsKey(run_key, set.records().name());
        RP_ASSIGN_OR_RETURN(
            index, ReadRecordsIndex(store_, key, set.records().bytes()));
      }
      if (member >= index.members_size() ||
          index.members(member).step() != step.info().step() ||
          index.members(member).incarnation() != step.info().incarnation()) {
        return absl::DataLossError(
            absl::StrCat(key, " has other steps than its entry says"));
      }
      RP_RETURN_IF_ERROR(
          records->BeginMember(step.info().step(), step.info().incarnation()));
      RP_RETURN_IF_ERROR(ReadSealedRecords(
          store_, key, index.members(member),
          [&](const v1::Record& record) { return records->Add(record); }));
      *entry->add_steps() = step;
    }
  }
  RP_ASSIGN_OR_RETURN(v1::SealedObject object, records->Finish());
  if (entry->steps_size() > 0) entry->mutable_records()->Swap(&object);
  // Deleted steps are listed, and have no records.
  for (const v1::SealedStep* const step : deleted) *entry->add_steps() = *step;
  return absl::OkStatus();
}

absl::Status StoreMerger::WritePack(const std::string& run,
                                    const sealed::RunLog& log,
                                    const Group& group,
                                    const std::string& origin,
                                    v1::SealedLogEntry* entry) {
  const std::string run_key = sealed::RunKey(run);
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<PackObjectWriter> pack,
                      PackObjectWriter::Create(file_system_, Path(kPackFile)));
  pack->SetOrigin(origin);
  ReadAhead read_ahead(store_);
  absl::flat_hash_set<std::pair<std::string, uint64_t>> packed;
  for (size_t i = group.begin; i < group.end; ++i) {
    for (const v1::SealedObject& object : log.sets[i].packs()) {
      if (log.maintenance.IsRemoved(object.name())) continue;
      const std::string key = sealed::PackKey(run_key, object.name());
      RP_ASSIGN_OR_RETURN(const v1::SealedPackIndex index,
                          ReadPackIndex(store_, key, object.bytes()));
      for (const v1::SealedPayload& payload : index.payloads()) {
        if (!packed.emplace(payload.digest(), payload.length_bytes()).second)
          continue;
        pack->BeginPayload(payload.digest(), payload.length_bytes(),
                           payload.content_digest().empty()
                               ? payload.digest()
                               : payload.content_digest());
        RP_RETURN_IF_ERROR(ReadSealedPayload(
            &read_ahead, key, object.bytes(), payload,
            [&](absl::string_view data) { return pack->AddData(data); }));
        RP_ASSIGN_OR_RETURN(const bool whole, pack->EndPayload());
        if (!whole)
          return absl::DataLossError(absl::StrCat(key, " is damaged"));
      }
    }
  }
  if (pack->payloads() == 0) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(*entry->add_packs(), pack->Finish());
  return absl::OkStatus();
}

absl::StatusOr<bool> StoreMerger::MergeGroup(const std::string& run,
                                             const sealed::RunLog& log,
                                             const Group& group,
                                             uint64_t sequence) {
  RP_RETURN_IF_ERROR(file_system_->DeleteTree(options_.directory));
  RP_RETURN_IF_ERROR(file_system_->CreateDirectories(options_.directory));
  const std::string origin =
      absl::StrCat(sealed::kMaintenanceShard, "/", sequence);
  v1::SealedLogEntry entry;
  entry.mutable_merge()->set_shard(sealed::ShardOf(log.sets[group.begin]));
  entry.mutable_merge()->set_first(FirstOf(log.sets[group.begin]));
  entry.mutable_merge()->set_last(LastOf(log.sets[group.end - 1]));
  RP_RETURN_IF_ERROR(WriteRecords(run, log, group, origin, &entry));
  RP_RETURN_IF_ERROR(WritePack(run, log, group, origin, &entry));
  JoinAccounts(log, group.begin, group.end, &entry);
  // Packs that other sets name as well are kept.
  std::set<std::string> needed;
  for (size_t i = 0; i < log.sets.size(); ++i) {
    if (i >= group.begin && i < group.end) continue;
    for (const v1::SealedObject& pack : log.sets[i].packs())
      needed.insert(pack.name());
  }
  v1::SealedCollection* const collection = entry.mutable_collection();
  collection->set_unix_ns(absl::ToUnixNanos(clock_->Now()));
  std::set<std::string> packs;
  for (size_t i = group.begin; i < group.end; ++i) {
    const v1::SealedLogEntry& set = log.sets[i];
    if (set.has_records() &&
        !log.maintenance.IsRemovedRecords(set.records().name()))
      collection->add_records(set.records().name());
    for (const v1::SealedObject& pack : set.packs()) {
      if (needed.count(pack.name()) == 0 &&
          !log.maintenance.IsRemoved(pack.name()))
        packs.insert(pack.name());
    }
  }
  for (const std::string& pack : packs) collection->add_packs(pack);
  const std::string run_key = sealed::RunKey(run);
  for (const v1::SealedObject& pack : entry.packs()) {
    RP_RETURN_IF_ERROR(store_->PutFile(sealed::PackKey(run_key, pack.name()),
                                       file_system_, Path(kPackFile)));
  }
  if (entry.has_records()) {
    RP_RETURN_IF_ERROR(
        store_->PutFile(sealed::RecordsKey(run_key, entry.records().name()),
                        file_system_, Path(kRecordsFile)));
  }
  const absl::Status put = sealed::PutEntry(
      store_, run, sealed::kMaintenanceShard, sequence, std::move(entry));
  if (absl::IsAborted(put)) return false;
  RP_RETURN_IF_ERROR(put);
  return true;
}

absl::Status StoreMerger::Merge(const std::function<bool()>& stop,
                                MergeReport* report) {
  std::vector<absl::Status> bad;
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> runs, logs_->Runs(&bad));
  absl::Status first = bad.empty() ? absl::OkStatus() : bad.front();
  for (const std::string& run : runs) {
    const absl::Status status = [&]() -> absl::Status {
      RP_ASSIGN_OR_RETURN(const sealed::RunLog log, logs_->Read(run));
      uint64_t sequence = log.maintenance.last();
      for (const Group& group : Groups(log)) {
        if (stop()) return absl::OkStatus();
        RP_ASSIGN_OR_RETURN(const bool made,
                            MergeGroup(run, log, group, ++sequence));
        if (!made) return absl::OkStatus();
        report->merged += group.end - group.begin;
        ++report->made;
      }
      return absl::OkStatus();
    }();
    first.Update(status);
  }
  return first;
}

}  // namespace rankprobe
