// SPDX-License-Identifier: Apache-2.0
// The archive of all runs: a LevelDB index and append-only payload segments
// under one data directory (docs/storage.md, "On disk").
//
// Ownership: one Store per data directory per machine; it holds the directory's
// lock until destroyed. The Clock and FileSystem outlive it.
// Threads: all methods are thread-safe. Failure: a failed write makes the store
// read-only (sticky): every later Commit and Sync returns the first error until
// the store is reopened.
#ifndef RANKPROBE_COLLECTOR_STORE_STORE_H_
#define RANKPROBE_COLLECTOR_STORE_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collector/store/archive_reader.h"
#include "collector/store/archive_upkeep.h"
#include "collector/store/frame_store.h"
#include "collector/store/run_registry.h"
#include "collector/store/series_store.h"
#include "common/base/clock.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

struct StoreOptions {
  std::string data_dir;
  // A segment is closed when it would grow beyond this.
  uint64_t segment_bytes = uint64_t{1} << 30;
  uint64_t leveldb_write_buffer_bytes = 16 << 20;
  uint64_t leveldb_cache_bytes = 64 << 20;
  // Refuse writes (RESOURCE_EXHAUSTED, not sticky) below this much free disk.
  uint64_t min_free_bytes = uint64_t{256} << 20;
  // Payload chunks that zstd makes at least a tenth smaller are kept so.
  bool compress_payloads = false;
  // Largest payload accepted.
  uint64_t max_payload_bytes = uint64_t{64} << 30;
  // A segment is written anew when less than this share of it is live.
  double min_live_share = 0.5;
  // A rank that was silent for so long and is not connected is taken to be
  // gone; one that comes back may find payloads deleted, which is a gap.
  absl::Duration quiet_time = absl::Minutes(10);
};

struct StoreTotals {
  uint64_t runs = 0;
  uint64_t records = 0;
  uint64_t stored_payload_bytes = 0;
  uint64_t offered_payload_bytes = 0;
  // By reason, as the ledger names it; since this process began.
  std::map<std::string, uint64_t> lost_records;
};

struct GarbageReport {
  uint64_t orphans_freed = 0;
  uint64_t segments_removed = 0;
  uint64_t bytes_removed = 0;
  uint64_t bytes_copied = 0;
  // Of all segments, before.
  uint64_t live_bytes = 0;
  uint64_t total_bytes = 0;
  // Segments that no row of this index has ever named; they stay.
  uint64_t unknown_segments = 0;
};

// What recovery found and did at Open.
struct RecoveryReport {
  uint64_t torn_bytes_dropped = 0;
  uint64_t dangling_payloads = 0;
  uint64_t segments = 0;
  // Payloads whose bytes are gone though they had been synced.
  uint64_t damaged_payloads = 0;
  // How many syncs the index has gone back behind what it had once synced.
  uint64_t lost_syncs = 0;
};

// All roles of an archive in one directory. A client that needs one role takes
// that interface, not this class.
class Store : public ArchiveReader,
              public FrameStore,
              public RunRegistry,
              public SeriesStore,
              public ArchiveUpkeep {
 public:
  // Opens, or creates where there is nothing yet. FAILED_PRECONDITION: another
  // process holds the lock (named). DATA_LOSS: the index is corrupt, or gone
  // while there are segments. Unknown schema: FAILED_PRECONDITION.
  static absl::StatusOr<std::unique_ptr<Store>> Open(
      const StoreOptions& options, FileSystem* file_system, const Clock* clock);

  virtual RecoveryReport recovery() const = 0;
  virtual std::vector<std::string> RunNames() = 0;

  // Maintenance: one job at a time, as in ArchiveUpkeep.
  // Payloads that steps of the run from this one on refer to stay when the
  // steps are deleted: a rank may take for granted that they are here.
  // INT64_MAX: nobody writes to the run any more.
  virtual absl::StatusOr<int64_t> KeepFromStep(
      const std::string& run,
      const absl::flat_hash_set<uint64_t>& live_incarnations,
      int64_t keep_steps) = 0;
  // Finishes deletions, frees what nothing refers to, rewrites segments: those
  // that are mostly dead, and if `target_bytes` is not 0 others too until all
  // segments together hold no more.
  virtual absl::StatusOr<GarbageReport> CollectGarbage(
      const absl::flat_hash_set<uint64_t>& live_incarnations,
      uint64_t target_bytes) = 0;
  absl::StatusOr<GarbageReport> CollectGarbage(
      const absl::flat_hash_set<uint64_t>& live_incarnations) {
    return CollectGarbage(live_incarnations, 0);
  }
  // Sums over all runs; cheap.
  virtual StoreTotals Totals() = 0;
  // Bytes of all segment files; cheaper.
  virtual uint64_t SegmentBytes() = 0;
  // About what the files of the index hold of rollups and summaries.
  virtual uint64_t RollupBytes() = 0;
  // Gives back the space of those that were deleted.
  virtual void CompactRollups() = 0;
  // A copy of the archive in a new directory of `target`. ALREADY_EXISTS.
  virtual absl::StatusOr<v1::BackupReport> Backup(FileSystem* target,
                                                  const std::string& directory,
                                                  bool copy) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STORE_H_
