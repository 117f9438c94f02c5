// SPDX-License-Identifier: Apache-2.0
// Implementation of the Store. Its methods are in store_commit.cc (what agents
// send), store_read.cc (queries), store_upkeep.cc (maintenance),
// store_recovery.cc (what an end without goodbye left behind), store_rollup.cc,
// store.cc (opening). Only these files include this.
#ifndef RANKPROBE_COLLECTOR_STORE_STORE_IMPL_H_
#define RANKPROBE_COLLECTOR_STORE_STORE_IMPL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "collector/store/index.h"
#include "collector/store/keys.h"
#include "collector/store/maintenance.h"
#include "collector/store/order_set.h"
#include "collector/store/partials.h"
#include "collector/store/payload_store.h"
#include "collector/store/store.h"
#include "common/base/status_macros.h"

namespace rankprobe {

// How much may be written at most before the free space is read again.
inline constexpr uint64_t kFreeSpaceCheckBytes = 16 << 20;

using RunIncarnation = std::pair<uint32_t, uint64_t>;
using StepId =
    std::tuple<uint32_t, int64_t, uint64_t>;  // run, step, incarnation

// States of unfinished payloads that are kept; a rank has one or two.
inline constexpr size_t kMaxPartials = 8192;

template <typename M>
absl::StatusOr<std::optional<M>> GetMessage(Index* index,
                                            absl::string_view key) {
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, index->Get(key));
  if (!bytes.has_value()) return std::optional<M>();
  M message;
  if (!message.ParseFromString(*bytes))
    return absl::DataLossError("a value of the index cannot be read");
  return std::optional<M>(std::move(message));
}

class StoreImpl : public Store, private StoreHooks {
 public:
  StoreImpl(const StoreOptions& options, FileSystem* file_system,
            const Clock* clock, std::unique_ptr<FileLock> lock,
            std::unique_ptr<Index> index,
            std::unique_ptr<PayloadStore> payloads, bool clean)
      : options_(options),
        file_system_(file_system),
        clock_(clock),
        life_(NewLife()),
        lock_(std::move(lock)),
        index_(std::move(index)),
        payloads_(std::move(payloads)),
        clean_(clean) {}

  ~StoreImpl() override {
    absl::MutexLock lock(&mutex_);
    if (!sticky_.ok() || !payloads_->Sync().ok()) return;
    std::unique_ptr<IndexBatch> batch = index_->NewBatch();
    std::map<uint64_t, uint64_t> sizes;
    for (const PayloadStore::SegmentInfo& segment : payloads_->Segments())
      sizes[segment.number] = segment.size_bytes;
    batch->Put(keys::kClean, keys::CleanValue(sizes));
    const keys::Synced synced = NextSynced();
    batch->Put(keys::kSynced, keys::SyncedValue(synced));
    if (index_->Write(std::move(batch), /*sync=*/true).ok())
      NoteSyncCount(synced.count);
  }

  static uint64_t NewLife();
  absl::Status Initialise();

