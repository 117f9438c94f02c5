// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "collector/store/keys.h"
#include "collector/store/step_counts.h"
#include "collector/store/store_impl.h"
#include "common/base/limits.h"
#include "common/records/record_checksum.h"

namespace rankprobe {
namespace {

// Rows of steps as what is said of them to readers.
class StepReader {
 public:
  StepReader(Index* index, uint32_t run) : index_(index), run_(run) {}

  absl::Status Add(absl::string_view key, absl::string_view value) {
    RP_ASSIGN_OR_RETURN(v1::StepInfo info, Read(key, value));
    out_.push_back(std::move(info));
    return absl::OkStatus();
  }

  absl::StatusOr<v1::StepInfo> Read(absl::string_view key,
                                    absl::string_view value) {
    v1::StepRow row;
    const std::optional<keys::StepParts> parts = keys::ParseStep(key);
    if (!parts.has_value() ||
        !row.ParseFromArray(value.data(), static_cast<int>(value.size()))) {
      return absl::DataLossError("the row of a step cannot be read");
    }
    RP_ASSIGN_OR_RETURN(const v1::Identity* const found,
                        IdentityOf(parts->incarnation));
    const v1::Identity& identity = *found;
    v1::StepInfo info;
    info.set_step(parts->step);
    if (identity.has_rank()) info.set_rank(identity.rank());
    info.set_pid(identity.pid());
    info.set_host(identity.host());
    info.set_incarnation(parts->incarnation);
    DescribeCounts(row, &info);
    info.set_updated_unix_ns(row.updated_unix_ns());
    info.set_deleted(row.deleted_unix_ns() != 0);
    return info;
  }

  size_t size() const { return out_.size(); }
  std::vector<v1::StepInfo> TakeSorted() {
    std::stable_sort(
        out_.begin(), out_.end(),
        [](const v1::StepInfo& a, const v1::StepInfo& b) {
          const auto rank = [](const v1::StepInfo& s) {
            return s.has_rank() ? s.rank() : INT64_MAX;
          };
          return std::make_tuple(a.step(), rank(a), a.pid(), a.incarnation()) <
                 std::make_tuple(b.step(), rank(b), b.pid(), b.incarnation());
        });
    return std::move(out_);
  }

 private:
  // Looked up, not scanned: their rows are rewritten with each commit, and a
  // scan passes all that LevelDB still holds of them.
  absl::StatusOr<const v1::Identity*> IdentityOf(uint64_t incarnation) {
    const auto [it, is_new] = identities_.try_emplace(incarnation);
    if (!is_new) return &it->second;
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                        index_->Get(keys::Incarnation(run_, incarnation)));
    v1::IncarnationRow row;
    if (value.has_value() && !row.ParseFromString(*value))
      return absl::DataLossError("the row of an incarnation cannot be read");
    it->second = row.identity();
    return &it->second;
  }

  Index* const index_;
  const uint32_t run_;
  std::map<uint64_t, v1::Identity> identities_;
  std::vector<v1::StepInfo> out_;
};

}  // namespace

std::optional<uint32_t> StoreImpl::RunWithPayload(const std::string& run,
                                                  absl::string_view digest,
                                                  uint64_t length_bytes) {
  if (digest.size() != kPayloadDigestBytes) return std::nullopt;
  const absl::StatusOr<v1::RunRow*> row = LoadRun(run, /*create=*/false);
  if (!row.ok()) return std::nullopt;
  const absl::StatusOr<bool> whole =
      IsWhole((*row)->id(), digest, length_bytes);
  if (!whole.ok() || !*whole) return std::nullopt;
  return (*row)->id();
}

std::string StoreImpl::PayloadDamage(const std::string& run,
                                     absl::string_view digest,
                                     uint64_t length_bytes) {
  if (digest.size() != kPayloadDigestBytes) return "";
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<v1::RunRow*> found = LoadRun(run, /*create=*/false);
  if (!found.ok()) return "";
  const absl::StatusOr<std::optional<v1::PayloadRow>> row =
      GetMessage<v1::PayloadRow>(
          index_.get(), keys::Payload((*found)->id(), digest, length_bytes));
  if (!row.ok() || !row->has_value() || !(*row)->damaged()) return "";
  return PayloadStore::PlaceText((*row)->damaged_segment(),
                                 (*row)->damaged_offset_bytes());
}

