#include "collector/store/maintenance.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/store/keys.h"
#include "common/call_values.h"
#include "common/status_macros.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {
namespace {

constexpr size_t kRowsPerBatch = 2000;
// Copied between two looks of the commit path at the lock.
constexpr uint64_t kCopyBytes = 4 << 20;

// A batch that writes itself every so many rows.
class RowDeleter {
 public:
  explicit RowDeleter(Index* index) : index_(index) {}
  absl::Status Delete(absl::string_view key) {
    if (batch_ == nullptr) batch_ = index_->NewBatch();
    batch_->Delete(key);
    return ++rows_ % kRowsPerBatch == 0 ? Write() : absl::OkStatus();
  }
  absl::Status Write() {
    if (batch_ == nullptr) return absl::OkStatus();
    return index_->Write(std::move(batch_), /*sync=*/false);
  }
  uint64_t rows() const { return rows_; }

 private:
  Index* const index_;
  std::unique_ptr<IndexBatch> batch_;
  uint64_t rows_ = 0;
};

absl::StatusOr<uint64_t> DeleteTable(StoreHooks* store, char table,
                                     uint32_t run) {
  RowDeleter rows(store->index());
  RP_RETURN_IF_ERROR(
      store->index()->Scan(keys::TableOfRun(table, run),
                           [&](absl::string_view key, absl::string_view) {
                             return rows.Delete(key);
                           }));
  RP_RETURN_IF_ERROR(rows.Write());
  return rows.rows();
}

absl::StatusOr<bool> HasReference(Index* index,
                                  const keys::PayloadParts& payload) {
  bool any = false;
  const absl::Status status = index->Scan(
      keys::ReferencePrefix(payload.run, payload.digest, payload.length),
      [&](absl::string_view, absl::string_view) {
        any = true;
        return absl::CancelledError();
      });
  if (!status.ok() && !any) return status;
  return any;
}

// Frees the payload unless something refers to it or is about to.
absl::Status FreePayload(StoreHooks* store, const keys::PayloadParts& payload,
                         v1::DeleteReport* report) {
  return store->Exclusive([&]() -> absl::Status {
    Index* const index = store->index();
    RP_ASSIGN_OR_RETURN(const bool referred, HasReference(index, payload));
    if (referred) return absl::OkStatus();
    const std::string key =
        keys::Payload(payload.run, payload.digest, payload.length);
    if (store->OfferedLately(key)) {
      report->set_kept_payloads(report->kept_payloads() + 1);
      return absl::OkStatus();
    }
    std::unique_ptr<IndexBatch> batch = index->NewBatch();
    uint64_t bytes = 0;
    RP_RETURN_IF_ERROR(index->Scan(
        keys::ChunkPrefix(payload.run, payload.digest, payload.length),
        [&](absl::string_view chunk, absl::string_view value) {
          v1::ChunkRow row;
          if (row.ParseFromArray(value.data(), static_cast<int>(value.size())))
            bytes += row.length_bytes();
          batch->Delete(chunk);
          return absl::OkStatus();
        }));
    batch->Delete(key);
    RP_RETURN_IF_ERROR(index->Write(std::move(batch), /*sync=*/false));
    store->ForgetPayload(key);
    report->set_payloads(report->payloads() + 1);
    report->set_payload_bytes(report->payload_bytes() + bytes);
    return absl::OkStatus();
  });
}

// Marks the step deleted, so that nothing is added to it or read from it.
absl::Status MarkStep(StoreHooks* store, uint32_t run, const StepToDelete& step,
                      int64_t now_unix_ns, v1::DeleteReport* report) {
  return store->Exclusive([&]() -> absl::Status {
    const std::string key = keys::Step(run, step.step, step.incarnation);
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                        store->index()->Get(key));
    v1::StepRow row;
    if (!bytes.has_value() || !row.ParseFromString(*bytes) ||
        row.deleted_unix_ns() != 0)
      return absl::OkStatus();
    row.set_deleted_unix_ns(std::max<int64_t>(now_unix_ns, 1));
    std::unique_ptr<IndexBatch> batch = store->index()->NewBatch();
    batch->Put(key, row.SerializeAsString());
    batch->Put(keys::DeletedStep(run, step.step, step.incarnation), "");
    store->ForgetStep(run, step.step, step.incarnation);
    report->set_steps(report->steps() + 1);
    return store->index()->Write(std::move(batch), /*sync=*/true);
  });
}