  RecoveryReport recovery() const override { return recovery_; }
  using Store::OpenIncarnation;
  absl::StatusOr<OpenedIncarnation> OpenIncarnation(
      const v1::Identity& identity, const IncarnationClaim& claim) override;
  absl::Status Commit(absl::Span<const FrameToStore> frames) override;
  absl::Status Sync() override;
  bool HasPayload(const std::string& run, absl::string_view digest,
                  uint64_t length_bytes) override;
  std::string PayloadDamage(const std::string& run, absl::string_view digest,
                            uint64_t length_bytes) override;
  bool KeepPayload(const std::string& run, absl::string_view digest,
                   uint64_t length_bytes) override;
  absl::StatusOr<std::vector<v1::RunInfo>> ListRuns() override;
  absl::StatusOr<SomeSteps> ListStepsAfter(const std::string& run,
                                           std::optional<int64_t> after,
                                           size_t most) override;
  using Store::ListSteps;
  absl::StatusOr<std::vector<v1::StepInfo>> ListSteps(
      const std::string& run, const IntSet& steps) override;
  absl::Status ForEachRecord(
      const StepKey& key,
      const std::function<absl::Status(const v1::Record&)>& callback) override;
  absl::Status TakeEachRecord(
      const StepKey& key,
      const std::function<absl::Status(v1::Record*)>& callback) override;
  absl::Status ReadPayload(
      const std::string& run, absl::string_view digest, uint64_t length_bytes,
      const std::function<absl::Status(absl::string_view)>& callback) override;
  std::optional<std::string> ContentDigest(const std::string& run,
                                           absl::string_view digest,
                                           uint64_t length_bytes) override;
  absl::Status SavePlan(const std::string& run,
                        const v1::PlanSpec& plan) override;
  absl::Status SyncPlans() override;
  absl::StatusOr<std::optional<v1::PlanSpec>> LoadPlan(
      const std::string& run) override;
  absl::Status NoteUndelivered(const v1::Identity& identity,
                               const v1::Undelivered& undelivered) override;
  absl::Status NoteDumping(const v1::Identity& identity,
                           Dumping dumping) override;
  absl::Status NoteLostFrames(const v1::Identity& identity,
                              uint64_t through_sequence) override;
  absl::Status ForEachIncarnation(
      const std::string& run,
      const std::function<void(const v1::IncarnationRow&)>& callback) override;
  std::vector<PendingRollup> PendingRollups(size_t most) override;
  void SetRollupAside(const PendingRollup& step) override;
  absl::StatusOr<v1::ReindexReport> QueueRollups(
      const std::string& run) override;
  absl::Status WriteRollup(const PendingRollup& step,
                           const RollupRows& rows) override;
  absl::StatusOr<uint32_t> RunNumber(const std::string& run) override;
  absl::Status ForEachRollupName(
      uint32_t run,
      const std::function<absl::Status(uint32_t, const v1::RollupName&)>&
          callback) override;
  absl::Status ForEachRollupLayout(
      uint32_t run,
      const std::function<absl::Status(uint32_t, const v1::RollupLayout&)>&
          callback) override;
  absl::StatusOr<std::optional<v1::RollupLayout>> FindRollupLayout(
      uint32_t run, uint32_t number) override;
  absl::Status ForEachRollupColumn(
      uint32_t run, uint64_t incarnation, uint32_t block, uint8_t statistic,
      int64_t first_step, int64_t last_step,
      const std::function<absl::Status(int64_t, absl::string_view)>& callback)
      override;
  absl::Status ForEachRollupBlock(
      uint32_t run, uint64_t incarnation, uint32_t block, int64_t first_step,
      int64_t last_step,
      const std::function<absl::Status(int64_t, absl::string_view)>& callback)
      override;
  std::vector<std::string> RunNames() override;
  absl::StatusOr<bool> IsSummarised(const std::string& run) override;
  absl::Status ForEachUnrolled(
      uint32_t run,
      const std::function<absl::Status(int64_t, uint64_t)>& callback) override;
  absl::StatusOr<std::vector<v1::StepInfo>> FindSteps(
      uint32_t run,
      absl::Span<const std::pair<int64_t, uint64_t>> steps) override;
  absl::Status ForEachHeadIn(
      uint32_t run, absl::Span<const ProcessRange> steps,
      const std::function<absl::Status(size_t, int64_t, const v1::RollupHead&)>&
          callback) override;
  absl::Status ForEachTileIn(
      uint32_t run, int level, absl::Span<const ProcessRange> tiles,
      const std::function<absl::Status(size_t, uint64_t, absl::string_view)>&
          callback) override;
  std::vector<SummaryTile> TilesToMake(size_t most) override;
  void AddTileToMake(const SummaryTile& tile) override;
  absl::Status WriteTile(
      const SummaryTile& tile,
      const std::function<absl::StatusOr<std::string>(bool)>& make) override;
  absl::StatusOr<v1::VerifyReport> Verify(
      const v1::VerifyRequest& request,
      const std::function<absl::Status(const v1::VerifyReport&)>& progress)
      override;
  absl::StatusOr<v1::DeleteReport> Delete(
      const DeleteOptions& options) override;
  absl::StatusOr<int64_t> KeepFromStep(
      const std::string& run, const absl::flat_hash_set<uint64_t>& live,
      int64_t keep_steps) override;
  using Store::CollectGarbage;
  absl::StatusOr<GarbageReport> CollectGarbage(
      const absl::flat_hash_set<uint64_t>& live_incarnations,
      uint64_t target_bytes) override;
  absl::StatusOr<v1::BackupReport> Backup(FileSystem* target,
                                          const std::string& directory,
                                          bool copy) override;
  StoreTotals Totals() override;
  uint64_t SegmentBytes() override { return payloads_->TotalBytes(); }
  uint64_t RollupBytes() override;
  void CompactRollups() override;

 private:
  Index* index() override { return index_.get(); }
  PayloadStore* payloads() override { return payloads_.get(); }
  // Ranks, steps and records of the run.
  absl::Status CountSteps(uint32_t run, v1::RunInfo* info);
  absl::Status Exclusive(const std::function<absl::Status()>& fn) override;
  void ForgetPayload(const std::string& payload_key) override;
  void ForgetPartials(const std::string& prefix) override;
  void FoundDamaged(const std::string& chunk_key,
                    const v1::ChunkRow& row) override;
  void ForgetStep(uint32_t run, int64_t step, uint64_t incarnation) override;
  bool OfferedLately(const std::string& payload_key) override;
  // Less than the quiet time ago.
  bool IsRecent(int64_t monotonic_nanos) const;
  absl::StatusOr<v1::DeleteReport> DeleteRun(const std::string& name);

