// SPDX-License-Identifier: Apache-2.0
#include "collector/store/store_reader.h"

#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "collector/store/keys.h"
#include "collector/store/rows.h"
#include "collector/store/run_processes.h"
#include "collector/store/step_counts.h"
#include "collector/store/store_core.h"
#include "common/base/limits.h"
#include "common/records/record_checksum.h"

namespace rankprobe {
namespace {

// Converts rows of steps to infos for readers.
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
    if (!parts.has_value() || !ParseRow(value, &row)) {
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
    info.set_job(identity.job());
    DescribeCounts(row, &info);
    info.set_updated_unix_ns(row.updated_unix_ns());
    info.set_deleted(row.deleted_unix_ns() != 0);
    return info;
  }

  size_t size() const { return out_.size(); }
  std::vector<v1::StepInfo> TakeSorted() {
    absl::c_stable_sort(out_, [](const v1::StepInfo& a, const v1::StepInfo& b) {
      const auto rank = [](const v1::StepInfo& s) {
        return s.has_rank() ? s.rank() : INT64_MAX;
      };
      return std::make_tuple(a.step(), rank(a), a.pid(), a.incarnation()) <
             std::make_tuple(b.step(), rank(b), b.pid(), b.incarnation());
    });
    return std::move(out_);
  }