// Removes records and references of a marked step; its payloads go into
// `candidates`.
absl::Status RemoveRecords(StoreHooks* store, uint32_t run,
                           const StepToDelete& step,
                           std::set<std::string>* candidates,
                           v1::DeleteReport* report) {
  Index* const index = store->index();
  RowDeleter rows(index);
  uint64_t records = 0;
  RP_RETURN_IF_ERROR(index->Scan(
      keys::RecordPrefix(run, step.step, step.incarnation),
      [&](absl::string_view key, absl::string_view value) -> absl::Status {
        v1::Record record;
        absl::Status status;
        if (record.ParseFromArray(value.data(),
                                  static_cast<int>(value.size()))) {
          ForEachTensor(record.call(), [&](const v1::TensorSummary& tensor) {
            const v1::PayloadRef& payload = tensor.payload();
            if (!status.ok() || payload.digest().size() != 16) return;
            candidates->insert(
                keys::Payload(run, payload.digest(), payload.length_bytes()));
            status = rows.Delete(keys::Reference(run, payload.digest(),
                                                 payload.length_bytes(),
                                                 step.step, step.incarnation));
          });
        }
        RP_RETURN_IF_ERROR(status);
        ++records;
        return rows.Delete(key);
      }));
  report->set_records(report->records() + records);
  return rows.Write();
}

}  // namespace

absl::Status DeleteSteps(StoreHooks* store, uint32_t run,
                         const std::vector<StepToDelete>& steps,
                         int64_t keep_from_step, int64_t now_unix_ns,
                         v1::DeleteReport* report) {
  for (const StepToDelete& step : steps) {
    RP_RETURN_IF_ERROR(MarkStep(store, run, step, now_unix_ns, report));
    std::set<std::string> candidates;
    RP_RETURN_IF_ERROR(RemoveRecords(store, run, step, &candidates, report));
    if (step.step >= keep_from_step) {
      // FreeOrphans takes them once no rank can refer to them any more.
      report->set_kept_payloads(report->kept_payloads() + candidates.size());
    } else {
      for (const std::string& key : candidates)
        RP_RETURN_IF_ERROR(
            FreePayload(store, *keys::ParsePayload(key), report));
    }
    // Sorts behind all that came before it in LevelDB's log: when this row is
    // gone after a crash, so is the rest.
    std::unique_ptr<IndexBatch> batch = store->index()->NewBatch();
    batch->Delete(keys::DeletedStep(run, step.step, step.incarnation));
    RP_RETURN_IF_ERROR(store->index()->Write(std::move(batch), /*sync=*/false));
  }
  return absl::OkStatus();
}

absl::Status DeleteRunRows(StoreHooks* store, uint32_t run,
                           v1::DeleteReport* report) {
  Index* const index = store->index();
  RP_RETURN_IF_ERROR(index->Scan(
      keys::TableOfRun('k', run),
      [&](absl::string_view, absl::string_view value) {
        v1::ChunkRow row;
        if (row.ParseFromArray(value.data(), static_cast<int>(value.size()))) {
          report->set_payload_bytes(report->payload_bytes() +
                                    row.length_bytes());
        }
        return absl::OkStatus();
      }));
  RP_ASSIGN_OR_RETURN(const uint64_t records, DeleteTable(store, 'c', run));
  RP_ASSIGN_OR_RETURN(const uint64_t steps, DeleteTable(store, 's', run));
  RP_ASSIGN_OR_RETURN(const uint64_t payloads, DeleteTable(store, 'p', run));
  report->set_records(report->records() + records);
  report->set_steps(report->steps() + steps);
  report->set_payloads(report->payloads() + payloads);
  for (const char table : {'f', 'k', 'i', 'd'})
    RP_RETURN_IF_ERROR(DeleteTable(store, table, run).status());
  for (const char table : {'c', 'f', 'k'})
    index->Compact(keys::TableOfRun(table, run));
  return absl::OkStatus();
}