void StoreImpl::MarkDamaged(const std::string& payload_key,
                            const v1::ChunkRow& row) {
  absl::MutexLock lock(&mutex_);
  if (!sticky_.ok()) return;
  const absl::StatusOr<std::optional<v1::PayloadRow>> old =
      GetMessage<v1::PayloadRow>(index_.get(), payload_key);
  // Deleted meanwhile, or known already.
  if (!old.ok() || !old->has_value() || (*old)->damaged()) return;
  v1::PayloadRow marked = **old;
  marked.set_damaged(true);
  marked.set_damaged_segment(row.segment());
  marked.set_damaged_offset_bytes(row.offset_bytes());
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  batch->Put(payload_key, marked.SerializeAsString());
  // Without room it is found again by the next reader.
  if (index_->Write(std::move(batch), /*sync=*/false).ok())
    whole_.erase(payload_key);
}

void StoreImpl::MarkSound(const std::string& payload_key) {
  absl::MutexLock lock(&mutex_);
  if (!sticky_.ok()) return;
  const absl::StatusOr<std::optional<v1::PayloadRow>> old =
      GetMessage<v1::PayloadRow>(index_.get(), payload_key);
  if (!old.ok() || !old->has_value() || !(*old)->damaged()) return;
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  v1::PayloadRow sound = **old;
  sound.clear_damaged();
  sound.clear_damaged_segment();
  sound.clear_damaged_offset_bytes();
  batch->Put(payload_key, sound.SerializeAsString());
  index_->Write(std::move(batch), /*sync=*/false).IgnoreError();
}

bool StoreImpl::HasPayload(const std::string& run, absl::string_view digest,
                           uint64_t length_bytes) {
  absl::MutexLock lock(&mutex_);
  return RunWithPayload(run, digest, length_bytes).has_value();
}

bool StoreImpl::KeepPayload(const std::string& run, absl::string_view digest,
                            uint64_t length_bytes) {
  absl::MutexLock lock(&mutex_);
  const std::optional<uint32_t> id = RunWithPayload(run, digest, length_bytes);
  if (!id.has_value()) return false;
  touched_[keys::Payload(*id, digest, length_bytes)] = clock_->MonotonicNanos();
  return true;
}

absl::StatusOr<std::vector<v1::RunInfo>> StoreImpl::ListRuns() {
  std::map<std::string, v1::RunRow> runs;
  {
    absl::MutexLock lock(&mutex_);
    runs = runs_;
  }
  std::vector<v1::RunInfo> out;
  for (const auto& [name, row] : runs) {
    v1::RunInfo& info = out.emplace_back();
    info.set_run(name);
    info.set_created_unix_ns(row.created_unix_ns());
    info.set_updated_unix_ns(row.updated_unix_ns());
    info.set_stored_payload_bytes(row.stored_payload_bytes());
    info.set_offered_payload_bytes(row.offered_payload_bytes());
    RP_RETURN_IF_ERROR(CountSteps(row.id(), &info));
  }
  return out;
}

