// SPDX-License-Identifier: Apache-2.0
// Syncs of a store, and their count, by which an index that has gone back is known.
// Threads: thread-safe; commits go on during a sync. Failure: as in StoreCore.
#ifndef RANKPROBE_COLLECTOR_STORE_STORE_SYNC_H_
#define RANKPROBE_COLLECTOR_STORE_STORE_SYNC_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "collector/store/index.h"
#include "collector/store/store_core.h"

namespace rankprobe {

class StoreSync {
 public:
  explicit StoreSync(StoreCore* core) : core_(core) {}

  // At open: how many syncs the index has gone back behind what it had synced,
  // which is written down.
  absl::StatusOr<uint64_t> CompareCount();
  // Everything committed before the call is on the disk on return.
  absl::Status Sync();
  // Writes the batch, and how far the segments are synced, to the disk.
  absl::Status WriteMark(std::unique_ptr<IndexBatch> batch);

 private:
  absl::Status WriteMarkLocked(std::unique_ptr<IndexBatch> batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  StoreCore* const core_;
  absl::Mutex mutex_ ABSL_ACQUIRED_BEFORE(core_->mutex);
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STORE_SYNC_H_
