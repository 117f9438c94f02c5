// SPDX-License-Identifier: Apache-2.0
#include "collector/store/rebuild.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collector/store/index.h"
#include "collector/store/keys.h"
#include "collector/store/payload_finder.h"
#include "collector/store/payload_store.h"
#include "collector/store/recovery.h"
#include "collector/store/rollup_heads.h"
#include "collector/store/row_writer.h"
#include "collector/store/rows.h"
#include "collector/store/step_counts.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/records/record_checksum.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxDamagedTexts = 100;

class Rebuilder {
 public:
  Rebuilder(const StoreOptions& options, FileSystem* file_system,
            const Clock* clock, const PayloadNameFn& name_of)
      : options_(options),
        file_system_(file_system),
        clock_(clock),
        name_of_(name_of) {}

  absl::StatusOr<RebuildReport> Run() {
    RP_RETURN_IF_ERROR(OpenIndex());
    RP_RETURN_IF_ERROR(finder_->ReadSegments([this](const std::string& place) {
      ++report_.damaged_places;
      if (report_.damaged.size() < kMaxDamagedTexts)
        report_.damaged.push_back(place);
    }));
    RP_RETURN_IF_ERROR(ReadPrincipals());
    RP_RETURN_IF_ERROR(Payloads());
    RP_RETURN_IF_ERROR(DropRollups());
    RP_RETURN_IF_ERROR(Records());
    RP_RETURN_IF_ERROR(Runs());
    RP_RETURN_IF_ERROR(Marks());
    return report_;
  }

