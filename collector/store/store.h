// SPDX-License-Identifier: Apache-2.0
// The archive of all runs: a LevelDB index and append-only payload segments
// under one data directory (docs/storage.md, "On disk").
//
// Ownership: one Store per data directory per machine; it holds the directory's
// lock until destroyed. The Clock and FileSystem outlive it.
// Threads: all methods are thread-safe. Commits are serialised inside, a Sync
// does not hold them up; the caller batches frames of many sessions into one
// Commit (group commit). Failure: a failed write makes the store read-only
// (sticky): every later Commit and Sync returns the first error until the store
// is reopened.
#ifndef RANKPROBE_COLLECTOR_STORE_STORE_H_
#define RANKPROBE_COLLECTOR_STORE_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collector/store/archive_reader.h"
#include "collector/store/step_summary.h"
#include "common/base/clock.h"
#include "common/base/dedup_window.h"
#include "common/config/plan.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/control.pb.h"
#include "rankprobe/v1/store.pb.h"
#include "rankprobe/v1/types.pb.h"

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

struct DeleteOptions {
  std::string run;
  // Absent: the whole run.
  std::optional<std::set<int64_t>> steps;
  // Incarnations of connected ranks.
  absl::flat_hash_set<uint64_t> live_incarnations;
  // Payloads of so many newest steps of a connected rank stay.
  int64_t keep_steps = kCollectorKeepsSteps;
  // Give the space back at once. Else CollectGarbage does.
  bool reclaim = true;
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

// One frame that passed admission, with the identity the collector stamped.
struct FrameToStore {
  const v1::Identity* identity = nullptr;
  const v1::UploadFrame* frame = nullptr;
  // XXH3-128 that the bytes of a chunk's payload have; empty: it is the chunk's
  // digest. Another one when that has the principal in it.
  absl::string_view content_digest;
  // Not null: what it held is refused. `frame` is its number and nothing else;
  // the number is committed and the refusal kept.
  const v1::RefusalRow* refusal = nullptr;
  // frame->ByteSizeLong(); 0: not known yet.
  uint64_t bytes = 0;
  // Its chunk has been compared with its checksum.
  bool chunk_verified = false;
};

// What a process brings to prove that an incarnation is its own.
struct IncarnationClaim {
  // False: nothing is to be proved.
  bool from_agent = false;
  // SHA-256 of Hello.incarnation_secret; empty: it brought none.
  std::string secret_sha256;
  // IncarnationRow.principal of a new one.
  std::string principal;
};

// A process' step that ended, and that no rollup of all its records is there of.
struct PendingRollup {
  uint32_t run_number = 0;
  StepKey key;
};

// A statistic of the values of a block.
struct RollupColumnRow {
  uint32_t block = 0;
  uint8_t statistic = 0;
  std::string bytes;
};

// What a step is rolled up to (docs/storage.md, "Rollups"), and what the run
// needs to read it that is not stored yet.
struct RollupRows {
  v1::RollupHead head;
  // Of those that the layout names.
  std::vector<RollupColumnRow> columns;
  std::vector<std::pair<uint32_t, v1::RollupName>> names;
  std::vector<std::pair<uint32_t, v1::RollupLayout>> layouts;
};

// A row of summaries of one process: those of 64^level steps from tile * 64^level
// on (docs/storage.md, "Summaries").
struct SummaryTile {
  uint32_t run = 0;
  int level = 1;
  uint64_t incarnation = 0;
  uint64_t tile = 0;
};

// Steps, or tiles, of one process.
struct ProcessRange {
  uint64_t incarnation = 0;
  uint64_t first = 0, last = 0;
};

// Whether a process is connected and dumping; kCutOff: it was when its connection
// ended, and had not said goodbye.
enum class Dumping : uint8_t { kNo, kYes, kCutOff };

struct OpenedIncarnation {
  // Highest sequence number of it that is committed; 0 for a new one.
  uint64_t committed = 0;
  // It is new, or the claim has its secret.
  bool proved = false;
  // It may be noted as dumping.
  bool dumping = false;
  // As stored; whoever goes on with it is taken for this one.
  std::string principal;
  // The newest of its frames that were refused.
  std::vector<v1::RefusalRow> refusals;
};

// Orders from here on are of records that the session or the collector added
// to a step (losses); a rank's own records are numbered densely from 0.
inline constexpr uint64_t kFirstAddedOrder = uint64_t{1} << 62;

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

class Store : public ArchiveReader {
 public:
  // Opens, or creates where there is nothing yet. FAILED_PRECONDITION: another
  // process holds the lock (named). DATA_LOSS: the index is corrupt, or gone
  // while there are segments. Unknown schema: FAILED_PRECONDITION.
  static absl::StatusOr<std::unique_ptr<Store>> Open(
      const StoreOptions& options, FileSystem* file_system, const Clock* clock);

