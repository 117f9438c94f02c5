// SPDX-License-Identifier: Apache-2.0
#include "collector/store/maintenance.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "collector/store/keys.h"
#include "collector/store/rollup_heads.h"
#include "collector/store/row_writer.h"
#include "collector/store/rows.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/records/call_values.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {
namespace {

absl::StatusOr<uint64_t> DeleteTable(Index* index, char table, uint32_t run) {
  RowWriter rows(index);
  RP_RETURN_IF_ERROR(rows.DeleteAll(keys::TableOfRun(table, run)));
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

// Frees the payload unless a step refers to it or is about to.
absl::Status FreePayload(StoreCore* core, const keys::PayloadParts& payload,
                         v1::DeleteReport* report) {
  return core->Exclusive([&]() -> absl::Status {
    core->mutex.AssertHeld();
    Index* const index = core->index.get();
    RP_ASSIGN_OR_RETURN(const bool referred, HasReference(index, payload));
    if (referred) return absl::OkStatus();
    const std::string key =
        keys::Payload(payload.run, payload.digest, payload.length);
    if (core->payloads.TouchedSince(key, core->QuietSince())) {
      report->set_kept_payloads(report->kept_payloads() + 1);
      return absl::OkStatus();
    }
    std::unique_ptr<IndexBatch> batch = index->NewBatch();
    uint64_t bytes = 0;
    RP_RETURN_IF_ERROR(index->Scan(
        keys::ChunkPrefix(payload.run, payload.digest, payload.length),
        [&](absl::string_view chunk, absl::string_view value) {
          v1::ChunkRow row;
          if (ParseRow(value, &row)) bytes += row.length_bytes();
          batch->Delete(chunk);
          return absl::OkStatus();
        }));
    batch->Delete(key);
    RP_RETURN_IF_ERROR(index->Write(std::move(batch), /*sync=*/false));
    core->payloads.Erase(key);
    report->set_payloads(report->payloads() + 1);
    report->set_payload_bytes(report->payload_bytes() + bytes);
    return absl::OkStatus();
  });
}

// Marks the steps as deleted, so that nothing is added to them or read from
// them. Removes those that have changed from `*steps`.
absl::Status MarkSteps(StoreCore* core, uint32_t run,
                       std::vector<StepToDelete>* steps, int64_t now_unix_ns,
                       v1::DeleteReport* report) {
  return core->Exclusive([&]() -> absl::Status {
    core->mutex.AssertHeld();
    std::unique_ptr<IndexBatch> batch = core->index->NewBatch();
    std::vector<StepToDelete> chosen;
    chosen.reserve(steps->size());
    for (const StepToDelete& step : *steps) {
      const std::string key = keys::Step(run, step.step, step.incarnation);
      RP_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                          core->index->Get(key));
      v1::StepRow row;
      const bool readable = bytes.has_value() && ParseRow(*bytes, &row);
      if (step.records.has_value() &&
          (!readable || row.records() != *step.records))
        continue;
      chosen.push_back(step);
      if (!readable || row.deleted_unix_ns() != 0) continue;
      // 0 would mean that the step is not deleted.
      row.set_deleted_unix_ns(std::max<int64_t>(now_unix_ns, 1));
      batch->Put(key, row.SerializeAsString());
      batch->Put(keys::DeletedStep(run, step.step, step.incarnation), "");
      core->ForgetStep({run, step.step, step.incarnation});
      report->set_steps(report->steps() + 1);
    }
    *steps = std::move(chosen);
    // Synced before anything is deleted: after a crash ResumeDeletions finishes
    // the deletion.
    return core->index->Write(std::move(batch), /*sync=*/true);
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
  // The head is written after its columns are deleted: as long as it names them
  // they can be found.
  return PutDeletedHead(index, run, step.incarnation, step.step, rows);
}

// Removes records and references of a marked step; adds its payloads to
// `candidates`.
absl::Status RemoveRecords(StoreCore* core, uint32_t run,
                           const StepToDelete& step,
                           std::set<std::string>* candidates,
                           v1::DeleteReport* report) {
  Index* const index = core->index.get();
  RowWriter rows(index);
  uint64_t records = 0;
  RP_RETURN_IF_ERROR(index->Scan(
      keys::RecordPrefix(run, step.step, step.incarnation),
      [&](absl::string_view key, absl::string_view value) -> absl::Status {
        v1::Record record;
        absl::Status status;
        if (ParseRow(value, &record)) {
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

absl::Status DeleteSteps(StoreCore* core, uint32_t run,
                         std::vector<StepToDelete> steps,
                         int64_t keep_from_step, int64_t now_unix_ns,
                         v1::DeleteReport* report) {
  RP_RETURN_IF_ERROR(MarkSteps(core, run, &steps, now_unix_ns, report));
  for (const StepToDelete& step : steps) {
    std::set<std::string> candidates;
    RP_RETURN_IF_ERROR(RemoveRecords(core, run, step, &candidates, report));
    if (step.step >= keep_from_step) {
      // FreeOrphans frees them once no rank can refer to them any more.
      report->set_kept_payloads(report->kept_payloads() + candidates.size());
    } else {
      for (const std::string& key : candidates)
        RP_RETURN_IF_ERROR(FreePayload(core, *keys::ParsePayload(key), report));
    }
    // This row follows all earlier writes in LevelDB's log: if its deletion
    // survives a crash, so do they.
    RP_RETURN_IF_ERROR(
        DeleteRow(core->index.get(),
                  keys::DeletedStep(run, step.step, step.incarnation)));
  }
  return absl::OkStatus();
}

absl::Status DeleteRunRows(StoreCore* core, uint32_t run,
                           v1::DeleteReport* report) {
  Index* const index = core->index.get();
  RP_RETURN_IF_ERROR(
      index->Scan(keys::TableOfRun('k', run),
                  [&](absl::string_view, absl::string_view value) {
                    v1::ChunkRow row;
                    if (ParseRow(value, &row)) {
                      report->set_payload_bytes(report->payload_bytes() +
                                                row.length_bytes());
                    }
                    return absl::OkStatus();
                  }));
  RP_ASSIGN_OR_RETURN(const uint64_t records, DeleteTable(index, 'c', run));
  RP_ASSIGN_OR_RETURN(const uint64_t steps, DeleteTable(index, 's', run));
  RP_ASSIGN_OR_RETURN(const uint64_t payloads, DeleteTable(index, 'p', run));
  report->set_records(report->records() + records);
  report->set_steps(report->steps() + steps);
  report->set_payloads(report->payloads() + payloads);
  // Table d is last: its row resumes a deletion that a crash interrupts.
  for (const char table :
       {'u', 'h', 'a', 'n', 'o', 'j', 'f', 'k', 'q', 'i', 'd'})
    RP_RETURN_IF_ERROR(DeleteTable(index, table, run).status());
  return absl::OkStatus();
}

void CompactTablesOfRun(Index* index, uint32_t run) {
  for (const char table : {'c', 'f', 'k', 'a', 'h'})
    index->Compact(keys::TableOfRun(table, run));
}

absl::Status FreeOrphans(StoreCore* core, uint32_t run,
                         v1::DeleteReport* report) {
  // Scans chunks instead of payload rows, because incomplete payloads of ranks
  // that no longer exist are orphans too.
  std::string last;
  std::vector<std::string> orphans;
  RP_RETURN_IF_ERROR(core->index->Scan(
      keys::TableOfRun('k', run),
      [&](absl::string_view key, absl::string_view) -> absl::Status {
        const absl::string_view payload = key.substr(0, key.size() - 8);
        if (payload == last) return absl::OkStatus();
        last = std::string(payload);
        RP_ASSIGN_OR_RETURN(
            const bool referred,
            HasReference(core->index.get(), *keys::ParsePayload(last)));
        if (!referred) orphans.push_back(last);
        return absl::OkStatus();
      }));
  for (const std::string& key : orphans)
    RP_RETURN_IF_ERROR(FreePayload(core, *keys::ParsePayload(key), report));
  return absl::OkStatus();
}

absl::Status FreePartials(StoreCore* core, uint32_t run, bool all) {
  std::set<std::string> prefixes;
  RP_RETURN_IF_ERROR(core->index->Scan(
      keys::TableOfRun('q', run),
      [&](absl::string_view key, absl::string_view) -> absl::Status {
        const std::string prefix(key.substr(0, key.size() - 8));
        if (prefixes.count(prefix) > 0) return absl::OkStatus();
        const std::optional<keys::PayloadParts> payload =
            keys::ParsePayload(key);
        bool done = all || !payload.has_value();
        if (!done) {
          RP_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                              core->index->Get(keys::Payload(
                                  run, payload->digest, payload->length)));
          v1::PayloadRow row;
          done = value.has_value() && ParseRow(*value, &row) &&
                 !row.corrupt() && !row.damaged();
        }
        if (done) prefixes.insert(prefix);
        return absl::OkStatus();
      }));
  for (const std::string& prefix : prefixes) {
    RP_RETURN_IF_ERROR(core->Exclusive([&]() -> absl::Status {
      core->mutex.AssertHeld();
      std::unique_ptr<IndexBatch> batch = core->index->NewBatch();
      RP_RETURN_IF_ERROR(core->index->Scan(
          prefix, [&](absl::string_view key, absl::string_view) {
            batch->Delete(key);
            return absl::OkStatus();
          }));
      core->payloads.ErasePartials(prefix);
      return core->index->Write(std::move(batch), /*sync=*/false);
    }));
  }
  return absl::OkStatus();
}

absl::Status ResumeDeletions(StoreCore* core) {
  std::vector<std::string> pending;
  RP_RETURN_IF_ERROR(
      core->index->Scan("d", [&](absl::string_view key, absl::string_view) {
        pending.emplace_back(key);
        return absl::OkStatus();
      }));
  v1::DeleteReport report;
  for (const std::string& key : pending) {
    const std::optional<uint32_t> run = keys::ParseRun(key);
    if (!run.has_value()) continue;
    const std::optional<keys::StepParts> step = keys::ParseStep(key);
    if (!step.has_value()) {
      RP_RETURN_IF_ERROR(DeleteRunRows(core, *run, &report));
      CompactTablesOfRun(core->index.get(), *run);
      continue;
    }
    std::set<std::string> candidates;
    // Payloads are left to FreeOrphans, because the connected ranks are not
    // known here.
    RP_RETURN_IF_ERROR(RemoveRecords(
        core, *run, {step->step, step->incarnation}, &candidates, &report));
    RP_RETURN_IF_ERROR(DeleteRow(core->index.get(), key));
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