 private:
  // Identities are looked up, not scanned: their rows are rewritten with each
  // commit, and a scan passes all obsolete versions that LevelDB still holds.
  absl::StatusOr<const v1::Identity*> IdentityOf(uint64_t incarnation) {
    const auto [it, is_new] = identities_.try_emplace(incarnation);
    if (!is_new) return &it->second;
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                        index_->Get(keys::Incarnation(run_, incarnation)));
    v1::IncarnationRow row;
    if (value.has_value() && !ParseRow(*value, &row))
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

std::vector<std::string> StoreReader::RunNames() {
  absl::MutexLock lock(&core_->mutex);
  std::vector<std::string> names;
  names.reserve(core_->runs.rows().size());
  for (const auto& [name, row] : core_->runs.rows()) names.push_back(name);
  return names;
}

std::vector<std::string> StoreReader::Faults(const std::string& run) {
  uint32_t id = 0;
  if (!run.empty()) {
    absl::MutexLock lock(&core_->mutex);
    const absl::StatusOr<v1::RunRow*> found = core_->runs.Find(run);
    if (!found.ok()) return {};
    id = (*found)->id();
  }
  std::vector<std::string> texts;
  // The error is ignored: if the index cannot be read, the answer fails too.
  (void)core_->index->Scan(
      "z", [&](absl::string_view key, absl::string_view text) {
        if (keys::IsOfLostSyncs(key, id))
          texts.push_back(absl::StrCat(text, ". That is not in this answer"));
        return absl::OkStatus();
      });
  return texts;
}

std::optional<v1::PayloadRow> StoreReader::PayloadRowOf(
    const std::string& run, absl::string_view digest, uint64_t length_bytes) {
  absl::MutexLock lock(&core_->mutex);
  const absl::StatusOr<v1::RunRow*> found = core_->runs.Find(run);
  if (!found.ok()) return std::nullopt;
  return GetRow<v1::PayloadRow>(
             core_->index.get(),
             keys::Payload((*found)->id(), digest, length_bytes))
      .value_or(std::nullopt);
}

std::string StoreReader::PayloadDamage(const std::string& run,
                                       absl::string_view digest,
                                       uint64_t length_bytes) {
  if (digest.size() != kPayloadDigestBytes) return "";
  const std::optional<v1::PayloadRow> row =
      PayloadRowOf(run, digest, length_bytes);
  if (!row.has_value() || !row->damaged()) return "";
  return PayloadStore::PlaceText(row->damaged_segment(),
                                 row->damaged_offset_bytes());
}

bool StoreReader::HasPayload(const std::string& run, absl::string_view digest,
                             uint64_t length_bytes) {
  absl::MutexLock lock(&core_->mutex);
  return core_->RunWithPayload(run, digest, length_bytes).has_value();
}

absl::StatusOr<std::vector<v1::RunInfo>> StoreReader::ListRuns() {
  std::map<std::string, v1::RunRow> runs;
  {
    absl::MutexLock lock(&core_->mutex);
    runs = core_->runs.rows();
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

// Counts existing steps; the run's row counts everything that was ever
// committed.
absl::Status StoreReader::CountSteps(uint32_t run, v1::RunInfo* info) {
  StepReader reader(core_->index.get(), run);
  RunProcesses processes;
  absl::flat_hash_set<int64_t> steps;
  uint64_t records = 0;
  // Keeps one step in memory at a time, because a run has as many as ranks
  // times steps.
  RP_RETURN_IF_ERROR(core_->index->Scan(
      keys::StepPrefix(run),
      [&](absl::string_view key, absl::string_view value) -> absl::Status {
        RP_ASSIGN_OR_RETURN(const v1::StepInfo step, reader.Read(key, value));
        if (step.deleted()) return absl::OkStatus();
        steps.insert(step.step());
        records += step.records();
        processes.Add(step);
        return absl::OkStatus();
      }));
  processes.Describe(info);
  info->set_steps(steps.size());
  info->set_records(records);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::StepInfo>> StoreReader::ListSteps(
    const std::string& run, const IntSet& steps) {
  RP_ASSIGN_OR_RETURN(const uint32_t id, core_->RunNumber(run));
  StepReader reader(core_->index.get(), id);
  // A few steps are looked up one by one; for many a scan is cheaper.
  constexpr uint64_t kMaxSought = 1024;
  if (steps.all() || steps.size() > kMaxSought) {
    RP_RETURN_IF_ERROR(core_->index->Scan(
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
        RP_RETURN_IF_ERROR(core_->index->Scan(
            keys::StepPrefix(id, step),
            [&](absl::string_view key, absl::string_view value) {
              return reader.Add(key, value);
            }));
    }
  }
  return reader.TakeSorted();
}

absl::StatusOr<std::vector<v1::StepInfo>> StoreReader::FindSteps(
    uint32_t run, absl::Span<const std::pair<int64_t, uint64_t>> steps) {
  StepReader reader(core_->index.get(), run);
  for (const auto& [step, incarnation] : steps) {
    const std::string key = keys::Step(run, step, incarnation);
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                        core_->index->Get(key));
    if (value.has_value()) RP_RETURN_IF_ERROR(reader.Add(key, *value));
  }
  return reader.TakeSorted();
}

absl::StatusOr<ArchiveReader::SomeSteps> StoreReader::ListStepsAfter(
    const std::string& run, std::optional<int64_t> after, size_t most) {
  RP_ASSIGN_OR_RETURN(const uint32_t id, core_->RunNumber(run));
  SomeSteps some;
  constexpr int64_t kLastStep = std::numeric_limits<int64_t>::max();
  if (after.has_value() && *after == kLastStep) return some;
  const int64_t first =
      after.has_value() ? std::max<int64_t>(*after + 1, 0) : 0;
  StepReader reader(core_->index.get(), id);
  int64_t last = -1;
  const absl::Status status = core_->index->ScanRange(
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

absl::Status StoreReader::ForEachRecord(const StepKey& key,
                                        const RecordFn& callback) {
  return TakeEachRecord(
      key, [&callback](v1::Record* record) { return callback(*record); });
}

absl::Status StoreReader::TakeEachRecord(const StepKey& key,
                                         const TakeRecordFn& callback) {
  RP_ASSIGN_OR_RETURN(const uint32_t id, core_->RunNumber(key.run));
  v1::Record record;
  return core_->index->Scan(
      keys::RecordPrefix(id, key.step, key.incarnation),
      [&](absl::string_view, absl::string_view value) -> absl::Status {
        RP_RETURN_IF_ERROR(DecodeRecord(value, &record));
        return callback(&record);
      });
}

absl::Status StoreReader::ReadPayload(const std::string& run,
                                      absl::string_view digest,
                                      uint64_t length_bytes,
                                      const DataFn& callback) {
  if (length_bytes == 0) return absl::OkStatus();
  uint32_t id = 0;
  {
    absl::MutexLock lock(&core_->mutex);
    RP_ASSIGN_OR_RETURN(const v1::RunRow* const row, core_->runs.Find(run));
    id = row->id();
    RP_ASSIGN_OR_RETURN(const bool whole,
                        core_->payloads.IsWhole(id, digest, length_bytes));
    if (!whole)
      return absl::NotFoundError("the payload is incomplete in the archive");
  }
  uint64_t at = 0;
  std::string data;
  const auto read_chunk = [&](absl::string_view key,
                              absl::string_view value) -> absl::Status {
    v1::ChunkRow row;
    if (!ParseRow(value, &row) || keys::ParseChunkOffset(key) != at) {
      return absl::DataLossError("the chunks of a payload have a gap");
    }
    if (const absl::Status read = core_->segments->Read(row, &data);
        !read.ok()) {
      // The chunk may have been moved to another segment since the scan began.
      RP_ASSIGN_OR_RETURN(const std::optional<v1::ChunkRow> now,
                          GetRow<v1::ChunkRow>(core_->index.get(), key));
      if (!now.has_value())
        return absl::NotFoundError("the payload was deleted");
      if (now->SerializeAsString() == row.SerializeAsString()) {
        if (absl::IsDataLoss(read))
          core_->MarkDamaged(keys::Payload(id, digest, length_bytes), row);
        return read;
      }
      RP_RETURN_IF_ERROR(core_->segments->Read(*now, &data));
    }
    at += data.size();
    return callback(data);
  };
  // Most payloads are one chunk, and a lookup costs a fraction of a scan.
  const std::string first = keys::Chunk(id, digest, length_bytes, 0);
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> row,
                      core_->index->Get(first));
  if (row.has_value()) RP_RETURN_IF_ERROR(read_chunk(first, *row));
  if (at < length_bytes) {
    RP_RETURN_IF_ERROR(core_->index->Scan(
        keys::ChunkPrefix(id, digest, length_bytes),
        [&](absl::string_view key, absl::string_view value) {
          return key == first ? absl::OkStatus() : read_chunk(key, value);
        }));
  }
  if (at != length_bytes)
    return absl::DataLossError("the chunks of a payload end early");
  return absl::OkStatus();
}

std::optional<std::string> StoreReader::ContentDigest(const std::string& run,
                                                      absl::string_view digest,
                                                      uint64_t length_bytes) {
  const std::optional<v1::PayloadRow> row =
      PayloadRowOf(run, digest, length_bytes);
  if (!row.has_value()) return std::nullopt;
  const std::string& content = row->content_digest();
  return content.empty() ? std::string(digest) : content;
}

absl::Status StoreReader::ForEachIncarnation(const std::string& run,
                                             const IncarnationFn& callback) {
  RP_ASSIGN_OR_RETURN(const uint32_t id, core_->RunNumber(run));
  return core_->index->Scan(
      keys::IncarnationPrefix(id),
      [&](absl::string_view, absl::string_view value) -> absl::Status {
        v1::IncarnationRow row;
        if (!ParseRow(value, &row))
          return absl::DataLossError(
              "the row of an incarnation cannot be read");
        if (row.dumping_in() == core_->life) row.clear_dumping_in();
        callback(row);
        return absl::OkStatus();
      });
}

}  // namespace rankprobe