  virtual RecoveryReport recovery() const = 0;

  // Registers the incarnation, or goes on with it. What is stored of its
  // identity stays: only a rank may be added, or change while no frame of it
  // is stored. PERMISSION_DENIED: another process', or not proved to be this.
  virtual absl::StatusOr<OpenedIncarnation> OpenIncarnation(
      const v1::Identity& identity, const IncarnationClaim& claim) = 0;
  // From inside, where it is settled who it is: the committed sequence.
  absl::StatusOr<uint64_t> OpenIncarnation(const v1::Identity& identity) {
    absl::StatusOr<OpenedIncarnation> opened =
        OpenIncarnation(identity, IncarnationClaim());
    if (!opened.ok()) return opened.status();
    return opened->committed;
  }

  // Makes the frames COMMITTED: on return they survive a crash of this process.
  // Frames at or below an incarnation's committed sequence are dropped as
  // duplicates. All or nothing per call. A record of an order that its step has
  // already is not stored but counted as lost, COLLECTOR_REFUSED; losses are
  // kept whatever their order.
  virtual absl::Status Commit(absl::Span<const FrameToStore> frames) = 0;

  // Everything committed before the call is SYNCED on return.
  virtual absl::Status Sync() = 0;

  // The same as HasPayload for somebody who is about to refer to it: it is not
  // freed before the quiet time has passed.
  virtual bool KeepPayload(const std::string& run, absl::string_view digest,
                           uint64_t length_bytes) = 0;

  // The plan in force per run, kept over restarts. On return it survives this
  // process; after SyncPlans the machine. Neither waits for another's sync.
  virtual absl::Status SavePlan(const std::string& run,
                                const v1::PlanSpec& plan) = 0;
  virtual absl::Status SyncPlans() = 0;
  virtual absl::StatusOr<std::optional<v1::PlanSpec>> LoadPlan(
      const std::string& run) = 0;

