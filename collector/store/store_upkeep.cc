// SPDX-License-Identifier: Apache-2.0
#include "collector/store/store_upkeep.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collector/store/backup.h"
#include "collector/store/keys.h"
#include "collector/store/verify.h"
#include "common/base/dedup_window.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Tables of rollups and summaries, without names and layouts, which belong to
// the run.
constexpr const char* kRollupTables[] = {"a", "h", "j"};

}  // namespace

absl::StatusOr<v1::VerifyReport> StoreUpkeep::Verify(
    const v1::VerifyRequest& request,
    const std::function<absl::Status(const v1::VerifyReport&)>& progress) {
  return VerifyArchive(core_, request, progress);
}

absl::StatusOr<int64_t> StoreUpkeep::KeepFromStep(
    const std::string& run, const absl::flat_hash_set<uint64_t>& live,
    int64_t keep_steps) {
  absl::flat_hash_set<uint64_t> heard;
  {
    absl::MutexLock lock(&core_->mutex);
    RP_ASSIGN_OR_RETURN(const v1::RunRow* const row, core_->runs.Find(run));
    heard = core_->runs.HeardSince(row->id(), core_->QuietSince());
  }
  // For events before this process there is only the wall clock.
  const int64_t since =
      absl::ToUnixNanos(core_->clock->Now() - core_->options.quiet_time);
  int64_t keep_from = INT64_MAX;
  RP_RETURN_IF_ERROR(
      reader_->ForEachIncarnation(run, [&](const v1::IncarnationRow& r) {
        if (live.contains(r.identity().incarnation()) ||
            heard.contains(r.identity().incarnation()) ||
            r.updated_unix_ns() > since)
          keep_from = std::min(keep_from, r.last_step() - keep_steps);
      }));
  return keep_from;
}

absl::StatusOr<v1::DeleteReport> StoreUpkeep::DeleteRun(
    const DeleteOptions& options) {
  bool live = false;
  RP_RETURN_IF_ERROR(reader_->ForEachIncarnation(
      options.run, [&](const v1::IncarnationRow& row) {
        live = live ||
               options.live_incarnations.contains(row.identity().incarnation());
      }));
  if (live) {
    return absl::FailedPreconditionError(
        absl::StrCat("run \"", options.run,
                     "\" has connected ranks; end them, or delete steps"));
  }
  uint32_t id = 0;
  RP_RETURN_IF_ERROR(core_->Exclusive([&]() -> absl::Status {
    core_->mutex.AssertHeld();
    RP_ASSIGN_OR_RETURN(const v1::RunRow* const row,
                        core_->runs.Find(options.run));
    id = row->id();
    v1::RunTombstone tombstone;
    tombstone.set_deleted_unix_ns(absl::ToUnixNanos(core_->clock->Now()));
    *tombstone.mutable_run() = *row;
    std::unique_ptr<IndexBatch> batch = core_->index->NewBatch();
    batch->Delete(keys::Run(options.run));
    batch->Put(keys::DeletedRun(id), "");
    batch->Put(keys::Tombstone(options.run), tombstone.SerializeAsString());
    RP_RETURN_IF_ERROR(core_->index->Write(std::move(batch), /*sync=*/true));
    core_->ForgetRun(options.run, id);
    return absl::OkStatus();
  }));
  v1::DeleteReport report;
  RP_RETURN_IF_ERROR(DeleteRunRows(core_, id, &report));
  return report;
}

