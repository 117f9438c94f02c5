// SPDX-License-Identifier: Apache-2.0
#include "collector/store/store_sync.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/store/keys.h"
#include "collector/store/recovery.h"
#include "common/base/status_macros.h"

namespace rankprobe {

absl::StatusOr<uint64_t> StoreSync::CompareCount() {
  absl::MutexLock lock(&mutex_);
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                      core_->index->Get(keys::kSynced));
  const std::optional<keys::Synced> synced =
      keys::ParseSynced(value.value_or(""));
  if (synced.has_value()) count_ = synced->count;
  // Written after the index had synced its own count: never ahead of it.
  const uint64_t beside =
      SyncCountBeside(core_->options.data_dir, core_->file_system);
  if (beside <= count_) return 0;
  const uint64_t lost = beside - count_;
  std::unique_ptr<IndexBatch> batch = core_->index->NewBatch();
  batch->Put(keys::LostSyncs(beside),
             absl::StrCat("the index has lost synced writes: it is at sync ",
                          count_, ", sync ", beside,
                          " had been reached; what was stored between the two "
                          "is lost"));
  count_ = beside;
  RP_RETURN_IF_ERROR(core_->index->Write(std::move(batch), /*sync=*/true));
  return lost;
}

absl::Status StoreSync::Sync() {
  // One at a time, so that the counts are written in their order.
  absl::MutexLock sync_lock(&mutex_);
  {
    absl::MutexLock lock(&core_->mutex);
    RP_RETURN_IF_ERROR(core_->sticky);
  }
  // Commits go on meanwhile; what they add may be synced or not.
  absl::Status status = core_->segments->Sync();
  if (status.ok()) status = WriteMarkLocked(core_->index->NewBatch());
  if (status.ok()) return status;
  // Where the index waits for room nothing was synced and nothing is lost.
  absl::MutexLock lock(&core_->mutex);
  return core_->NoteWrite(status);
}

absl::Status StoreSync::WriteMark(std::unique_ptr<IndexBatch> batch) {
  absl::MutexLock lock(&mutex_);
  return WriteMarkLocked(std::move(batch));
}

absl::Status StoreSync::WriteMarkLocked(std::unique_ptr<IndexBatch> batch) {
  const PayloadStore::Place place = core_->segments->synced();
  batch->Put(keys::kSynced,
             keys::SyncedValue({place.segment, place.offset, ++count_}));
  RP_RETURN_IF_ERROR(core_->index->Write(std::move(batch), /*sync=*/true));
  // Kept beside the index, as a witness; nothing depends on it.
  NoteSyncCountBeside(core_->options.data_dir, core_->file_system, count_);
  return absl::OkStatus();
}

}  // namespace rankprobe
