// SPDX-License-Identifier: Apache-2.0
// UnitedReader: records and payloads, from the store or from leaves.

#include "absl/strings/str_cat.h"
#include "collector/sealed/united_reader.h"
#include "common/base/status_macros.h"

namespace rankprobe {

absl::Status UnitedReader::RenewStored(const std::string& run) {
  const absl::Status status = stored_->Renew(run);
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

void UnitedReader::AddPlaces(const std::string& run, const std::string& leaf,
                             const v1::LiveAnswer& part) {
  if (part.complete().empty()) return;
  absl::MutexLock lock(&mutex_);
  const auto known = runs_.find(run);
  if (known == runs_.end()) return;
  if (places_ > kMaxPlaces) {
    for (auto& [name, other] : runs_) other.places.clear();
    places_ = 0;
  }
  for (const v1::LivePayload& payload : part.complete()) {
    const auto [place, is_new] = known->second.places.insert_or_assign(
        PayloadId(payload.digest(), payload.length_bytes()), leaf);
    if (is_new) ++places_;
  }
}

absl::Status UnitedReader::ReadLive(const std::string& leaf, const StepKey& key,
                                    const RecordFn& callback) {
  v1::LiveQuestion question;
  question.set_run(key.run);
  question.mutable_records()->set_step(key.step);
  question.mutable_records()->set_incarnation(key.incarnation);
  const auto answer = leaves_->Ask(leaf, question);
  return TakeAll(answer.get(), [&](v1::LiveAnswer* part) -> absl::Status {
    AddPlaces(key.run, leaf, *part);
    for (const v1::Record& record : part->records())
      RP_RETURN_IF_ERROR(callback(record));
    return absl::OkStatus();
  });
}

absl::Status UnitedReader::CheckStored(const StepKey& key,
                                       const std::string& leaf,
                                       uint64_t records,
                                       const absl::Status& why) {
  const std::map<std::string, v1::StepInfo> infos = stored_->InfosByShard(key);
  const auto info = infos.find(leaf);
  if (info != infos.end() && info->second.records() >= records)
    return absl::OkStatus();
  if (!why.ok()) return why;
  return absl::UnavailableError(absl::StrCat(
      "step ", key.step, " of run \"", key.run,
      "\" is no longer on the leaf that had it, and not in the store"));
}

absl::Status UnitedReader::ForEachRecord(const StepKey& key,
                                         const RecordFn& callback) {
  Held held;
  {
    absl::MutexLock lock(&mutex_);
    const auto run = runs_.find(key.run);
    if (run != runs_.end()) {
      const auto step = run->second.held.find({key.step, key.incarnation});
      if (step != run->second.held.end()) held = step->second;
    }
  }
  if (held.records.empty()) return stored_->ForEachRecord(key, callback);
  if (held.records.size() == 1 && !held.stored) {
    const auto& [leaf, records] = *held.records.begin();
    uint64_t count = 0;
    const absl::Status status =
        ReadLive(leaf, key, [&](const v1::Record& record) {
          ++count;
          return callback(record);
        });
    // Records that were passed to the callback cannot be taken back.
    if (status.ok() ? count >= records : count > 0) return status;
    RP_RETURN_IF_ERROR(RenewStored(key.run));
    RP_RETURN_IF_ERROR(CheckStored(key, leaf, records, status));
    return stored_->ForEachRecord(key, callback);
  }
  std::map<uint64_t, v1::Record> merged;
  std::map<std::string, absl::Status> short_of;
  for (const auto& [leaf, records] : held.records) {
    uint64_t count = 0;
    const absl::Status status =
        ReadLive(leaf, key, [&](const v1::Record& record) {
          ++count;
          merged.try_emplace(record.order(), record);
          return absl::OkStatus();
        });
    if (!status.ok() || count < records) short_of[leaf] = status;
  }
  RP_RETURN_IF_ERROR(RenewStored(key.run));
  for (const auto& [leaf, why] : short_of)
    RP_RETURN_IF_ERROR(CheckStored(key, leaf, held.records[leaf], why));
  const absl::Status read =
      stored_->ForEachRecord(key, [&](const v1::Record& record) {
        merged.try_emplace(record.order(), record);
        return absl::OkStatus();
      });
  if (!absl::IsNotFound(read)) RP_RETURN_IF_ERROR(read);
  for (const auto& [order, record] : merged)
    RP_RETURN_IF_ERROR(callback(record));
  return absl::OkStatus();
}

std::optional<std::string> UnitedReader::KnownPlace(const std::string& run,
                                                    const PayloadId& payload) {
  absl::MutexLock lock(&mutex_);
  const auto known = runs_.find(run);
  if (known == runs_.end()) return std::nullopt;
  const auto place = known->second.places.find(payload);
  // A leaf that the list lacks is not used for data behind the list either.
  if (place == known->second.places.end() ||
      known->second.silent.find(place->second) != known->second.silent.end())
    return std::nullopt;
  return place->second;
}

absl::StatusOr<std::string> UnitedReader::FindLive(const std::string& run,
                                                   const PayloadId& payload,
                                                   std::string* damage) {
  v1::LiveQuestion question;
  question.set_run(run);
  question.mutable_whether()->set_digest(payload.first);
  question.mutable_whether()->set_length_bytes(payload.second);
  std::set<std::string> holders, silent;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto known = runs_.find(run); known != runs_.end()) {
      holders = known->second.holders;
      silent = known->second.silent;
    }
  }
  std::string found;
  absl::Status failed;
  std::vector<Asked> all;
  for (LiveLeaves::Leaf& leaf : leaves_->Leaves()) {
    if (!MayHave(leaf, run) && holders.find(leaf.name) == holders.end())
      continue;
    if (leaf.away.empty()) {
      auto answer = leaves_->Ask(leaf.name, question);
      all.push_back({std::move(leaf), std::move(answer)});
    } else if (silent.find(leaf.name) == silent.end()) {
      // The leaf was connected when the run was listed.
      failed = absl::UnavailableError(leaf.away);
    }
  }
  for (Asked& asked : all) {
    const absl::Status status =
        TakeAll(asked.answer.get(), [&](v1::LiveAnswer* part) {
          AddPlaces(run, asked.leaf.name, *part);
          if (!part->complete().empty()) found = asked.leaf.name;
          if (!part->damage().empty()) *damage = part->damage();
          return absl::OkStatus();
        });
    if (!status.ok()) failed = status;
    if (!found.empty()) return found;
  }
  RP_RETURN_IF_ERROR(failed);
  return absl::NotFoundError("no leaf has the payload");
}

