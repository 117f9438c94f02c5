// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/sealed_reader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "collector/sealed/maintenance_log.h"
#include "collector/sealed/pack_object.h"
#include "collector/sealed/records_object.h"
#include "collector/sealed/sealed_keys.h"
#include "collector/sealed/unite.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Enough to read from a hundred blocks of 64 MiB without requesting an index
// twice.
constexpr size_t kKeptIndexes = 100;

}  // namespace

absl::StatusOr<std::vector<v1::StepInfo>> SealedReader::ListSteps(
    const std::string& run, const IntSet& steps) {
  RP_RETURN_IF_ERROR(Refresh(run));
  RP_RETURN_IF_ERROR(UniteSteps(run));
  std::vector<v1::StepInfo> out;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, step] : runs_[run].steps) {
    if (steps.all() || steps.Contains(id.first)) out.push_back(step.info);
  }
  std::sort(out.begin(), out.end(), &sealed::IsStepBefore);
  return out;
}

absl::StatusOr<ArchiveReader::SomeSteps> SealedReader::ListStepsAfter(
    const std::string& run, std::optional<int64_t> after, size_t most) {
  RP_RETURN_IF_ERROR(Refresh(run));
  RP_RETURN_IF_ERROR(UniteSteps(run));
  SomeSteps some;
  absl::MutexLock lock(&mutex_);
  const std::map<StepId, Step>& steps = runs_[run].steps;
  auto it = after.has_value() ? steps.upper_bound({*after, UINT64_MAX})
                              : steps.begin();
  for (; it != steps.end(); ++it) {
    if (some.steps.size() >= most &&
        it->first.first != some.steps.back().step()) {
      some.more = true;
      break;
    }
    some.steps.push_back(it->second.info);
  }
  std::sort(some.steps.begin(), some.steps.end(), &sealed::IsStepBefore);
  return some;
}

absl::StatusOr<std::shared_ptr<const v1::SealedRecordsIndex>>
SealedReader::RecordsIndex(const std::string& key, uint64_t object_bytes) {
  {
    absl::MutexLock lock(&index_mutex_);
    for (auto it = indexes_.begin(); it != indexes_.end(); ++it) {
      if (it->first != key) continue;
      indexes_.splice(indexes_.begin(), indexes_, it);
      return indexes_.front().second;
    }
  }
  RP_ASSIGN_OR_RETURN(v1::SealedRecordsIndex read,
                      ReadRecordsIndex(store_, key, object_bytes));
  auto index = std::make_shared<const v1::SealedRecordsIndex>(std::move(read));
  absl::MutexLock lock(&index_mutex_);
  indexes_.emplace_front(key, index);
  if (indexes_.size() > kKeptIndexes) indexes_.pop_back();
  return index;
}

absl::Status SealedReader::ReadSource(const StepKey& key,
                                      const std::string& run_key,
                                      const Source& source,
                                      const RecordFn& callback) {
  const std::string object = sealed::RecordsKey(run_key, source.object->name());
  const auto read = RecordsIndex(object, source.object->bytes());
  if (!read.ok()) return Missing(key.run, object, read.status());
  const auto& index = *read;
  if (source.member >= index->members_size() ||
      index->members(source.member).step() != key.step ||
      index->members(source.member).incarnation() != key.incarnation) {
    return absl::DataLossError(
        absl::StrCat(object, " has other steps than its entry says"));
  }
  absl::Status taken;
  const absl::Status status = ReadSealedRecords(
      store_, object, index->members(source.member),
      [&](const v1::Record& record) { return taken = callback(record); });
  return taken.ok() ? Missing(key.run, object, status) : status;
}

