// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/store/backup.h"
#include "collector/store/keys.h"
#include "collector/store/store_impl.h"
#include "collector/store/verify.h"
#include "common/base/dedup_window.h"

namespace rankprobe {

absl::Status StoreImpl::Exclusive(const std::function<absl::Status()>& fn) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(sticky_);
  absl::Status status = fn();
  // No space leaves nothing behind and may pass; what else failed is unknown.
  if (!status.ok() && !absl::IsResourceExhausted(status) &&
      !absl::IsFailedPrecondition(status))
    sticky_ = status;
  return status;
}

void StoreImpl::ForgetPayload(const std::string& payload_key) {
  mutex_.AssertHeld();
  whole_.erase(payload_key);
}

void StoreImpl::ForgetPartials(const std::string& prefix) {
  mutex_.AssertHeld();
  partials_.Erase(prefix);
}

void StoreImpl::FoundDamaged(const std::string& chunk_key,
                             const v1::ChunkRow& row) {
  std::string payload = chunk_key.substr(0, chunk_key.size() - 8);
  payload[0] = 'p';
  // An unfinished payload is dropped when its sender goes on.
  if (chunk_key[0] == 'k') MarkDamaged(payload, row);
}

void StoreImpl::ForgetStep(uint32_t run, int64_t step, uint64_t incarnation) {
  mutex_.AssertHeld();
  const StepId id(run, step, incarnation);
  steps_.erase(id);
  pending_rollups_.erase(id);
  rollups_aside_.erase(id);
  open_rollups_.erase(id);
  TouchTile(run, 1, incarnation, static_cast<uint64_t>(step) >> kSummaryBits);
}

bool StoreImpl::OfferedLately(const std::string& payload_key) {
  mutex_.AssertHeld();
  const auto it = touched_.find(payload_key);
  return it != touched_.end() && IsRecent(it->second);
}

bool StoreImpl::IsRecent(int64_t monotonic_nanos) const {
  return clock_->MonotonicNanos() - monotonic_nanos <
         absl::ToInt64Nanoseconds(options_.quiet_time);
}

absl::StatusOr<v1::VerifyReport> StoreImpl::Verify(
    const v1::VerifyRequest& request,
    const std::function<absl::Status(const v1::VerifyReport&)>& progress) {
  VerifyHooks hooks;
  hooks.damaged = [this](const std::string& key, const v1::ChunkRow& row) {
    MarkDamaged(key, row);
  };
  hooks.sound = [this](const std::string& key) { MarkSound(key); };
  hooks.progress = progress;
  return VerifyArchive(index_.get(), payloads_.get(), request, hooks);
}

absl::StatusOr<int64_t> StoreImpl::KeepFromStep(
    const std::string& run, const absl::flat_hash_set<uint64_t>& live,
    int64_t keep_steps) {
  uint32_t id = 0;
  absl::flat_hash_set<uint64_t> heard;
  {
    absl::MutexLock lock(&mutex_);
    RP_ASSIGN_OR_RETURN(const v1::RunRow* const row,
                        LoadRun(run, /*create=*/false));
    id = row->id();
    for (auto it = heard_.lower_bound({id, 0});
         it != heard_.end() && it->first.first == id; ++it) {
      if (IsRecent(it->second)) heard.insert(it->first.second);
    }
  }
  // What came before this process is told by the wall clock alone.
  const int64_t since = absl::ToUnixNanos(clock_->Now() - options_.quiet_time);
  int64_t keep_from = INT64_MAX;
  RP_RETURN_IF_ERROR(ForEachIncarnation(run, [&](const v1::IncarnationRow& r) {
    if (live.contains(r.identity().incarnation()) ||
        heard.contains(r.identity().incarnation()) ||
        r.updated_unix_ns() > since)
      keep_from = std::min(keep_from, r.last_step() - keep_steps);
  }));
  return keep_from;
}

absl::StatusOr<v1::DeleteReport> StoreImpl::DeleteRun(const std::string& name) {
  v1::DeleteReport report;
  uint32_t id = 0;
  RP_RETURN_IF_ERROR(Exclusive([&]() -> absl::Status {
    mutex_.AssertHeld();
    const v1::RunRow row = runs_[name];
    id = row.id();
    v1::RunTombstone tombstone;
    tombstone.set_deleted_unix_ns(absl::ToUnixNanos(clock_->Now()));
    *tombstone.mutable_run() = row;
    std::unique_ptr<IndexBatch> batch = index_->NewBatch();
    batch->Delete(keys::Run(name));
    batch->Put(keys::DeletedRun(id), "");
    batch->Put(keys::Tombstone(name), tombstone.SerializeAsString());
    RP_RETURN_IF_ERROR(index_->Write(std::move(batch), /*sync=*/true));
    runs_.erase(name);
    ForgetRun(id);
    return absl::OkStatus();
  }));
  RP_RETURN_IF_ERROR(DeleteRunRows(this, id, &report));
  return report;
}

