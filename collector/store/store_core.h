// SPDX-License-Identifier: Apache-2.0
// State that the parts of a Store share: the index, the segments, and the
// tables of rows that are being written. Each part owns what only it uses.
// Inside the store only.
//
// Locks, in the order in which they are acquired:
//   StoreUpkeep::mutex_       one maintenance job at a time
//   rollup_mutex              while rollups and summaries are written and while
//                             steps are deleted, so that none is written of a
//                             deleted step; commits do not take it
//   StoreWriter::sync_mutex_  one sync at a time
//   mutex                     the tables, and each write that has to agree with
//                             them Order of writes: the bytes of a chunk, then
//                             the row that points at them.
// Failure: the first write that may have been done in part is kept in `sticky`;
// nothing is written after it.
#ifndef RANKPROBE_COLLECTOR_STORE_STORE_CORE_H_
#define RANKPROBE_COLLECTOR_STORE_STORE_CORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collector/store/index.h"
#include "collector/store/payload_store.h"
#include "collector/store/payload_table.h"
#include "collector/store/run_table.h"
#include "collector/store/series_queue.h"
#include "collector/store/step_table.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

struct StoreOptions {
  std::string data_dir;
  // A segment is closed when it would grow beyond this.
  uint64_t segment_bytes = uint64_t{1} << 30;
  uint64_t leveldb_write_buffer_bytes = 16 << 20;
  uint64_t leveldb_cache_bytes = 64 << 20;
  // Refuse writes (RESOURCE_EXHAUSTED, not sticky) below this much free disk.
  uint64_t min_free_bytes = uint64_t{256} << 20;
  // Stores payload chunks compressed that zstd makes at least a tenth smaller.
  bool compress_payloads = false;
  // Largest accepted payload.
  uint64_t max_payload_bytes = uint64_t{64} << 30;
  // A segment is rewritten when less than this share of it is live.
  double min_live_share = 0.5;
  // A rank that is not connected and was silent for this long counts as ended.
  // If it returns, it may find payloads deleted, which is a gap.
  absl::Duration quiet_time = absl::Minutes(10);
};

struct StoreCore {
  StoreCore(const StoreOptions& store_options, FileSystem* files,
            const Clock* store_clock, std::unique_ptr<FileLock> lock,
            std::unique_ptr<Index> opened,
            std::unique_ptr<PayloadStore> chunks);

  // Runs `fn` under the mutex, unless writing has ended. Its error ends
  // writing, except RESOURCE_EXHAUSTED and FAILED_PRECONDITION, which leave
  // nothing behind.
  absl::Status Exclusive(const std::function<absl::Status()>& fn)
      ABSL_LOCKS_EXCLUDED(mutex);
  // Records the result of a write. If the disk was full, nothing was written,
  // and the write may be repeated.
  absl::Status NoteWrite(const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // NOT_FOUND if the run does not exist.
  absl::StatusOr<uint32_t> RunNumber(const std::string& run)
      ABSL_LOCKS_EXCLUDED(mutex);
  // Returns the run's number if the run has the complete payload.
  std::optional<uint32_t> RunWithPayload(const std::string& run,
                                         absl::string_view digest,
                                         uint64_t length_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Returns a time of the monotonic clock; what happened after it is recent.
  int64_t QuietSince() const;
  // Called before the step is marked as deleted.
  void ForgetStep(const StepId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Called after the run was marked as deleted.
  void ForgetRun(const std::string& run, uint32_t number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Like PayloadTable's, unless writing has ended.
  void MarkDamaged(const std::string& payload_key, const v1::ChunkRow& row)
      ABSL_LOCKS_EXCLUDED(mutex);
  void MarkSound(const std::string& payload_key) ABSL_LOCKS_EXCLUDED(mutex);

  const StoreOptions options;
  FileSystem* const file_system;
  const Clock* const clock;
  // Number of this opening of the archive (IncarnationRow.dumping_in).
  const uint64_t life;
  const std::unique_ptr<FileLock> directory_lock;
  const std::unique_ptr<Index> index;
  const std::unique_ptr<PayloadStore> segments;

  absl::Mutex rollup_mutex ABSL_ACQUIRED_BEFORE(mutex);
  absl::Mutex mutex;
  absl::Status sticky ABSL_GUARDED_BY(mutex);
  RunTable runs ABSL_GUARDED_BY(mutex);
  StepTable steps ABSL_GUARDED_BY(mutex);
  PayloadTable payloads ABSL_GUARDED_BY(mutex);
  SeriesQueue series ABSL_GUARDED_BY(mutex);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STORE_CORE_H_
