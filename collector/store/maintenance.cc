// SPDX-License-Identifier: Apache-2.0
#include "collector/store/maintenance.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/store/keys.h"
#include "collector/store/rollup_heads.h"
#include "collector/store/row_writer.h"
#include "collector/store/store.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/records/call_values.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {
namespace {

absl::StatusOr<uint64_t> DeleteTable(StoreHooks* store, char table,
                                     uint32_t run) {
  RowWriter rows(store->index());
  RP_RETURN_IF_ERROR(
      store->index()->Scan(keys::TableOfRun(table, run),
                           [&](absl::string_view key, absl::string_view) {
                             return rows.Delete(key);
                           }));
  RP_RETURN_IF_ERROR(rows.Finish(/*sync=*/false));
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

// Marks the steps deleted, so that nothing is added to them or read from them.
absl::Status MarkSteps(StoreHooks* store, uint32_t run,
                       const std::vector<StepToDelete>& steps,
                       int64_t now_unix_ns, v1::DeleteReport* report) {
  return store->Exclusive([&]() -> absl::Status {
    std::unique_ptr<IndexBatch> batch = store->index()->NewBatch();
    for (const StepToDelete& step : steps) {
      const std::string key = keys::Step(run, step.step, step.incarnation);
      RP_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                          store->index()->Get(key));
      v1::StepRow row;
      if (!bytes.has_value() || !row.ParseFromString(*bytes) ||
          row.deleted_unix_ns() != 0)
        continue;
      row.set_deleted_unix_ns(std::max<int64_t>(now_unix_ns, 1));
      batch->Put(key, row.SerializeAsString());
      batch->Put(keys::DeletedStep(run, step.step, step.incarnation), "");
      store->ForgetStep(run, step.step, step.incarnation);
      report->set_steps(report->steps() + 1);
    }
    return store->index()->Write(std::move(batch), /*sync=*/true);
  });
}

absl::Status RemoveRollup(Index* index, uint32_t run, const StepToDelete& step,
                          RowWriter* rows) {
  RP_RETURN_IF_ERROR(
      rows->Delete(keys::PendingRollup(run, step.step, step.incarnation)));
  RP_ASSIGN_OR_RETURN(const std::optional<v1::RollupHead> head,
                      FindRollupHead(index, run, step.incarnation, step.step));
  RP_ASSIGN_OR_RETURN(
      const std::vector<std::string> columns,
      RollupRowsOf(index, run, step.incarnation, step.step, head));
  for (const std::string& key : columns) RP_RETURN_IF_ERROR(rows->Delete(key));
  // Behind its columns: as long as it names them they can be found.
  return PutDeletedHead(index, run, step.incarnation, step.step, rows);
}

// Removes records and references of a marked step; its payloads go into
// `candidates`.
absl::Status RemoveRecords(StoreHooks* store, uint32_t run,
                           const StepToDelete& step,
                           std::set<std::string>* candidates,
                           v1::DeleteReport* report) {
  Index* const index = store->index();
  RowWriter rows(index);
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
            if (!status.ok() || payload.digest().size() != kPayloadDigestBytes)
              return;
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
  RP_RETURN_IF_ERROR(RemoveRollup(index, run, step, &rows));
  report->set_records(report->records() + records);
  return rows.Finish(/*sync=*/false);
}

}  // namespace

absl::Status DeleteSteps(StoreHooks* store, uint32_t run,
                         const std::vector<StepToDelete>& steps,
                         int64_t keep_from_step, int64_t now_unix_ns,
                         v1::DeleteReport* report) {
  RP_RETURN_IF_ERROR(MarkSteps(store, run, steps, now_unix_ns, report));
  for (const StepToDelete& step : steps) {
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
  for (const char table :
       {'u', 'h', 'a', 'n', 'o', 'j', 'f', 'k', 'q', 'i', 'd'})
    RP_RETURN_IF_ERROR(DeleteTable(store, table, run).status());
  return absl::OkStatus();
}

void CompactTablesOfRun(Index* index, uint32_t run) {
  for (const char table : {'c', 'f', 'k', 'a', 'h'})
    index->Compact(keys::TableOfRun(table, run));
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

absl::Status FreePartials(StoreHooks* store, uint32_t run, bool all) {
  std::set<std::string> prefixes;
  RP_RETURN_IF_ERROR(store->index()->Scan(
      keys::TableOfRun('q', run),
      [&](absl::string_view key, absl::string_view) -> absl::Status {
        const std::string prefix(key.substr(0, key.size() - 8));
        if (prefixes.count(prefix) > 0) return absl::OkStatus();
        const std::optional<keys::PayloadParts> payload =
            keys::ParsePayload(key);
        bool done = all || !payload.has_value();
        if (!done) {
          RP_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                              store->index()->Get(keys::Payload(
                                  run, payload->digest, payload->length)));
          v1::PayloadRow row;
          done = value.has_value() && row.ParseFromString(*value) &&
                 !row.corrupt() && !row.damaged();
        }
        if (done) prefixes.insert(prefix);
        return absl::OkStatus();
      }));
  for (const std::string& prefix : prefixes) {
    RP_RETURN_IF_ERROR(store->Exclusive([&]() -> absl::Status {
      std::unique_ptr<IndexBatch> batch = store->index()->NewBatch();
      RP_RETURN_IF_ERROR(store->index()->Scan(
          prefix, [&](absl::string_view key, absl::string_view) {
            batch->Delete(key);
            return absl::OkStatus();
          }));
      store->ForgetPartials(prefix);
      return store->index()->Write(std::move(batch), /*sync=*/false);
    }));
  }
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
      CompactTablesOfRun(store->index(), *run);
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

}  // namespace rankprobe