absl::StatusOr<v1::DeleteReport> StoreImpl::Delete(
    const DeleteOptions& options) {
  absl::MutexLock lock(&maintenance_mutex_);
  absl::MutexLock rollup_lock(&rollup_mutex_);
  uint32_t id = 0;
  {
    absl::MutexLock run_lock(&mutex_);
    RP_ASSIGN_OR_RETURN(const v1::RunRow* const row,
                        LoadRun(options.run, /*create=*/false));
    id = row->id();
  }
  v1::DeleteReport report;
  if (!options.steps.has_value()) {
    bool live = false;
    RP_RETURN_IF_ERROR(
        ForEachIncarnation(options.run, [&](const v1::IncarnationRow& row) {
          live = live || options.live_incarnations.contains(
                             row.identity().incarnation());
        }));
    if (live) {
      return absl::FailedPreconditionError(
          absl::StrCat("run \"", options.run,
                       "\" has connected ranks; end them, or delete steps"));
    }
    RP_ASSIGN_OR_RETURN(report, DeleteRun(options.run));
  } else {
    RP_ASSIGN_OR_RETURN(const std::vector<v1::StepInfo> all,
                        ListSteps(options.run));
    std::vector<StepToDelete> steps;
    for (const v1::StepInfo& step : all) {
      if (!step.deleted() && options.steps->count(step.step()) > 0)
        steps.push_back({step.step(), step.incarnation()});
    }
    if (steps.empty())
      return absl::NotFoundError("none of these steps is in the archive");
    RP_ASSIGN_OR_RETURN(const int64_t keep_from,
                        KeepFromStep(options.run, options.live_incarnations,
                                     options.keep_steps));
    RP_RETURN_IF_ERROR(DeleteSteps(this, id, steps, keep_from,
                                   absl::ToUnixNanos(clock_->Now()), &report));
  }
  if (options.reclaim) {
    // Before the tables: on a full disk those need the room that this gives.
    RP_ASSIGN_OR_RETURN(const CompactResult compacted,
                        CompactSegments(this, {options_.min_live_share}));
    report.set_file_bytes(compacted.bytes_removed);
  }
  if (options.reclaim || !options.steps.has_value())
    CompactTablesOfRun(index_.get(), id);
  return report;
}

absl::StatusOr<GarbageReport> StoreImpl::CollectGarbage(
    const absl::flat_hash_set<uint64_t>& live_incarnations,
    uint64_t target_bytes) {
  absl::MutexLock lock(&maintenance_mutex_);
  {
    // No summary is made of what is half gone.
    absl::MutexLock rollup_lock(&rollup_mutex_);
    RP_RETURN_IF_ERROR(ResumeDeletions(this));
  }
  std::map<std::string, uint32_t> runs;
  {
    absl::MutexLock run_lock(&mutex_);
    for (const auto& [name, row] : runs_) runs[name] = row.id();
    absl::erase_if(touched_,
                   [this](const auto& t) { return !IsRecent(t.second); });
    std::erase_if(heard_,
                  [this](const auto& h) { return !IsRecent(h.second); });
  }
  GarbageReport report;
  v1::DeleteReport freed;
  for (const auto& [name, id] : runs) {
    const absl::StatusOr<int64_t> keep_from =
        KeepFromStep(name, live_incarnations, kCollectorKeepsSteps);
    // Only a run that nobody writes to any more has certain orphans.
    const bool quiet = keep_from.ok() && *keep_from == INT64_MAX;
    RP_RETURN_IF_ERROR(FreePartials(this, id, /*all=*/quiet));
    if (quiet) RP_RETURN_IF_ERROR(FreeOrphans(this, id, &freed));
  }
  RP_ASSIGN_OR_RETURN(
      const CompactResult compacted,
      CompactSegments(this, {options_.min_live_share, target_bytes}));
  report.orphans_freed = freed.payloads();
  report.segments_removed = compacted.segments_removed;
  report.bytes_removed = compacted.bytes_removed;
  report.bytes_copied = compacted.bytes_copied;
  report.live_bytes = compacted.live_bytes;
  report.total_bytes = compacted.total_bytes;
  report.unknown_segments = compacted.unknown_segments;
  return report;
}

absl::StatusOr<v1::BackupReport> StoreImpl::Backup(FileSystem* target,
                                                   const std::string& directory,
                                                   bool copy) {
  // Nothing may be deleted or moved while it is copied.
  absl::MutexLock lock(&maintenance_mutex_);
  RP_RETURN_IF_ERROR(Sync());
  return BackupArchive(index_.get(), payloads_.get(), file_system_, target,
                       directory, copy);
}

}  // namespace rankprobe