absl::Status FreeOrphans(StoreHooks* store, uint32_t run,
                         v1::DeleteReport* report) {
  // Chunks rather than payload rows: half-sent payloads of ranks that are gone
  // are orphans too.
  std::string last;
  std::vector<std::string> orphans;
  RP_RETURN_IF_ERROR(store->index()->Scan(
      keys::TableOfRun('k', run),
      [&](absl::string_view key, absl::string_view) -> absl::Status {
        const absl::string_view payload = key.substr(0, key.size() - 8);
        if (payload == last) return absl::OkStatus();
        last = std::string(payload);
        RP_ASSIGN_OR_RETURN(
            const bool referred,
            HasReference(store->index(), *keys::ParsePayload(last)));
        if (!referred) orphans.push_back(last);
        return absl::OkStatus();
      }));
  for (const std::string& key : orphans)
    RP_RETURN_IF_ERROR(FreePayload(store, *keys::ParsePayload(key), report));
  return absl::OkStatus();
}

absl::Status ResumeDeletions(StoreHooks* store) {
  std::vector<std::string> pending;
  RP_RETURN_IF_ERROR(
      store->index()->Scan("d", [&](absl::string_view key, absl::string_view) {
        pending.emplace_back(key);
        return absl::OkStatus();
      }));
  v1::DeleteReport report;
  for (const std::string& key : pending) {
    const std::optional<uint32_t> run = keys::ParseRun(key);
    if (!run.has_value()) continue;
    const std::optional<keys::StepParts> step = keys::ParseStep(key);
    if (!step.has_value()) {
      RP_RETURN_IF_ERROR(DeleteRunRows(store, *run, &report));
      continue;
    }
    std::set<std::string> candidates;
    // Payloads are left to FreeOrphans: who is connected is not known here.
    RP_RETURN_IF_ERROR(RemoveRecords(
        store, *run, {step->step, step->incarnation}, &candidates, &report));
    std::unique_ptr<IndexBatch> batch = store->index()->NewBatch();
    batch->Delete(key);
    RP_RETURN_IF_ERROR(store->index()->Write(std::move(batch), /*sync=*/false));
  }
  return absl::OkStatus();
}

namespace {

struct LiveChunk {
  std::string key;
  v1::ChunkRow row;
};

// Copies chunks to the newest segment and points the index at the copies.
absl::Status MoveChunks(StoreHooks* store, absl::Span<const LiveChunk> chunks,
                        CompactResult* result) {
  std::vector<std::string> data(chunks.size());
  std::vector<ChunkToAppend> appends(chunks.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    RP_RETURN_IF_ERROR(store->payloads()->Read(chunks[i].row, &data[i]));
    const std::optional<keys::PayloadParts> payload =
        keys::ParsePayload(chunks[i].key);
    const std::optional<uint64_t> offset =
        keys::ParseChunkOffset(chunks[i].key);
    if (!payload.has_value() || !offset.has_value())
      return absl::DataLossError("a chunk has a damaged key");
    appends[i].run = payload->run;
    appends[i].digest = absl::string_view(chunks[i].key).substr(5, 16);
    appends[i].payload_length = payload->length;
    appends[i].offset = *offset;
    appends[i].data = data[i];
    appends[i].crc32c = chunks[i].row.crc32c();
    result->bytes_copied += data[i].size();
  }
  return store->Exclusive([&]() -> absl::Status {
    RP_ASSIGN_OR_RETURN(const std::vector<v1::ChunkRow> rows,
                        store->payloads()->Append(appends));
    // The copies must be safe before the originals may go.
    RP_RETURN_IF_ERROR(store->payloads()->Sync());
    std::unique_ptr<IndexBatch> batch = store->index()->NewBatch();
    for (size_t i = 0; i < chunks.size(); ++i) {
      RP_ASSIGN_OR_RETURN(const std::optional<std::string> now,
                          store->index()->Get(chunks[i].key));
      // Deleted meanwhile: the copy is dead at once.
      if (now != chunks[i].row.SerializeAsString()) continue;
      batch->Put(chunks[i].key, rows[i].SerializeAsString());
    }
    return store->index()->Write(std::move(batch), /*sync=*/false);
  });
}

}  // namespace