absl::Status SealedReader::ForEachRecord(const StepKey& key,
                                         const RecordFn& callback) {
  RP_RETURN_IF_ERROR(Known(key.run));
  std::vector<Source> sources;
  std::string run_key;
  {
    absl::MutexLock lock(&mutex_);
    const Run& run = runs_[key.run];
    run_key = run.key;
    const auto step = run.steps.find({key.step, key.incarnation});
    if (run.maintenance.FateOf(key.step, key.incarnation) !=
        sealed::Maintenance::Fate::kThere) {
      return absl::FailedPreconditionError(absl::StrCat(
          "step ", key.step, " of run \"", key.run, "\" was deleted"));
    }
    if (step != run.steps.end()) sources = step->second.sources;
  }
  // Later records are placed by their order; of equal orders the first is kept.
  std::map<uint64_t, v1::Record> merged;
  for (const Source& source : sources) {
    if (sources.size() == 1) return ReadSource(key, run_key, source, callback);
    RP_RETURN_IF_ERROR(
        ReadSource(key, run_key, source, [&](const v1::Record& record) {
          merged.try_emplace(record.order(), record);
          return absl::OkStatus();
        }));
  }
  for (const auto& [order, record] : merged)
    RP_RETURN_IF_ERROR(callback(record));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const SealedReader::PayloadPlace>>
SealedReader::FindPayload(const std::string& run, absl::string_view digest,
                          uint64_t length_bytes) {
  RP_RETURN_IF_ERROR(Known(run));
  const PayloadId id(std::string(digest), length_bytes);
  std::map<std::string, uint64_t> unread;
  std::string run_key;
  {
    absl::MutexLock lock(&mutex_);
    const Run& known = runs_[run];
    const auto settled = [&] {
      mutex_.AssertHeld();
      return known.places.contains(id) || known.unread_packs.empty() ||
             !reading_packs_.contains(run);
    };
    mutex_.Await(absl::Condition(&settled));
    const auto found = known.places.find(id);
    if (found != known.places.end()) return found->second;
    if (known.unread_packs.empty()) {
      const auto removed = known.removed_places.find(id);
      if (removed != known.removed_places.end()) return removed->second;
      return absl::NotFoundError("the payload is incomplete in the archive");
    }
    unread = known.unread_packs;
    run_key = known.key;
    reading_packs_.insert(run);
  }
  absl::Status status;
  std::map<std::string, uint64_t> bad;
  std::vector<std::shared_ptr<const PayloadPlace>> places;
  for (auto it = unread.begin(); it != unread.end(); ++it) {
    const auto pack = std::make_shared<const Pack>(
        Pack{it->first, sealed::PackKey(run_key, it->first), it->second});
    absl::StatusOr<v1::SealedPackIndex> index =
        ReadPackIndex(store_, pack->key, pack->bytes);
    if (!index.ok()) {
      const absl::Status why = Missing(run, pack->key, index.status());
      status.Update(why);
      // The content of this pack is not known; other packs are read.
      bad.insert(*it);
      if (sealed::IsOfOneObject(why)) continue;
      bad.insert(it, unread.end());
      break;
    }
    for (v1::SealedPayload& payload : *index->mutable_payloads())
      places.push_back(std::make_shared<const PayloadPlace>(
          PayloadPlace{pack, std::move(payload)}));
  }
  absl::MutexLock lock(&mutex_);
  reading_packs_.erase(run);
  Run& known = runs_[run];
  for (std::shared_ptr<const PayloadPlace>& place : places) {
    const PayloadId other(place->payload.digest(),
                          place->payload.length_bytes());
    auto& where = known.packs.contains(place->pack->name)
                      ? known.places
                      : known.removed_places;
    where.try_emplace(other, std::move(place));
  }
  for (const auto& [name, bytes] : unread)
    if (bad.count(name) == 0) known.unread_packs.erase(name);
  const auto found = known.places.find(id);
  if (found != known.places.end()) return found->second;
  const auto removed = known.removed_places.find(id);
  if (removed != known.removed_places.end()) return removed->second;
  RP_RETURN_IF_ERROR(status);
  return absl::NotFoundError("the payload is incomplete in the archive");
}

bool SealedReader::HasPayload(const std::string& run, absl::string_view digest,
                              uint64_t length_bytes) {
  // A store that does not answer does not prove that the payload is missing:
  // the reader gets the error.
  return !absl::IsNotFound(FindPayload(run, digest, length_bytes).status());
}

std::string SealedReader::PayloadDamage(const std::string& run,
                                        absl::string_view digest,
                                        uint64_t length_bytes) {
  if (HasPayload(run, digest, length_bytes)) return "";
  absl::MutexLock lock(&mutex_);
  const auto found = runs_.find(run);
  if (found == runs_.end()) return "";
  const Run& known = found->second;
  const auto damage = known.damaged.find({std::string(digest), length_bytes});
  return damage == known.damaged.end() ? "" : damage->second;
}

absl::Status SealedReader::ReadPayload(const std::string& run,
                                       absl::string_view digest,
                                       uint64_t length_bytes,
                                       const DataFn& callback) {
  if (length_bytes == 0) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(const std::shared_ptr<const PayloadPlace> place,
                      FindPayload(run, digest, length_bytes));
  absl::Status taken;
  const absl::Status status = ReadSealedPayload(
      &packs_, place->pack->key, place->pack->bytes, place->payload,
      [&](absl::string_view data) { return taken = callback(data); });
  return taken.ok() ? Missing(run, place->pack->key, status) : status;
}

std::optional<std::string> SealedReader::ContentDigest(const std::string& run,
                                                       absl::string_view digest,
                                                       uint64_t length_bytes) {
  const auto place = FindPayload(run, digest, length_bytes);
  if (!place.ok()) return std::nullopt;
  const std::string& content = (*place)->payload.content_digest();
  return content.empty() ? std::string(digest) : content;
}

absl::Status SealedReader::ForEachIncarnation(const std::string& run,
                                              const IncarnationFn& callback) {
  RP_RETURN_IF_ERROR(Known(run));
  std::vector<v1::IncarnationRow> rows;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [incarnation, of_logs] : runs_[run].incarnations) {
      std::vector<v1::IncarnationRow> several;
      for (const auto& [log, row] : of_logs) several.push_back(row);
      rows.push_back(sealed::UniteRows(std::move(several)));
    }
  }
  for (const v1::IncarnationRow& row : rows) callback(row);
  return absl::OkStatus();
}

}  // namespace rankprobe