// What is here now; the run's row counts what was ever committed.
absl::Status StoreImpl::CountSteps(uint32_t run, v1::RunInfo* info) {
  StepReader reader(index_.get(), run);
  absl::flat_hash_set<uint64_t> incarnations;
  std::set<std::string> processes;
  absl::flat_hash_set<int64_t> steps;
  uint64_t records = 0;
  // A run has as many of them as ranks times steps: one is in memory at a time.
  RP_RETURN_IF_ERROR(index_->Scan(
      keys::StepPrefix(run),
      [&](absl::string_view key, absl::string_view value) -> absl::Status {
        RP_ASSIGN_OR_RETURN(const v1::StepInfo step, reader.Read(key, value));
        if (step.deleted()) return absl::OkStatus();
        steps.insert(step.step());
        records += step.records();
        if (incarnations.insert(step.incarnation()).second) {
          processes.insert(step.has_rank() ? absl::StrCat("rank", step.rank())
                                           : absl::StrCat("proc", step.pid(),
                                                          "@", step.host()));
        }
        return absl::OkStatus();
      }));
  info->set_ranks(processes.size());
  info->set_processes(incarnations.size());
  info->set_steps(steps.size());
  info->set_records(records);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::StepInfo>> StoreImpl::ListSteps(
    const std::string& run, const IntSet& steps) {
  RP_ASSIGN_OR_RETURN(const uint32_t id, RunNumber(run));
  StepReader reader(index_.get(), id);
  // A few steps are sought one by one, many by passing all of them.
  constexpr uint64_t kMaxSought = 1024;
  if (steps.all() || steps.size() > kMaxSought) {
    RP_RETURN_IF_ERROR(index_->Scan(
        keys::StepPrefix(id),
        [&](absl::string_view key, absl::string_view value) -> absl::Status {
          const std::optional<keys::StepParts> parts = keys::ParseStep(key);
          if (parts.has_value() && !steps.Contains(parts->step))
            return absl::OkStatus();
          return reader.Add(key, value);
        }));
  } else {
    for (const IntInterval& i : steps.intervals()) {
      for (int64_t step = i.first; step <= i.last; ++step)
        RP_RETURN_IF_ERROR(
            index_->Scan(keys::StepPrefix(id, step),
                         [&](absl::string_view key, absl::string_view value) {
                           return reader.Add(key, value);
                         }));
    }
  }
  return reader.TakeSorted();
}

absl::StatusOr<std::vector<v1::StepInfo>> StoreImpl::FindSteps(
    uint32_t run, absl::Span<const std::pair<int64_t, uint64_t>> steps) {
  StepReader reader(index_.get(), run);
  for (const auto& [step, incarnation] : steps) {
    const std::string key = keys::Step(run, step, incarnation);
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                        index_->Get(key));
    if (value.has_value()) RP_RETURN_IF_ERROR(reader.Add(key, *value));
  }
  return reader.TakeSorted();
}

absl::StatusOr<Store::SomeSteps> StoreImpl::ListStepsAfter(
    const std::string& run, std::optional<int64_t> after, size_t most) {
  RP_ASSIGN_OR_RETURN(const uint32_t id, RunNumber(run));
  SomeSteps some;
  constexpr int64_t kLastStep = std::numeric_limits<int64_t>::max();
  if (after.has_value() && *after == kLastStep) return some;
  const int64_t first =
      after.has_value() ? std::max<int64_t>(*after + 1, 0) : 0;
  StepReader reader(index_.get(), id);
  int64_t last = -1;
  const absl::Status status = index_->ScanRange(
      keys::StepPrefix(id, first),
      keys::Step(id, kLastStep, std::numeric_limits<uint64_t>::max()),
      [&](absl::string_view key, absl::string_view value) -> absl::Status {
        const std::optional<keys::StepParts> parts = keys::ParseStep(key);
        if (parts.has_value() && parts->step != last && reader.size() >= most) {
          some.more = true;
          return absl::CancelledError();
        }
        if (parts.has_value()) last = parts->step;
        return reader.Add(key, value);
      });
  if (!some.more) RP_RETURN_IF_ERROR(status);
  some.steps = reader.TakeSorted();
  return some;
}

absl::Status StoreImpl::ForEachRecord(
    const StepKey& key,
    const std::function<absl::Status(const v1::Record&)>& callback) {
  return TakeEachRecord(
      key, [&callback](v1::Record* record) { return callback(*record); });
}

absl::Status StoreImpl::TakeEachRecord(
    const StepKey& key,
    const std::function<absl::Status(v1::Record*)>& callback) {
  uint32_t id = 0;
  {
    absl::MutexLock lock(&mutex_);
    RP_ASSIGN_OR_RETURN(const v1::RunRow* const row,
                        LoadRun(key.run, /*create=*/false));
    id = row->id();
  }
  v1::Record record;
  return index_->Scan(
      keys::RecordPrefix(id, key.step, key.incarnation),
      [&](absl::string_view, absl::string_view value) -> absl::Status {
        RP_RETURN_IF_ERROR(DecodeRecord(value, &record));
        return callback(&record);
      });
}