absl::StatusOr<CompactResult> CompactSegments(StoreHooks* store,
                                              const CompactOptions& options) {
  CompactResult result;
  // Taken before the rows: segments that come later are not touched.
  const std::vector<PayloadStore::SegmentInfo> segments =
      store->payloads()->Segments();
  std::map<uint64_t, uint64_t> live;
  const auto scan = [&](const std::function<void(absl::string_view,
                                                 const v1::ChunkRow&)>& fn) {
    return store->index()->Scan(
        "k",
        [&](absl::string_view key, absl::string_view value) -> absl::Status {
          v1::ChunkRow row;
          if (!row.ParseFromArray(value.data(),
                                  static_cast<int>(value.size()))) {
            return absl::DataLossError("the row of a chunk cannot be read");
          }
          fn(key, row);
          return absl::OkStatus();
        });
  };
  RP_RETURN_IF_ERROR(scan([&](absl::string_view, const v1::ChunkRow& row) {
    live[row.segment()] += PayloadStore::StoredBytes(row);
    result.live_bytes += PayloadStore::StoredBytes(row);
  }));
  std::set<uint64_t> victims;
  for (const PayloadStore::SegmentInfo& segment : segments) {
    result.total_bytes += segment.size_bytes;
    if (segment.closed &&
        static_cast<double>(live[segment.number]) <
            options.live_share * static_cast<double>(segment.size_bytes))
      victims.insert(segment.number);
    // An empty file that nothing was written to.
    if (segment.closed && segment.size_bytes == 0)
      victims.insert(segment.number);
  }
  if (victims.empty()) return result;
  // Rows may not point into a victim that is written to meanwhile: nothing is
  // ever appended to a closed segment.
  std::vector<LiveChunk> chunks;
  RP_RETURN_IF_ERROR(scan([&](absl::string_view key, const v1::ChunkRow& row) {
    if (victims.count(row.segment()) > 0)
      chunks.push_back({std::string(key), row});
  }));
  for (size_t first = 0; first < chunks.size();) {
    size_t last = first;
    uint64_t bytes = 0;
    while (last < chunks.size() && (last == first || bytes < kCopyBytes))
      bytes += chunks[last++].row.length_bytes();
    RP_RETURN_IF_ERROR(MoveChunks(
        store, absl::MakeConstSpan(chunks).subspan(first, last - first),
        &result));
    first = last;
  }
  // One sync makes all moves and deletions safe; only then may the files go.
  RP_RETURN_IF_ERROR(store->Exclusive([&] {
    return store->index()->Write(store->index()->NewBatch(), /*sync=*/true);
  }));
  for (const PayloadStore::SegmentInfo& segment : segments) {
    if (victims.count(segment.number) == 0) continue;
    RP_RETURN_IF_ERROR(store->payloads()->Remove(segment.number));
    ++result.segments_removed;
    result.bytes_removed += segment.size_bytes;
  }
  return result;
}

}  // namespace rankprobe
