// SPDX-License-Identifier: Apache-2.0
// Commits of frames to the index and the segments of a store, and their syncs.
// Threads: thread-safe. Failure: as in FrameStore; what a failed commit had
// changed in the tables is undone.
#ifndef RANKPROBE_COLLECTOR_STORE_STORE_WRITER_H_
#define RANKPROBE_COLLECTOR_STORE_STORE_WRITER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "collector/store/commit_work.h"
#include "collector/store/frame_store.h"
#include "collector/store/recovery.h"
#include "collector/store/store_core.h"

namespace rankprobe {

struct StoreTotals {
  uint64_t runs = 0;
  uint64_t records = 0;
  uint64_t stored_payload_bytes = 0;
  uint64_t offered_payload_bytes = 0;
  // Lost records by reason, with the ledger's names, since this process began.
  std::map<std::string, uint64_t> lost_records;
};

class StoreWriter : public FrameStore {
 public:
  explicit StoreWriter(StoreCore* core) : core_(core) {}

  // Called at open, before any commit. `may_have_begun`: an earlier process has
  // not closed the archive, and may have begun a segment without naming it.
  absl::Status Start(bool may_have_begun, RecoveryReport* recovery);
  // Called at the end, after everything else.
  void Close();

  absl::Status Commit(absl::Span<const FrameToStore> frames) override;
  absl::Status Sync() override;
  bool KeepPayload(const std::string& run, absl::string_view digest,
                   uint64_t length_bytes) override;

  // Returns sums over all runs; cheap.
  StoreTotals Totals();

 private:
  absl::Status CheckSpace(uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);
  // INVALID_ARGUMENT for frames that may never be stored; changes nothing.
  absl::Status CheckFrames(absl::Span<const FrameToStore> frames)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);
  absl::Status AddFrame(const FrameToStore& f, CommitWork* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);
  absl::Status AppendChunks(CommitWork* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);
  void PutRows(CommitWork* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);
  // Restores the tables after `work` was not written.
  void Undo(CommitWork* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mutex);

  // Called at open. Returns how many synced writes the index has lost, and
  // writes that down.
  absl::StatusOr<uint64_t> CompareSyncCount()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(sync_mutex_);
  // Writes the batch, and how far the segments are synced, with a sync.
  absl::Status WriteMark(std::unique_ptr<IndexBatch> batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(sync_mutex_);

  StoreCore* const core_;
  // Serialises syncs; commits continue meanwhile.
  absl::Mutex sync_mutex_ ABSL_ACQUIRED_BEFORE(core_->mutex);
  uint64_t sync_count_ ABSL_GUARDED_BY(sync_mutex_) = 0;
  // Bytes that may be written before the free disk space is read again.
  uint64_t space_allowance_ ABSL_GUARDED_BY(core_->mutex) = 0;
  // Segments of table g.
  std::set<uint64_t> named_segments_ ABSL_GUARDED_BY(core_->mutex);
  // Since the store was opened, by LossReason.
  std::map<int, uint64_t> lost_records_ ABSL_GUARDED_BY(core_->mutex);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STORE_WRITER_H_