 private:
  absl::Status OpenIndex() {
    IndexOptions index{
        .directory = options_.data_dir + "/index",
        .write_buffer_bytes = options_.leveldb_write_buffer_bytes,
        .cache_bytes = options_.leveldb_cache_bytes,
        .file_system = file_system_};
    RP_RETURN_IF_ERROR(file_system_->CreateDirectories(index.directory));
    RP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        file_system_->List(index.directory));
    const bool any =
        std::any_of(names.begin(), names.end(), [](const std::string& name) {
          return absl::EndsWith(name, ".log") || absl::EndsWith(name, ".ldb") ||
                 absl::EndsWith(name, ".sst") ||
                 absl::StartsWith(name, "MANIFEST-");
        });
    if (any) RP_RETURN_IF_ERROR(RepairLevelDbIndex(index));
    RP_ASSIGN_OR_RETURN(index_, OpenLevelDbIndex(index));
    RP_RETURN_IF_ERROR(CheckFormat(index_.get()).status());
    PayloadStore::Known known;
    known.clean = true;
    RP_ASSIGN_OR_RETURN(payloads_,
                        PayloadStore::Open({options_.data_dir + "/segments",
                                            options_.segment_bytes, false},
                                           file_system_, known));
    finder_.emplace(file_system_, payloads_.get(), name_of_);
    return absl::OkStatus();
  }

  absl::Status ReadPrincipals() {
    return index_->Scan("i", [&](absl::string_view key,
                                 absl::string_view value) {
      const std::optional<uint32_t> run = keys::ParseRun(key);
      v1::IncarnationRow row;
      if (run.has_value() && ParseRow(value, &row) && !row.principal().empty())
        finder_->AddPrincipal(*run, row.principal());
      return absl::OkStatus();
    });
  }

  // Returns whether the index has the payload with all its chunks.
  absl::StatusOr<bool> IsWhole(const std::string& key,
                               const keys::PayloadParts& payload) {
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                        index_->Get(key));
    v1::PayloadRow row;
    if (!value.has_value() || !ParseRow(*value, &row) || row.corrupt() ||
        row.damaged())
      return false;
    uint64_t at = 0;
    bool sound = true;
    RP_RETURN_IF_ERROR(index_->Scan(
        keys::ChunkPrefix(payload.run, payload.digest, payload.length),
        [&](absl::string_view chunk, absl::string_view bytes) {
          v1::ChunkRow found;
          sound = sound && ParseRow(bytes, &found) &&
                  keys::ParseChunkOffset(chunk) == at &&
                  payloads_->Contains(found);
          at += found.length_bytes();
          return absl::OkStatus();
        }));
    return sound && at == payload.length;
  }

  absl::Status Payloads() {
    // Payloads that only the index knows are checked too.
    RP_RETURN_IF_ERROR(
        index_->Scan("p", [&](absl::string_view key, absl::string_view) {
          if (keys::ParsePayload(key).has_value()) finder_->AddKey(key);
          return absl::OkStatus();
        }));
    RowWriter rows(index_.get());
    for (const auto& [key, pieces] : finder_->found()) {
      const std::optional<keys::PayloadParts> payload = keys::ParsePayload(key);
      if (!payload.has_value()) continue;
      runs_.insert(payload->run);
      RP_ASSIGN_OR_RETURN(const bool whole, IsWhole(key, *payload));
      if (whole) {
        ++report_.payloads;
        stored_[payload->run] += payload->length;
        continue;
      }
      RP_ASSIGN_OR_RETURN(const PayloadFinder::Whole found,
                          finder_->Assemble(*payload, pieces));
      const std::string prefix =
          keys::ChunkPrefix(payload->run, payload->digest, payload->length);
      RP_RETURN_IF_ERROR(
          index_->Scan(prefix, [&](absl::string_view chunk, absl::string_view) {
            return rows.Delete(chunk);
          }));
      if (found.chain.empty()) {
        ++report_.incomplete_payloads;
        RP_RETURN_IF_ERROR(rows.Delete(key));
        continue;
      }
      for (const PayloadFinder::Piece& piece : found.chain) {
        RP_RETURN_IF_ERROR(rows.Put(keys::AtOffset(prefix, piece.offset),
                                    piece.row.SerializeAsString()));
      }
      v1::PayloadRow row;
      if (found.content_digest != payload->digest)
        row.set_content_digest(found.content_digest);
      RP_RETURN_IF_ERROR(rows.Put(key, row.SerializeAsString()));
      ++report_.payloads;
      ++report_.payloads_found;
      stored_[payload->run] += payload->length;
    }
    RP_RETURN_IF_ERROR(rows.Finish(/*sync=*/true));
    return DropUnowned();
  }

  // Deletes chunks of incomplete payloads. Senders that still run begin again.
  absl::Status DropUnowned() {
    RowWriter rows(index_.get());
    RP_RETURN_IF_ERROR(index_->Scan(
        "k", [&](absl::string_view key, absl::string_view) -> absl::Status {
          std::string payload(key.substr(0, key.size() - 8));
          payload[0] = 'p';
          RP_ASSIGN_OR_RETURN(const auto owner, index_->Get(payload));
          return owner.has_value() ? absl::OkStatus() : rows.Delete(key);
        }));
    RP_RETURN_IF_ERROR(rows.DeleteAll("q"));
    return rows.Finish(/*sync=*/true);
  }

  // Deletes all rollups, because the id of a lost name would be given to
  // another value. They are made again from the records.
  absl::Status DropRollups() {
    RowWriter rows(index_.get());
    for (const char* const table : {"u", "h", "a", "n", "o", "j"})
      RP_RETURN_IF_ERROR(rows.DeleteAll(table));
    return rows.Finish(/*sync=*/true);
  }

  struct Step {
    v1::StepRow old;
    v1::StepRow counted;
  };

  // Counts every step again and writes its references.
  absl::Status Records() {
    RowWriter rows(index_.get());
    std::map<std::string, Step> steps;
    RP_RETURN_IF_ERROR(
        index_->Scan("s", [&](absl::string_view key, absl::string_view value) {
          if (!keys::ParseStep(key).has_value() ||
              !ParseRow(value, &steps[std::string(key)].old)) {
            steps.erase(std::string(key));
            return rows.Delete(key);
          }
          return absl::OkStatus();
        }));
    RP_RETURN_IF_ERROR(index_->Scan(
        "c",
        [&](absl::string_view key, absl::string_view value) -> absl::Status {
          const std::optional<uint32_t> run = keys::ParseRun(key);
          const std::optional<keys::StepParts> place = keys::ParseStep(key);
          v1::Record record;
          if (!run.has_value() || !place.has_value() ||
              !DecodeRecord(value, &record).ok())
            return rows.Delete(key);
          Step& step = steps[keys::Step(*run, place->step, place->incarnation)];
          if (step.old.deleted_unix_ns() != 0) return rows.Delete(key);
          ++report_.records;
          absl::Status status;
          CountRecord(
              record,
              [&](const v1::PayloadRef& payload) {
                if (!status.ok() ||
                    payload.digest().size() != kPayloadDigestBytes)
                  return;
                referred_.insert(keys::Payload(*run, payload.digest(),
                                               payload.length_bytes()));
                status =
                    rows.Put(keys::Reference(*run, payload.digest(),
                                             payload.length_bytes(),
                                             place->step, place->incarnation),
                             "");
              },
              &step.counted);
          return status;
        }));
    for (auto& [key, step] : steps)
      RP_RETURN_IF_ERROR(WriteStep(key, &step, &rows));
    RP_RETURN_IF_ERROR(KeepUnreferred(&rows));
    return rows.Finish(/*sync=*/true);
  }

  absl::Status WriteStep(const std::string& key, Step* step, RowWriter* rows) {
    const uint32_t run = *keys::ParseRun(key);
    runs_.insert(run);
    const std::optional<keys::StepParts> place = keys::ParseStep(key);
    const uint64_t incarnation = place->incarnation;
    auto [range, is_new] =
        senders_.try_emplace({run, incarnation}, place->step, place->step);
    range->second.first = std::min(range->second.first, place->step);
    range->second.second = std::max(range->second.second, place->step);
    if (is_new) {
      // Without the row the rank is not known any more.
      const std::string row_key = keys::Incarnation(run, incarnation);
      RP_ASSIGN_OR_RETURN(const auto known, index_->Get(row_key));
      v1::IncarnationRow row;
      if (!known.has_value() || !ParseRow(*known, &row)) {
        row.Clear();
        row.mutable_identity()->set_incarnation(incarnation);
        RP_RETURN_IF_ERROR(rows->Put(row_key, row.SerializeAsString()));
      }
    }
    if (step->old.deleted_unix_ns() != 0) {
      counted_[run] += step->old.records();
      return PutDeletedHead(index_.get(), run, incarnation, place->step, rows);
    }
    v1::StepRow& row = step->counted;
    row.set_updated_unix_ns(step->old.updated_unix_ns() != 0
                                ? step->old.updated_unix_ns()
                                : absl::ToUnixNanos(clock_->Now()));
    // The counts that the rank reported are kept, because the ledger compares
    // with them.
    if (!row.has_end() && step->old.has_end()) {
      *row.mutable_end() = step->old.end();
      row.set_end_order(step->old.end_order());
    }
    counted_[run] += row.records();
    RP_RETURN_IF_ERROR(
        rows->Put(keys::PendingRollup(run, place->step, incarnation), ""));
    return rows->Put(key, row.SerializeAsString());
  }

  // Keeps payloads without a record, which would be freed as garbage, until
  // their run is deleted.
  absl::Status KeepUnreferred(RowWriter* rows) {
    return index_->Scan(
        "p", [&](absl::string_view key, absl::string_view) -> absl::Status {
          const std::optional<keys::PayloadParts> payload =
              keys::ParsePayload(key);
          if (!payload.has_value() || referred_.count(std::string(key)) > 0)
            return absl::OkStatus();
          return rows->Put(keys::Reference(payload->run, payload->digest,
                                           payload->length, INT64_MAX, 0),
                           "");
        });
  }

  absl::Status Runs() {
    RowWriter rows(index_.get());
    std::map<uint32_t, std::pair<std::string, v1::RunRow>> named;
    std::set<std::string> names;
    RP_RETURN_IF_ERROR(
        index_->Scan("r", [&](absl::string_view key, absl::string_view value) {
          v1::RunRow row;
          if (!ParseRow(value, &row) || row.id() == 0) return rows.Delete(key);
          names.emplace(key.substr(1));
          named[row.id()] = {std::string(key.substr(1)), row};
          return absl::OkStatus();
        }));
    for (const uint32_t run : runs_) {
      if (named.count(run) > 0) continue;
      RP_ASSIGN_OR_RETURN(const auto deleted,
                          index_->Get(keys::DeletedRun(run)));
      if (deleted.has_value()) continue;
      std::string name = absl::StrCat("recovered-", run);
      while (names.count(name) > 0) name.push_back('x');
      v1::RunRow row;
      row.set_id(run);
      row.set_created_unix_ns(absl::ToUnixNanos(clock_->Now()));
      row.set_updated_unix_ns(row.created_unix_ns());
      named[run] = {name, row};
    }
    for (const auto& [sender, range] : senders_) {
      const std::string key = keys::Incarnation(sender.first, sender.second);
      RP_ASSIGN_OR_RETURN(const auto bytes, index_->Get(key));
      v1::IncarnationRow row;
      if (!bytes.has_value() || !ParseRow(*bytes, &row)) continue;
      row.set_lowest_step(range.first);
      row.set_highest_step(range.second);
      RP_RETURN_IF_ERROR(rows.Put(key, row.SerializeAsString()));
    }
    for (auto& [run, entry] : named) {
      entry.second.set_records(counted_[run]);
      entry.second.set_stored_payload_bytes(stored_[run]);
      RP_RETURN_IF_ERROR(
          rows.Put(keys::Run(entry.first), entry.second.SerializeAsString()));
    }
    report_.runs = named.size();
    return rows.Finish(/*sync=*/true);
  }

  // Marks the archive as closed cleanly.
  absl::Status Marks() {
    RowWriter rows(index_.get());
    RP_RETURN_IF_ERROR(rows.DeleteAll("z"));
    keys::Synced synced;
    for (const PayloadStore::SegmentInfo& segment : payloads_->Segments()) {
      RP_RETURN_IF_ERROR(rows.Put(keys::Segment(segment.number), ""));
      synced.segment = segment.number;
      synced.offset = segment.size_bytes;
    }
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> old,
                        index_->Get(keys::kSynced));
    synced.count = keys::ParseSynced(old.value_or("")).value_or(synced).count;
    synced.count = std::max(synced.count,
                            SyncCountBeside(options_.data_dir, file_system_)) +
                   1;
    RP_RETURN_IF_ERROR(rows.Put(keys::kSynced, keys::SyncedValue(synced)));
    RP_RETURN_IF_ERROR(rows.Put(keys::kClean, "1"));
    return rows.Finish(/*sync=*/true);
  }

  const StoreOptions options_;
  FileSystem* const file_system_;
  const Clock* const clock_;
  const PayloadNameFn name_of_;
  std::unique_ptr<Index> index_;
  std::unique_ptr<PayloadStore> payloads_;
  std::optional<PayloadFinder> finder_;
  RebuildReport report_;
  std::set<std::string> referred_;
  std::set<uint32_t> runs_;
  // The first and the last step, by run and incarnation.
  std::map<std::pair<uint32_t, uint64_t>, std::pair<int64_t, int64_t>> senders_;
  // Records, and bytes of payloads, by run.
  std::map<uint32_t, uint64_t> counted_, stored_;
};

}  // namespace

absl::StatusOr<RebuildReport> RebuildIndex(const StoreOptions& options,
                                           FileSystem* file_system,
                                           const Clock* clock,
                                           const PayloadNameFn& name_of) {
  if (!file_system->Exists(options.data_dir + "/segments") &&
      !file_system->Exists(options.data_dir + "/index")) {
    return absl::NotFoundError(
        absl::StrCat(options.data_dir, " holds no archive"));
  }
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> lock,
                      file_system->Lock(options.data_dir + "/LOCK"));
  RP_RETURN_IF_ERROR(NoteRebuildBegun(options.data_dir, file_system));
  absl::StatusOr<RebuildReport> report =
      Rebuilder(options, file_system, clock, name_of).Run();
  // A newer format was not changed.
  if (report.ok() || absl::IsFailedPrecondition(report.status()))
    RP_RETURN_IF_ERROR(NoteRebuildEnded(options.data_dir, file_system));
  return report;
}

}  // namespace rankprobe