  // Frames up to `through_sequence` were committed, not synced, and went with
  // the machine: counted, and the incarnation goes on behind them.
  virtual absl::Status NoteLostFrames(const v1::Identity& identity,
                                      uint64_t through_sequence) = 0;
  // What a process said it could not deliver before it ended.
  virtual absl::Status NoteUndelivered(const v1::Identity& identity,
                                       const v1::Undelivered& undelivered) = 0;
  // Not synced.
  virtual absl::Status NoteDumping(const v1::Identity& identity,
                                   Dumping dumping) = 0;
  // Rollups are derived. One holds unless the step is named by
  // ForEachUnrolled; then StepInfo.records may differ from RollupHead.records,
  // and the records have to be read.
  // Some of what is to be rolled up, the oldest steps of a run first.
  virtual std::vector<PendingRollup> PendingRollups(size_t most) = 0;
  // The step cannot be rolled up: not to be named again by this Store.
  virtual void SetRollupAside(const PendingRollup& step) = 0;
  // Has every step of the run rolled up, whether it ended or not, that has no
  // rollup which holds.
  virtual absl::StatusOr<v1::ReindexReport> QueueRollups(
      const std::string& run) = 0;
  // Whole or not at all; replaces what the step was rolled up to before. Waits
  // for deletions, never holds up a Commit. FAILED_PRECONDITION: the step or
  // its run is not there any more.
  virtual absl::Status WriteRollup(const PendingRollup& step,
                                   const RollupRows& rows) = 0;
  // Of the run in all that follows. NOT_FOUND.
  virtual absl::StatusOr<uint32_t> RunNumber(const std::string& run) = 0;
  virtual absl::Status ForEachRollupName(
      uint32_t run,
      const std::function<absl::Status(uint32_t id, const v1::RollupName&)>&
          callback) = 0;
  virtual absl::Status ForEachRollupLayout(
      uint32_t run,
      const std::function<absl::Status(uint32_t number,
                                       const v1::RollupLayout&)>& callback) = 0;
  // Nothing where there is none of this number.
  virtual absl::StatusOr<std::optional<v1::RollupLayout>> FindRollupLayout(
      uint32_t run, uint32_t number) = 0;
  // Of one process, steps ascending, from the first to the last one given.
  virtual absl::Status ForEachRollupColumn(
      uint32_t run, uint64_t incarnation, uint32_t block, uint8_t statistic,
      int64_t first_step, int64_t last_step,
      const std::function<absl::Status(int64_t step, absl::string_view)>&
          callback) = 0;
  // The same of rows of older archives, which have all statistics.
  virtual absl::Status ForEachRollupBlock(
      uint32_t run, uint64_t incarnation, uint32_t block, int64_t first_step,
      int64_t last_step,
      const std::function<absl::Status(int64_t step, absl::string_view)>&
          callback) = 0;

  virtual std::vector<std::string> RunNames() = 0;
  // Whether each step of the run has either a rollup that holds or is named by
  // ForEachUnrolled: not before QueueRollups in a run of an older collector.
  virtual absl::StatusOr<bool> IsSummarised(const std::string& run) = 0;
  virtual absl::Status ForEachUnrolled(
      uint32_t run,
      const std::function<absl::Status(int64_t step, uint64_t incarnation)>&
          callback) = 0;
  // Of these steps and incarnations, as far as they are there.
  virtual absl::StatusOr<std::vector<v1::StepInfo>> FindSteps(
      uint32_t run, absl::Span<const std::pair<int64_t, uint64_t>> steps) = 0;
  // Ranges in ascending order; `range`: which. Deleted steps have one, too.
  virtual absl::Status ForEachHeadIn(
      uint32_t run, absl::Span<const ProcessRange> steps,
      const std::function<absl::Status(size_t range, int64_t step,
                                       const v1::RollupHead&)>& callback) = 0;
  // Rows of summaries. One that is there says what the heads of its steps say:
  // it goes when one of them changes, and then waits to be made again.
  virtual absl::Status ForEachTileIn(
      uint32_t run, int level, absl::Span<const ProcessRange> tiles,
      const std::function<absl::Status(size_t range, uint64_t tile,
                                       absl::string_view)>& callback) = 0;
  // Some of those that wait and whose steps have rested, lowest level first.
  virtual std::vector<SummaryTile> TilesToMake(size_t most) = 0;
  virtual void AddTileToMake(const SummaryTile& tile) = 0;
  // `make` reads heads and lower tiles, which stay as they are meanwhile; empty
  // bytes: nothing is to be kept. `with_heads`: the process has come to steps
  // behind those of this row of level 1, and what is made is to hold their heads,
  // which go then. FAILED_PRECONDITION: the run is gone.
  virtual absl::Status WriteTile(
      const SummaryTile& tile,
      const std::function<absl::StatusOr<std::string>(bool with_heads)>&
          make) = 0;

  // Maintenance: one job at a time, others wait; ingest and reading go on.
  virtual absl::StatusOr<v1::VerifyReport> Verify(
      const v1::VerifyRequest& request,
      const std::function<absl::Status(const v1::VerifyReport&)>& progress) = 0;
  // NOT_FOUND; FAILED_PRECONDITION for a run with connected ranks.
  virtual absl::StatusOr<v1::DeleteReport> Delete(
      const DeleteOptions& options) = 0;
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
