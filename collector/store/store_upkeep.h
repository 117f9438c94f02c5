// SPDX-License-Identifier: Apache-2.0
// Verification, deletion, garbage collection and backup of a store.
// Threads: thread-safe; one job at a time, others wait, and ingest and reading go
// on. Failure: the first error; what was done stays done.
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
  // Payloads that steps of the run from this one on refer to stay when the
  // steps are deleted: a rank may take for granted that they are here.
  // INT64_MAX: nobody writes to the run any more.
  absl::StatusOr<int64_t> KeepFromStep(
      const std::string& run, const absl::flat_hash_set<uint64_t>& live,
      int64_t keep_steps);
  // Finishes deletions, frees what nothing refers to, rewrites segments: those
  // that are mostly dead, and if `target_bytes` is not 0 others too until all
  // segments together hold no more.
  absl::StatusOr<GarbageReport> CollectGarbage(
      const absl::flat_hash_set<uint64_t>& live_incarnations,
      uint64_t target_bytes = 0);
  // A copy of the archive in a new directory of `target`. ALREADY_EXISTS.
  absl::StatusOr<v1::BackupReport> Backup(FileSystem* target,
                                          const std::string& directory,
                                          bool copy);

  // Bytes of all segment files; cheap.
  uint64_t SegmentBytes();
  // About what the files of the index hold of rollups and summaries.
  uint64_t RollupBytes();
  // Gives back the space of those that were deleted.
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