absl::StatusOr<v1::DeleteReport> StoreUpkeep::DeleteStepsOf(
    const DeleteOptions& options, uint32_t run) {
  RP_ASSIGN_OR_RETURN(const std::vector<v1::StepInfo> all,
                      reader_->ListSteps(options.run));
  std::vector<StepToDelete> steps;
  for (const v1::StepInfo& step : all) {
    if (step.deleted() || !options.steps->contains(step.step())) continue;
    StepToDelete chosen{step.step(), step.incarnation(), std::nullopt};
    if (options.unchanged.has_value()) {
      const auto known =
          options.unchanged->find({step.step(), step.incarnation()});
      if (known == options.unchanged->end()) continue;
      chosen.records = known->second;
    }
    steps.push_back(chosen);
  }
  if (steps.empty())
    return absl::NotFoundError("none of these steps is in the archive");
  RP_ASSIGN_OR_RETURN(
      const int64_t keep_from,
      KeepFromStep(options.run, options.live_incarnations, options.keep_steps));
  v1::DeleteReport report;
  RP_RETURN_IF_ERROR(DeleteSteps(core_, run, steps, keep_from,
                                 absl::ToUnixNanos(core_->clock->Now()),
                                 &report));
  return report;
}

absl::StatusOr<v1::DeleteReport> StoreUpkeep::Delete(
    const DeleteOptions& options) {
  absl::MutexLock lock(&mutex_);
  absl::MutexLock rollup_lock(&core_->rollup_mutex);
  RP_ASSIGN_OR_RETURN(const uint32_t id, core_->RunNumber(options.run));
  RP_ASSIGN_OR_RETURN(v1::DeleteReport report, options.steps.has_value()
                                                   ? DeleteStepsOf(options, id)
                                                   : DeleteRun(options));
  if (options.reclaim) {
    // Segments first: on a full disk the compaction of the tables needs the
    // space that this returns.
    RP_ASSIGN_OR_RETURN(const GarbageReport compacted,
                        CompactSegments(core_, /*target_bytes=*/0));
    report.set_file_bytes(compacted.bytes_removed);
  }
  if (options.reclaim || !options.steps.has_value())
    CompactTablesOfRun(core_->index.get(), id);
  return report;
}

absl::StatusOr<GarbageReport> StoreUpkeep::CollectGarbage(
    const absl::flat_hash_set<uint64_t>& live_incarnations,
    uint64_t target_bytes) {
  absl::MutexLock lock(&mutex_);
  {
    // Held so that no summary is made of a partly deleted step.
    absl::MutexLock rollup_lock(&core_->rollup_mutex);
    RP_RETURN_IF_ERROR(ResumeDeletions(core_));
  }
  std::map<std::string, uint32_t> runs;
  {
    absl::MutexLock run_lock(&core_->mutex);
    for (const auto& [name, row] : core_->runs.rows()) runs[name] = row.id();
    core_->payloads.ForgetTouched(core_->QuietSince());
    core_->runs.ForgetHeard(core_->QuietSince());
  }
  v1::DeleteReport freed;
  for (const auto& [name, id] : runs) {
    const absl::StatusOr<int64_t> keep_from =
        KeepFromStep(name, live_incarnations, kCollectorKeepsSteps);
    // Orphans are certain only in a run that no process writes to any more.
    const bool quiet = keep_from.ok() && *keep_from == INT64_MAX;
    RP_RETURN_IF_ERROR(FreePartials(core_, id, /*all=*/quiet));
    if (quiet) RP_RETURN_IF_ERROR(FreeOrphans(core_, id, &freed));
  }
  RP_ASSIGN_OR_RETURN(GarbageReport report,
                      CompactSegments(core_, target_bytes));
  report.orphans_freed = freed.payloads();
  return report;
}

absl::StatusOr<v1::BackupReport> StoreUpkeep::Backup(
    FileSystem* target, const std::string& directory, bool copy) {
  // Held because nothing may be deleted or moved during the copy.
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(frames_->Sync());
  return BackupArchive(core_->index.get(), core_->segments.get(),
                       core_->file_system, target, directory, copy);
}

uint64_t StoreUpkeep::SegmentBytes() { return core_->segments->TotalBytes(); }

uint64_t StoreUpkeep::RollupBytes() {
  uint64_t bytes = 0;
  for (const char* const table : kRollupTables)
    bytes += core_->index->ApproximateBytes(table);
  return bytes;
}

void StoreUpkeep::CompactRollups() {
  for (const char* const table : kRollupTables) core_->index->Compact(table);
}

}  // namespace rankprobe
