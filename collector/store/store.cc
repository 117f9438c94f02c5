// SPDX-License-Identifier: Apache-2.0
#include "collector/store/store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/store/keys.h"
#include "collector/store/recovery.h"
#include "collector/store/store_impl.h"
#include "collector/store/upgrade.h"

namespace rankprobe {

absl::Status StoreImpl::Initialise() {
  absl::MutexLock lock(&mutex_);
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> schema,
                      index_->Get(keys::kSchema));
  if (const absl::Status status =
          BringUpToDate(index_.get(), schema.value_or(""));
      !status.ok()) {
    return absl::Status(
        status.code(), absl::StrCat(options_.data_dir, ": ", status.message()));
  }
  RP_RETURN_IF_ERROR(LoadRuns());
  RP_RETURN_IF_ERROR(LoadPendingRollups());
  recovery_.torn_bytes_dropped = payloads_->recovery().torn_bytes_dropped;
  recovery_.segments = payloads_->recovery().segments;
  if (schema.has_value() && !clean_) RP_RETURN_IF_ERROR(RecoverChunks());
  RP_RETURN_IF_ERROR(CompareSyncCount());
  RP_RETURN_IF_ERROR(NameSegments(schema.value_or("")));
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  batch->Delete(keys::kClean);
  const keys::Synced synced = NextSynced();
  batch->Put(keys::kSynced, keys::SyncedValue(synced));
  RP_RETURN_IF_ERROR(index_->Write(std::move(batch), /*sync=*/true));
  NoteSyncCount(synced.count);
  return absl::OkStatus();
}

absl::Status StoreImpl::LoadRuns() {
  RP_RETURN_IF_ERROR(
      index_->Scan("r", [this](absl::string_view key, absl::string_view value) {
        mutex_.AssertHeld();
        v1::RunRow row;
        if (!row.ParseFromArray(value.data(), static_cast<int>(value.size()))) {
          return absl::DataLossError("the row of a run cannot be read");
        }
        last_run_id_ = std::max(last_run_id_, row.id());
        runs_[std::string(key.substr(1))] = std::move(row);
        return absl::OkStatus();
      }));
  // The number of a run that was deleted is not used again.
  return index_->Scan("t", [this](absl::string_view, absl::string_view value) {
    mutex_.AssertHeld();
    v1::RunTombstone row;
    if (row.ParseFromArray(value.data(), static_cast<int>(value.size())))
      last_run_id_ = std::max(last_run_id_, row.run().id());
    return absl::OkStatus();
  });
}

absl::StatusOr<v1::RunRow*> StoreImpl::LoadRun(const std::string& run,
                                               bool create) {
  const auto it = runs_.find(run);
  if (it != runs_.end()) return &it->second;
  if (!create)
    return absl::NotFoundError(absl::StrCat("no run named \"", run, "\""));
  v1::RunRow row;
  row.set_id(++last_run_id_);
  row.set_created_unix_ns(absl::ToUnixNanos(clock_->Now()));
  row.set_updated_unix_ns(row.created_unix_ns());
  row.set_summarised(true);
  return &(runs_[run] = std::move(row));
}

absl::StatusOr<v1::IncarnationRow*> StoreImpl::LoadIncarnation(
    uint32_t run, const v1::Identity& identity) {
  const RunIncarnation id(run, identity.incarnation());
  const auto it = incarnations_.find(id);
  if (it != incarnations_.end()) return &it->second;
  RP_ASSIGN_OR_RETURN(
      std::optional<v1::IncarnationRow> row,
      GetMessage<v1::IncarnationRow>(
          index_.get(), keys::Incarnation(run, identity.incarnation())));
  if (!row.has_value()) {
    row.emplace();
    *row->mutable_identity() = identity;
  }
  return &(incarnations_[id] = *std::move(row));
}

absl::StatusOr<v1::StepRow*> StoreImpl::LoadStep(const StepId& id) {
  const auto it = steps_.find(id);
  if (it != steps_.end()) return &it->second;
  RP_ASSIGN_OR_RETURN(
      std::optional<v1::StepRow> row,
      GetMessage<v1::StepRow>(
          index_.get(),
          keys::Step(std::get<0>(id), std::get<1>(id), std::get<2>(id))));
  return &(steps_[id] = row.has_value() ? *std::move(row) : v1::StepRow());
}

absl::Status StoreImpl::SavePlan(const std::string& run,
                                 const v1::PlanSpec& plan) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(sticky_);
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  batch->Put(keys::Plan(run), plan.SerializeAsString());
  return index_->Write(std::move(batch), /*sync=*/false);
}

absl::Status StoreImpl::SyncPlans() {
  // Without the lock: every frame and every Hello needs it.
  return index_->Sync();
}

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const StoreOptions& options,
                                                   FileSystem* file_system,
                                                   const Clock* clock) {
  RP_RETURN_IF_ERROR(file_system->CreateDirectories(options.data_dir));
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<FileLock> lock,
      file_system->Lock(absl::StrCat(options.data_dir, "/LOCK")));
  RP_RETURN_IF_ERROR(CheckRebuildEnded(options.data_dir, file_system));
  RP_ASSIGN_OR_RETURN(const bool fresh, IsFresh(options.data_dir, file_system));
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<Index> index,
      OpenLevelDbIndex({absl::StrCat(options.data_dir, "/index"),
                        options.leveldb_write_buffer_bytes,
                        options.leveldb_cache_bytes, file_system, fresh}));
  RP_ASSIGN_OR_RETURN(
      const PayloadStore::Known known,
      KnownSegments(index.get(), absl::StrCat(options.data_dir, "/segments"),
                    file_system));
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<PayloadStore> payloads,
      PayloadStore::Open({absl::StrCat(options.data_dir, "/segments"),
                          options.segment_bytes, options.compress_payloads},
                         file_system, known));
  auto store = std::make_unique<StoreImpl>(options, file_system, clock,
                                           std::move(lock), std::move(index),
                                           std::move(payloads), known.clean);
  RP_RETURN_IF_ERROR(store->Initialise());
  return store;
}

}  // namespace rankprobe