  // What one Commit is about to do; applied to the caches once it is written.
  struct Work {
    std::unique_ptr<IndexBatch> batch;
    std::vector<ChunkToAppend> chunks;
    std::vector<std::string> chunk_keys;
    std::set<RunIncarnation> incarnations;
    std::set<StepId> steps;
    std::set<std::string> runs;
    // Of records that the batch puts; the index does not have them yet.
    std::map<StepId, OrderSet> orders;
    // What it takes to undo it in the caches.
    std::map<std::string, std::optional<Partial>> partials_before;
    std::vector<std::string> whole_added;
    // Rows of the index that the batch deletes.
    absl::flat_hash_set<std::string> dropped;
    std::map<int, uint64_t> lost_records;
  };

  absl::StatusOr<v1::RunRow*> LoadRun(const std::string& run, bool create)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<v1::IncarnationRow*> LoadIncarnation(
      uint32_t run, const v1::Identity& identity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<v1::StepRow*> LoadStep(const StepId& id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AddBatch(v1::RunRow* run, uint64_t incarnation,
                        const v1::UploadFrame& frame, Work* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the step has a record of this order; if not, it is taken from here
  // on. `next_order`: its entry of next_orders_.
  absl::StatusOr<bool> IsThere(const StepId& id, uint64_t order,
                               uint64_t* next_order, Work* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // INVALID_ARGUMENT: it does not match its checksum.
  absl::Status AddRecord(v1::RunRow* run, const StepId& id,
                         const v1::Record& record, v1::StepRow* step,
                         Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // INVALID_ARGUMENT for what may never be stored; changes nothing.
  absl::Status CheckFrames(absl::Span<const FrameToStore> frames)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckChunk(const v1::PayloadChunk& chunk, bool verified) const;
  absl::Status AddChunk(v1::RunRow* run, uint64_t sender,
                        const v1::PayloadChunk& chunk,
                        absl::string_view content_digest, Work* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All bytes of one sender are there and have `digest`: they become the
  // payload, or go.
  absl::Status FinishPayload(v1::RunRow* run, const v1::PayloadChunk& chunk,
                             const std::string& partial,
                             const std::string& digest,
                             absl::string_view content_digest, Work* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `prefix`: of the sender's chunks in table q.
  absl::StatusOr<Partial*> LoadPartial(const std::string& prefix, Work* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The chunks that `prefix` names go with the batch.
  absl::Status DropRows(const std::string& prefix, Work* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> IsWhole(uint32_t run, absl::string_view digest,
                               uint64_t length)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The run, if it holds the payload whole.
  std::optional<uint32_t> RunWithPayload(const std::string& run,
                                         absl::string_view digest,
                                         uint64_t length_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckSpace(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the caches what they were before `work`, which was not written.
  void Undo(Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What comes of them after their end finds their rows in the index.
  void ForgetEndedSteps() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets what is cached of a run that is deleted.
  void ForgetRun(uint32_t run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // As many as are kept.
  absl::Status LoadPendingRollups() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddPendingRollup(const StepId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of table u, if all of its rows are known; in no order, some of them twice.
  std::optional<std::vector<std::pair<int64_t, uint64_t>>> KnownUnrolled(
      uint32_t run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The run's steps have a row u or a rollup that holds; by incarnation the
  // first and the last of its steps.
  absl::Status MarkSummarised(
      const std::string& run,
      const std::map<uint64_t, std::pair<int64_t, int64_t>>& ranges)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Steps of table a behind `prefix`.
  absl::Status ForEachStepBehind(
      const std::string& prefix, int64_t first_step, int64_t last_step,
      const std::function<absl::Status(int64_t, absl::string_view)>& callback);
  // Of the process' steps that have a head of kRollupVersion: its records.
  absl::StatusOr<absl::flat_hash_map<int64_t, uint64_t>> CurrentRollups(
      uint32_t run, uint64_t incarnation);
  // Incarnation and number of the rows of level 1 whose heads are in table h.
  absl::Status FindRowsWithoutHeads(
      uint32_t run, std::set<std::pair<uint64_t, uint64_t>>* tiles);
  // Whether the process has come to steps behind the row.
  absl::StatusOr<bool> IsPassed(const SummaryTile& tile)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After this row was written: an older one that was left without heads is
  // made anew.
  void CloseOlderTile(const SummaryTile& tile, bool with_heads)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is open and has rested is rolled up as far as it is there.
  void QueueRestedSteps() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TouchTile(uint32_t run, int level, uint64_t incarnation, uint64_t tile)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Recovery, at open.
  absl::Status LoadRuns() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What may be torn is removed, what is damaged is marked.
  absl::Status RecoverChunks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the index has gone back behind what it had synced.
  absl::Status CompareSyncCount() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NameSegments(absl::string_view schema)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  keys::Synced NextSynced() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Kept beside the index, as a witness; nothing depends on it.
  void NoteSyncCount(uint64_t count);
  std::string SyncCountPath() const { return options_.data_dir + "/synced"; }

  // The bytes that the row points at fail their checksum.
  void MarkDamaged(const std::string& payload_key, const v1::ChunkRow& row);
  // They were read again and are right.
  void MarkSound(const std::string& payload_key);

  const StoreOptions options_;
  FileSystem* const file_system_;
  const Clock* const clock_;
  // This one among all that open the archive (IncarnationRow.dumping_in).
  const uint64_t life_;
  const std::unique_ptr<FileLock> lock_;
  const std::unique_ptr<Index> index_;
  const std::unique_ptr<PayloadStore> payloads_;
  // The last process closed the archive.
  const bool clean_;
  RecoveryReport recovery_;

  absl::Mutex mutex_;
  absl::Status sticky_ ABSL_GUARDED_BY(mutex_);
  // What may be written before the free space is read again.
  uint64_t space_allowance_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t last_run_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, v1::RunRow> runs_ ABSL_GUARDED_BY(mutex_);
  std::map<RunIncarnation, v1::IncarnationRow> incarnations_
      ABSL_GUARDED_BY(mutex_);
  // Of those that are written to, with some that have ended.
  std::map<StepId, v1::StepRow> steps_ ABSL_GUARDED_BY(mutex_);
  static constexpr size_t kUsualKnownSteps = 4096;
  size_t forget_steps_at_ ABSL_GUARDED_BY(mutex_) = kUsualKnownSteps;
  // Above all orders of the step that are stored, added ones aside. One that is
  // too high, as after a commit that failed, costs questions to the index.
  std::map<StepId, uint64_t> next_orders_ ABSL_GUARDED_BY(mutex_);
  PartialTable partials_ ABSL_GUARDED_BY(mutex_){kMaxPartials};
  absl::flat_hash_set<std::string> whole_ ABSL_GUARDED_BY(mutex_);
  // Whole payloads that were offered again, and when by the monotonic clock:
  // deletion spares them.
  absl::flat_hash_map<std::string, int64_t> touched_ ABSL_GUARDED_BY(mutex_);

  // When, by the monotonic clock, frames of an incarnation came last.
  std::map<RunIncarnation, int64_t> heard_ ABSL_GUARDED_BY(mutex_);
  // Segments of table g.
  std::set<uint64_t> named_segments_ ABSL_GUARDED_BY(mutex_);
  uint64_t sync_count_ ABSL_GUARDED_BY(mutex_) = 0;

  // Records lost since the store was opened, by LossReason.
  std::map<int, uint64_t> lost_records_ ABSL_GUARDED_BY(mutex_);

  // Rows of table u, each in one of the three at least; if there are more, only
  // some are in the first of them.
  std::set<StepId> pending_rollups_ ABSL_GUARDED_BY(mutex_);
  std::set<StepId> rollups_aside_ ABSL_GUARDED_BY(mutex_);
  bool more_pending_rollups_ ABSL_GUARDED_BY(mutex_) = false;
  // Steps that have not ended and have a row u: when they were written to last,
  // by the monotonic clock.
  std::map<StepId, int64_t> open_rollups_ ABSL_GUARDED_BY(mutex_);
  // Level, run, incarnation, tile.
  using TileId = std::tuple<int, uint32_t, uint64_t, uint64_t>;
  // Rows of table j that are to be made, and when one of their steps changed.
  std::map<TileId, int64_t> missing_tiles_ ABSL_GUARDED_BY(mutex_);
  // Of a process the newest row of level 1 that was written without heads.
  std::map<RunIncarnation, uint64_t> open_tiles_ ABSL_GUARDED_BY(mutex_);

  // One job at a time; taken before the others.
  absl::Mutex maintenance_mutex_ ABSL_ACQUIRED_BEFORE(rollup_mutex_);
  // While a rollup is written and while steps are deleted, so that none is
  // written of a step that is gone. Commits do not take it.
  absl::Mutex rollup_mutex_ ABSL_ACQUIRED_BEFORE(sync_mutex_);
  absl::Mutex sync_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_STORE_IMPL_H_
