// SPDX-License-Identifier: Apache-2.0
#include "collector/store/store.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/store/recovery.h"
#include "common/base/status_macros.h"

namespace rankprobe {

absl::Status Store::Recover(bool clean) {
  Index* const index = core_->index.get();
  PayloadStore* const segments = core_->segments.get();
  const absl::StatusOr<bool> is_new = CheckFormat(index);
  if (!is_new.ok()) {
    return absl::Status(
        is_new.status().code(),
        absl::StrCat(core_->options.data_dir, ": ", is_new.status().message()));
  }
  {
    absl::MutexLock lock(&core_->mutex);
    RP_RETURN_IF_ERROR(core_->runs.Load());
    RP_RETURN_IF_ERROR(core_->series.Load());
  }
  recovery_.torn_bytes_dropped = segments->recovery().torn_bytes_dropped;
  recovery_.segments = segments->recovery().segments;
  if (!*is_new && !clean)
    RP_RETURN_IF_ERROR(RecoverChunks(index, segments, &recovery_));
  RP_RETURN_IF_ERROR(Start(/*may_have_begun=*/!*is_new && !clean, &recovery_));
  is_open_ = true;
  return absl::OkStatus();
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
  std::unique_ptr<Store> store(new Store(
      std::make_unique<StoreCore>(options, file_system, clock, std::move(lock),
                                  std::move(index), std::move(payloads))));
  RP_RETURN_IF_ERROR(store->Recover(known.clean));
  return store;
}

}  // namespace rankprobe
