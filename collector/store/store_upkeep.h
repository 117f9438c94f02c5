// SPDX-License-Identifier: Apache-2.0
// Verification, deletion, garbage collection and backup of a store.
// Threads: thread-safe; one job at a time, others wait, and ingest and reading
// continue. Failure: the first error; what was done stays done.
#ifndef RANKPROBE_COLLECTOR_STORE_STORE_UPKEEP_H_
#define RANKPROBE_COLLECTOR_STORE_STORE_UPKEEP_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "collector/store/archive_reader.h"
#include "collector/store/archive_upkeep.h"
#include "collector/store/frame_store.h"
#include "collector/store/maintenance.h"
#include "collector/store/store_core.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

class StoreUpkeep : public ArchiveUpkeep {
 public:
  StoreUpkeep(StoreCore* core, ArchiveReader* reader, FrameStore* frames)
      : core_(core), reader_(reader), frames_(frames) {}

  absl::StatusOr<v1::VerifyReport> Verify(
      const v1::VerifyRequest& request,
      const std::function<absl::Status(const v1::VerifyReport&)>& progress)
      override;
  absl::StatusOr<v1::DeleteReport> Delete(
      const DeleteOptions& options) override;
  // Returns the first step whose payloads must be kept when steps are deleted,
  // because a rank may assume that the collector has them. INT64_MAX if no
  // process writes to the run any more.
  absl::StatusOr<int64_t> KeepFromStep(
      const std::string& run, const absl::flat_hash_set<uint64_t>& live,
      int64_t keep_steps);
  // Finishes deletions, frees unreferenced payloads, and rewrites segments that
  // are mostly dead; if `target_bytes` is not 0, others too until all segments
  // together are within it.
  absl::StatusOr<GarbageReport> CollectGarbage(
      const absl::flat_hash_set<uint64_t>& live_incarnations,
      uint64_t target_bytes = 0);
  // Copies the archive to a new directory of `target`. ALREADY_EXISTS.
  absl::StatusOr<v1::BackupReport> Backup(FileSystem* target,
                                          const std::string& directory,
                                          bool copy);

  // Returns the size of all segment files; cheap.
  uint64_t SegmentBytes();
  // Returns the approximate size of rollups and summaries in the index.
  uint64_t RollupBytes();
  // Reclaims the space of deleted rollups.
  void CompactRollups();

 private:
  absl::StatusOr<v1::DeleteReport> DeleteRun(const DeleteOptions& options);
  absl::StatusOr<v1::DeleteReport> DeleteStepsOf(const DeleteOptions& options,
                                                 uint32_t run);

  StoreCore* const core_;
  ArchiveReader* const reader_;
  FrameStore* const frames_;
  absl::Mutex mutex_ ABSL_ACQUIRED_BEFORE(core_->rollup_mutex);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STORE_UPKEEP_H_