absl::Status StoreImpl::ReadPayload(
    const std::string& run, absl::string_view digest, uint64_t length_bytes,
    const std::function<absl::Status(absl::string_view)>& callback) {
  if (length_bytes == 0) return absl::OkStatus();
  uint32_t id = 0;
  {
    absl::MutexLock lock(&mutex_);
    RP_ASSIGN_OR_RETURN(const v1::RunRow* const row,
                        LoadRun(run, /*create=*/false));
    id = row->id();
    RP_ASSIGN_OR_RETURN(const bool whole, IsWhole(id, digest, length_bytes));
    if (!whole)
      return absl::NotFoundError("the payload is incomplete in the archive");
  }
  uint64_t at = 0;
  std::string data;
  const auto read_chunk = [&](absl::string_view key,
                              absl::string_view value) -> absl::Status {
    v1::ChunkRow row;
    if (!row.ParseFromArray(value.data(), static_cast<int>(value.size())) ||
        keys::ParseChunkOffset(key) != at) {
      return absl::DataLossError("the chunks of a payload have a gap");
    }
    if (const absl::Status read = payloads_->Read(row, &data); !read.ok()) {
      // Moved to another segment since the scan began?
      RP_ASSIGN_OR_RETURN(const std::optional<v1::ChunkRow> now,
                          GetMessage<v1::ChunkRow>(index_.get(), key));
      if (!now.has_value())
        return absl::NotFoundError("the payload was deleted");
      if (now->SerializeAsString() == row.SerializeAsString()) {
        if (absl::IsDataLoss(read))
          MarkDamaged(keys::Payload(id, digest, length_bytes), row);
        return read;
      }
      RP_RETURN_IF_ERROR(payloads_->Read(*now, &data));
    }
    at += data.size();
    return callback(data);
  };
  // Most payloads are one chunk: looking it up costs a fraction of a scan.
  const std::string first = keys::Chunk(id, digest, length_bytes, 0);
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> row, index_->Get(first));
  if (row.has_value()) RP_RETURN_IF_ERROR(read_chunk(first, *row));
  if (at < length_bytes) {
    RP_RETURN_IF_ERROR(index_->Scan(
        keys::ChunkPrefix(id, digest, length_bytes),
        [&](absl::string_view key, absl::string_view value) {
          return key == first ? absl::OkStatus() : read_chunk(key, value);
        }));
  }
  if (at != length_bytes)
    return absl::DataLossError("the chunks of a payload end early");
  return absl::OkStatus();
}

std::optional<std::string> StoreImpl::ContentDigest(const std::string& run,
                                                    absl::string_view digest,
                                                    uint64_t length_bytes) {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<v1::RunRow*> found = LoadRun(run, /*create=*/false);
  if (!found.ok()) return std::nullopt;
  const absl::StatusOr<std::optional<v1::PayloadRow>> row =
      GetMessage<v1::PayloadRow>(
          index_.get(), keys::Payload((*found)->id(), digest, length_bytes));
  if (!row.ok() || !row->has_value()) return std::nullopt;
  const std::string& content = (*row)->content_digest();
  return content.empty() ? std::string(digest) : content;
}

absl::Status StoreImpl::ForEachIncarnation(
    const std::string& run,
    const std::function<void(const v1::IncarnationRow&)>& callback) {
  uint32_t id = 0;
  {
    absl::MutexLock lock(&mutex_);
    RP_ASSIGN_OR_RETURN(const v1::RunRow* const row,
                        LoadRun(run, /*create=*/false));
    id = row->id();
  }
  return index_->Scan(
      keys::IncarnationPrefix(id),
      [&](absl::string_view, absl::string_view value) -> absl::Status {
        v1::IncarnationRow row;
        if (!row.ParseFromArray(value.data(), static_cast<int>(value.size())))
          return absl::DataLossError(
              "the row of an incarnation cannot be read");
        if (row.dumping_in() == life_) row.clear_dumping_in();
        callback(row);
        return absl::OkStatus();
      });
}

StoreTotals StoreImpl::Totals() {
  absl::MutexLock lock(&mutex_);
  StoreTotals totals;
  totals.runs = runs_.size();
  for (const auto& [name, row] : runs_) {
    totals.records += row.records();
    totals.stored_payload_bytes += row.stored_payload_bytes();
    totals.offered_payload_bytes += row.offered_payload_bytes();
  }
  for (const auto& [reason, count] : lost_records_) {
    totals.lost_records[v1::LossReason_IsValid(reason)
                            ? v1::LossReason_Name(
                                  static_cast<v1::LossReason>(reason))
                            : absl::StrCat(reason)] = count;
  }
  return totals;
}

absl::StatusOr<std::optional<v1::PlanSpec>> StoreImpl::LoadPlan(
    const std::string& run) {
  return GetMessage<v1::PlanSpec>(index_.get(), keys::Plan(run));
}

}  // namespace rankprobe