bool UnitedReader::HasPayload(const std::string& run, absl::string_view digest,
                              uint64_t length_bytes) {
  const PayloadId payload(std::string(digest), length_bytes);
  if (KnownPlace(run, payload).has_value()) return true;
  if (stored_->HasPayload(run, digest, length_bytes)) return true;
  std::string damage;
  const absl::Status live = FindLive(run, payload, &damage).status();
  // A leaf that does not answer does not prove that the payload is missing: the
  // reader gets the error.
  if (!absl::IsNotFound(live)) return true;
  // It may have been stored, and freed on the leaf, between the two requests.
  if (!RenewStored(run).ok()) return true;
  return stored_->HasPayload(run, digest, length_bytes);
}

std::string UnitedReader::PayloadDamage(const std::string& run,
                                        absl::string_view digest,
                                        uint64_t length_bytes) {
  std::string damage = stored_->PayloadDamage(run, digest, length_bytes);
  if (!damage.empty()) return damage;
  const PayloadId payload(std::string(digest), length_bytes);
  if (!KnownPlace(run, payload).has_value() &&
      !stored_->HasPayload(run, digest, length_bytes))
    (void)FindLive(run, payload, &damage);
  return damage;
}

absl::Status UnitedReader::ReadPayload(const std::string& run,
                                       absl::string_view digest,
                                       uint64_t length_bytes,
                                       const DataFn& callback) {
  if (length_bytes == 0) return absl::OkStatus();
  const PayloadId payload(std::string(digest), length_bytes);
  absl::StatusOr<std::string> leaf = absl::NotFoundError("");
  if (std::optional<std::string> known = KnownPlace(run, payload);
      known.has_value()) {
    leaf = *std::move(known);
  } else if (stored_->HasPayload(run, digest, length_bytes)) {
    return stored_->ReadPayload(run, digest, length_bytes, callback);
  } else {
    std::string damage;
    leaf = FindLive(run, payload, &damage);
  }
  absl::Status status = leaf.status();
  if (leaf.ok()) {
    v1::LiveQuestion question;
    question.set_run(run);
    question.mutable_payload()->set_digest(payload.first);
    question.mutable_payload()->set_length_bytes(length_bytes);
    const auto answer = leaves_->Ask(*leaf, question);
    uint64_t taken = 0;
    status = TakeAll(answer.get(), [&](v1::LiveAnswer* part) {
      taken += part->data().size();
      if (taken > length_bytes)
        return absl::DataLossError("a leaf sends more than the payload has");
      return callback(part->data());
    });
    if (status.ok() && taken != length_bytes)
      status = absl::UnavailableError("a leaf sent a part of the payload");
    if (status.ok() || taken > 0) return status;
  }
  // It may have been stored meanwhile, and freed on the leaf.
  RP_RETURN_IF_ERROR(RenewStored(run));
  const absl::Status stored =
      stored_->ReadPayload(run, digest, length_bytes, callback);
  if (!absl::IsNotFound(stored)) return stored;
  if (!absl::IsNotFound(status)) return status;
  return absl::NotFoundError("the payload is incomplete in the archive");
}

// The leaf compared the bytes with their digest when it received them.
std::optional<std::string> UnitedReader::ContentDigest(const std::string& run,
                                                       absl::string_view digest,
                                                       uint64_t length_bytes) {
  const PayloadId payload(std::string(digest), length_bytes);
  if (KnownPlace(run, payload).has_value() ||
      !stored_->HasPayload(run, digest, length_bytes))
    return std::nullopt;
  return stored_->ContentDigest(run, digest, length_bytes);
}

}  // namespace rankprobe
