#include "collector/store/store.h"

#include <xxhash.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "collector/store/backup.h"
#include "collector/store/index.h"
#include "collector/store/keys.h"
#include "collector/store/maintenance.h"
#include "collector/store/payload_store.h"
#include "collector/store/step_counts.h"
#include "collector/store/upgrade.h"
#include "collector/store/verify.h"
#include "common/crc32c.h"
#include "common/dedup_window.h"
#include "common/status_macros.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {
namespace {

// How much may be written between two looks at the free space.
constexpr uint64_t kFreeSpaceCheckBytes = 16 << 20;
// Digests known to be whole, kept to answer HasPayload without the index.
constexpr size_t kMaxKnownPayloads = 1 << 20;

using RunIncarnation = std::pair<uint32_t, uint64_t>;
using StepId =
    std::tuple<uint32_t, int64_t, uint64_t>;  // run, step, incarnation

struct HashDeleter {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

// A payload of which some chunks are there.
struct Partial {
  uint64_t next_offset = 0;
  std::unique_ptr<XXH3_state_t, HashDeleter> hash;
};

std::string DigestOf(const XXH3_state_t* state) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
  return {reinterpret_cast<const char*>(canonical.digest),
          sizeof(canonical.digest)};
}

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
            std::unique_ptr<PayloadStore> payloads)
      : options_(options),
        file_system_(file_system),
        clock_(clock),
        lock_(std::move(lock)),
        index_(std::move(index)),
        payloads_(std::move(payloads)) {}

  ~StoreImpl() override {
    absl::MutexLock lock(&mutex_);
    if (!sticky_.ok() || !payloads_->Sync().ok()) return;
    std::unique_ptr<IndexBatch> batch = index_->NewBatch();
    batch->Put(keys::kClean, "1");
    index_->Write(std::move(batch), /*sync=*/true).IgnoreError();
  }

  absl::Status Initialise();

  RecoveryReport recovery() const override { return recovery_; }
  absl::StatusOr<uint64_t> OpenIncarnation(
      const v1::Identity& identity) override;
  absl::Status Commit(absl::Span<const FrameToStore> frames) override;
  absl::Status Sync() override;
  bool HasPayload(const std::string& run, absl::string_view digest,
                  uint64_t length_bytes) override;
  absl::StatusOr<std::vector<v1::RunInfo>> ListRuns() override;
  absl::StatusOr<std::vector<v1::StepInfo>> ListSteps(
      const std::string& run) override;
  absl::Status ForEachRecord(
      const StepKey& key,
      const std::function<absl::Status(const v1::Record&)>& callback) override;
  absl::Status ReadPayload(
      const std::string& run, absl::string_view digest, uint64_t length_bytes,
      const std::function<absl::Status(absl::string_view)>& callback) override;
  absl::Status SavePlan(const std::string& run,
                        const v1::PlanSpec& plan) override;
  absl::StatusOr<std::optional<v1::PlanSpec>> LoadPlan(
      const std::string& run) override;
  absl::Status NoteLostFrames(const v1::Identity& identity,
                              uint64_t through_sequence) override;
  absl::Status ForEachIncarnation(
      const std::string& run,
      const std::function<void(const v1::IncarnationRow&)>& callback) override;
  absl::StatusOr<v1::VerifyReport> Verify(
      const v1::VerifyRequest& request,
      const std::function<absl::Status(const v1::VerifyReport&)>& progress)
      override;
  absl::StatusOr<v1::DeleteReport> Delete(
      const DeleteOptions& options) override;
  absl::StatusOr<int64_t> KeepFromStep(
      const std::string& run,
      const absl::flat_hash_set<uint64_t>& live) override;
  absl::StatusOr<GarbageReport> CollectGarbage(
      const absl::flat_hash_set<uint64_t>& live_incarnations) override;
  absl::StatusOr<v1::BackupReport> Backup(const std::string& directory,
                                          bool copy) override;
  StoreTotals Totals() override;

 private:
  Index* index() override { return index_.get(); }
  PayloadStore* payloads() override { return payloads_.get(); }
  absl::Status Exclusive(const std::function<absl::Status()>& fn) override;
  void ForgetPayload(const std::string& payload_key) override;
  void ForgetStep(uint32_t run, int64_t step, uint64_t incarnation) override;
  bool OfferedLately(const std::string& payload_key) override;
  absl::StatusOr<v1::DeleteReport> DeleteRun(const std::string& name);

  // What one Commit is about to do; applied to the caches once it is written.
  struct Work {
    std::unique_ptr<IndexBatch> batch;
    std::vector<ChunkToAppend> chunks;
    std::vector<std::string> chunk_keys;
    std::set<RunIncarnation> incarnations;
    std::set<StepId> steps;
    std::set<std::string> runs;
    uint64_t bytes = 0;
  };

  absl::StatusOr<v1::RunRow*> LoadRun(const std::string& run, bool create)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<v1::IncarnationRow*> LoadIncarnation(
      uint32_t run, const v1::Identity& identity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<v1::StepRow*> LoadStep(const StepId& id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AddBatch(const std::string& run_name, v1::RunRow* run,
                        uint64_t incarnation, const v1::RecordBatch& records,
                        Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AddChunk(v1::RunRow* run, const v1::PayloadChunk& chunk,
                        Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Partial*> LoadPartial(uint32_t run,
                                       const v1::PayloadChunk& chunk)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> IsWhole(uint32_t run, absl::string_view digest,
                               uint64_t length)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckSpace(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets what was cached, so that it is read again from what is written.
  void DropCaches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RemoveDanglingChunks();

  const StoreOptions options_;
  FileSystem* const file_system_;
  const Clock* const clock_;
  const std::unique_ptr<FileLock> lock_;
  const std::unique_ptr<Index> index_;
  const std::unique_ptr<PayloadStore> payloads_;
  RecoveryReport recovery_;

  absl::Mutex mutex_;
  absl::Status sticky_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_since_space_check_ ABSL_GUARDED_BY(mutex_) =
      kFreeSpaceCheckBytes;
  uint32_t last_run_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, v1::RunRow> runs_ ABSL_GUARDED_BY(mutex_);
  std::map<RunIncarnation, v1::IncarnationRow> incarnations_
      ABSL_GUARDED_BY(mutex_);
  std::map<StepId, v1::StepRow> steps_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Partial> partials_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> whole_ ABSL_GUARDED_BY(mutex_);
  // Whole payloads that were offered again, and when: deletion spares them.
  absl::flat_hash_map<std::string, int64_t> touched_ ABSL_GUARDED_BY(mutex_);

  // Records lost since the store was opened, by LossReason.
  std::map<int, uint64_t> lost_records_ ABSL_GUARDED_BY(mutex_);

  // One job at a time; taken before mutex_.
  absl::Mutex maintenance_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
};

absl::Status StoreImpl::Initialise() {
  absl::MutexLock lock(&mutex_);
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> schema,
                      index_->Get(keys::kSchema));
  if (const absl::Status status =
          BringUpToDate(index_.get(), schema.value_or(""));
      !status.ok()) {
    return absl::Status(
        status.code(), absl::StrCat(options_.data_dir, ": ", status.message()));
  }
  RP_RETURN_IF_ERROR(
      index_->Scan("r", [this](absl::string_view key, absl::string_view value) {
        mutex_.AssertHeld();
        v1::RunRow row;
        if (!row.ParseFromArray(value.data(), static_cast<int>(value.size()))) {
          return absl::DataLossError("the row of a run cannot be read");
        }
        last_run_id_ = std::max(last_run_id_, row.id());
        runs_[std::string(key.substr(1))] = std::move(row);
        return absl::OkStatus();
      }));
  // The number of a run that was deleted is not used again.
  RP_RETURN_IF_ERROR(
      index_->Scan("t", [this](absl::string_view, absl::string_view value) {
        mutex_.AssertHeld();
        v1::RunTombstone row;
        if (row.ParseFromArray(value.data(), static_cast<int>(value.size())))
          last_run_id_ = std::max(last_run_id_, row.run().id());
        return absl::OkStatus();
      }));
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> clean,
                      index_->Get(keys::kClean));
  recovery_.torn_bytes_dropped = payloads_->recovery().torn_bytes_dropped;
  recovery_.segments = payloads_->recovery().segments;
  if (schema.has_value() && !clean.has_value())
    RP_RETURN_IF_ERROR(RemoveDanglingChunks());
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  batch->Delete(keys::kClean);
  return index_->Write(std::move(batch), /*sync=*/true);
}

absl::Status StoreImpl::RemoveDanglingChunks() {
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  RP_RETURN_IF_ERROR(
      index_->Scan("k", [&](absl::string_view key, absl::string_view value) {
        v1::ChunkRow row;
        if (row.ParseFromArray(value.data(), static_cast<int>(value.size())) &&
            payloads_->Contains(row)) {
          return absl::OkStatus();
        }
        batch->Delete(key);
        std::string payload(key.substr(0, key.size() - 8));
        payload[0] = 'p';
        batch->Delete(payload);
        ++recovery_.dangling_payloads;
        return absl::OkStatus();
      }));
  if (recovery_.dangling_payloads == 0) return absl::OkStatus();
  return index_->Write(std::move(batch), /*sync=*/true);
}

absl::StatusOr<v1::RunRow*> StoreImpl::LoadRun(const std::string& run,
                                               bool create) {
  const auto it = runs_.find(run);
  if (it != runs_.end()) return &it->second;
  if (!create)
    return absl::NotFoundError(absl::StrCat("no run named \"", run, "\""));
  v1::RunRow row;
  row.set_id(++last_run_id_);
  row.set_created_unix_ns(absl::ToUnixNanos(clock_->Now()));
  row.set_updated_unix_ns(row.created_unix_ns());
  return &(runs_[run] = std::move(row));
}

absl::StatusOr<v1::IncarnationRow*> StoreImpl::LoadIncarnation(
    uint32_t run, const v1::Identity& identity) {
  const RunIncarnation id(run, identity.incarnation());
  const auto it = incarnations_.find(id);
  if (it != incarnations_.end()) return &it->second;
  RP_ASSIGN_OR_RETURN(
      std::optional<v1::IncarnationRow> row,
      GetMessage<v1::IncarnationRow>(
          index_.get(), keys::Incarnation(run, identity.incarnation())));
  if (!row.has_value()) {
    row.emplace();
    *row->mutable_identity() = identity;
  }
  return &(incarnations_[id] = *std::move(row));
}

absl::StatusOr<v1::StepRow*> StoreImpl::LoadStep(const StepId& id) {
  const auto it = steps_.find(id);
  if (it != steps_.end()) return &it->second;
  RP_ASSIGN_OR_RETURN(
      std::optional<v1::StepRow> row,
      GetMessage<v1::StepRow>(
          index_.get(),
          keys::Step(std::get<0>(id), std::get<1>(id), std::get<2>(id))));
  // Rows of steps long past are not needed again.
  if (steps_.size() > 100000) steps_.clear();
  return &(steps_[id] = row.has_value() ? *std::move(row) : v1::StepRow());
}

absl::StatusOr<uint64_t> StoreImpl::OpenIncarnation(
    const v1::Identity& identity) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(sticky_);
  RP_ASSIGN_OR_RETURN(v1::RunRow* const run,
                      LoadRun(identity.run(), /*create=*/true));
  RP_ASSIGN_OR_RETURN(v1::IncarnationRow* const row,
                      LoadIncarnation(run->id(), identity));
  *row->mutable_identity() = identity;
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  batch->Put(keys::Run(identity.run()), run->SerializeAsString());
  batch->Put(keys::Incarnation(run->id(), identity.incarnation()),
             row->SerializeAsString());
  RP_RETURN_IF_ERROR(index_->Write(std::move(batch), /*sync=*/false));
  return row->committed_sequence();
}

absl::Status StoreImpl::CheckSpace(uint64_t bytes) {
  bytes_since_space_check_ += bytes;
  if (bytes_since_space_check_ < kFreeSpaceCheckBytes) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(const uint64_t free,
                      file_system_->FreeBytes(options_.data_dir));
  if (free < options_.min_free_bytes + bytes) {
    bytes_since_space_check_ = kFreeSpaceCheckBytes;  // look again next time
    return absl::ResourceExhaustedError(absl::StrCat(
        options_.data_dir, " has ", free, " free bytes; writing stops below ",
        options_.min_free_bytes));
  }
  bytes_since_space_check_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<bool> StoreImpl::IsWhole(uint32_t run, absl::string_view digest,
                                        uint64_t length) {
  const std::string key = keys::Payload(run, digest, length);
  if (whole_.contains(key)) return true;
  RP_ASSIGN_OR_RETURN(const std::optional<v1::PayloadRow> row,
                      GetMessage<v1::PayloadRow>(index_.get(), key));
  if (!row.has_value() || row->corrupt()) return false;
  if (whole_.size() > kMaxKnownPayloads) whole_.clear();
  whole_.insert(key);
  return true;
}

absl::StatusOr<Partial*> StoreImpl::LoadPartial(uint32_t run,
                                                const v1::PayloadChunk& chunk) {
  const std::string prefix =
      keys::ChunkPrefix(run, chunk.digest(), chunk.length_bytes());
  const auto it = partials_.find(prefix);
  if (it != partials_.end()) return &it->second;
  Partial partial;
  partial.hash.reset(XXH3_createState());
  XXH3_128bits_reset(partial.hash.get());
  RP_ASSIGN_OR_RETURN(
      const std::optional<std::string> first,
      index_->Get(keys::Chunk(run, chunk.digest(), chunk.length_bytes(), 0)));
  if (first.has_value()) {
    // After a restart: hash again what is already there.
    RP_RETURN_IF_ERROR(index_->Scan(prefix, [&](absl::string_view key,
                                                absl::string_view value) {
      v1::ChunkRow row;
      if (!row.ParseFromArray(value.data(), static_cast<int>(value.size()))) {
        return absl::DataLossError("the row of a chunk cannot be read");
      }
      if (keys::ParseChunkOffset(key) != partial.next_offset)
        return absl::OkStatus();
      std::string data;
      RP_RETURN_IF_ERROR(payloads_->Read(row, &data));
      XXH3_128bits_update(partial.hash.get(), data.data(), data.size());
      partial.next_offset += data.size();
      return absl::OkStatus();
    }));
  }
  return &(partials_[prefix] = std::move(partial));
}

absl::Status StoreImpl::AddChunk(v1::RunRow* run, const v1::PayloadChunk& chunk,
                                 Work* work) {
  const uint64_t size = chunk.data().size();
  if (chunk.digest().size() != 16 ||
      chunk.length_bytes() > options_.max_payload_bytes || size == 0 ||
      chunk.offset_bytes() > chunk.length_bytes() ||
      size > chunk.length_bytes() - chunk.offset_bytes()) {
    return absl::InvalidArgumentError("a payload chunk has impossible lengths");
  }
  if (Crc32c(chunk.data()) != chunk.crc32c()) {
    return absl::InvalidArgumentError(
        "a payload chunk does not match its checksum");
  }
  RP_ASSIGN_OR_RETURN(const bool whole,
                      IsWhole(run->id(), chunk.digest(), chunk.length_bytes()));
  if (whole) {
    // Somebody is about to refer to it.
    touched_[keys::Payload(run->id(), chunk.digest(), chunk.length_bytes())] =
        run->updated_unix_ns();
    return absl::OkStatus();
  }
  RP_ASSIGN_OR_RETURN(Partial* const partial, LoadPartial(run->id(), chunk));
  // Its forerunner was lost: the payload stays incomplete and the ledger says
  // so.
  if (chunk.offset_bytes() > partial->next_offset) return absl::OkStatus();
  // Another rank may have cut the same payload elsewhere: the new bytes count.
  const uint64_t known = partial->next_offset - chunk.offset_bytes();
  if (known >= size) return absl::OkStatus();
  const absl::string_view fresh = absl::string_view(chunk.data()).substr(known);
  XXH3_128bits_update(partial->hash.get(), fresh.data(), fresh.size());
  ChunkToAppend append;
  append.run = run->id();
  append.digest = chunk.digest();
  append.payload_length = chunk.length_bytes();
  append.offset = partial->next_offset;
  append.data = fresh;
  append.crc32c = known == 0 ? chunk.crc32c() : Crc32c(fresh);
  work->chunks.push_back(append);
  work->chunk_keys.push_back(keys::Chunk(run->id(), chunk.digest(),
                                         chunk.length_bytes(), append.offset));
  partial->next_offset += fresh.size();
  if (partial->next_offset == chunk.length_bytes()) {
    v1::PayloadRow row;
    row.set_corrupt(DigestOf(partial->hash.get()) != chunk.digest());
    const std::string key =
        keys::Payload(run->id(), chunk.digest(), chunk.length_bytes());
    work->batch->Put(key, row.SerializeAsString());
    const std::string prefix =
        keys::ChunkPrefix(run->id(), chunk.digest(), chunk.length_bytes());
    partials_.erase(prefix);
    if (row.corrupt()) {
      // Bytes of another digest make way for the right ones.
      for (std::string& pending : work->chunk_keys) {
        if (absl::StartsWith(pending, prefix)) pending.clear();
      }
      RP_RETURN_IF_ERROR(
          index_->Scan(prefix, [&](absl::string_view old, absl::string_view) {
            work->batch->Delete(old);
            return absl::OkStatus();
          }));
    } else {
      whole_.insert(key);
      run->set_stored_payload_bytes(run->stored_payload_bytes() +
                                    chunk.length_bytes());
    }
  }
  return absl::OkStatus();
}

absl::Status StoreImpl::AddBatch(const std::string& run_name, v1::RunRow* run,
                                 uint64_t incarnation,
                                 const v1::RecordBatch& records, Work* work) {
  if (records.step() < 0)
    return absl::InvalidArgumentError("a record batch has a negative step");
  const StepId id(run->id(), records.step(), incarnation);
  RP_ASSIGN_OR_RETURN(v1::StepRow* const step, LoadStep(id));
  if (step->deleted_unix_ns() != 0) {
    // Latecomers of a deleted step are counted, not kept.
    step->set_rank_records(step->rank_records() +
                           static_cast<uint64_t>(records.records_size()));
    work->steps.insert(id);
    return absl::OkStatus();
  }
  for (const v1::Record& record : records.records()) {
    if (record.has_loss())
      lost_records_[record.loss().reason()] += record.loss().records();
    CountRecord(
        record,
        [&](const v1::PayloadRef& payload) {
          run->set_offered_payload_bytes(run->offered_payload_bytes() +
                                         payload.length_bytes());
          if (payload.digest().size() != 16) return;
          work->batch->Put(keys::Reference(run->id(), payload.digest(),
                                           payload.length_bytes(),
                                           records.step(), incarnation),
                           "");
        },
        step);
    work->batch->Put(
        keys::Record(run->id(), records.step(), incarnation, record.order()),
        record.SerializeAsString());
  }
  run->set_records(run->records() +
                   static_cast<uint64_t>(records.records_size()));
  step->set_updated_unix_ns(run->updated_unix_ns());
  work->steps.insert(id);
  work->runs.insert(run_name);
  return absl::OkStatus();
}

void StoreImpl::DropCaches() {
  incarnations_.clear();
  steps_.clear();
  partials_.clear();
  whole_.clear();
  for (auto& [name, row] : runs_) {
    const auto stored = GetMessage<v1::RunRow>(index_.get(), keys::Run(name));
    if (stored.ok() && stored->has_value()) row = **stored;
  }
}

absl::Status StoreImpl::Commit(absl::Span<const FrameToStore> frames) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(sticky_);
  uint64_t bytes = 0;
  for (const FrameToStore& f : frames) bytes += f.frame->ByteSizeLong();
  RP_RETURN_IF_ERROR(CheckSpace(bytes));
  Work work;
  work.batch = index_->NewBatch();
  const int64_t now = absl::ToUnixNanos(clock_->Now());
  const absl::Status built = [&]() -> absl::Status {
    mutex_.AssertHeld();
    for (const FrameToStore& f : frames) {
      RP_ASSIGN_OR_RETURN(v1::RunRow* const run,
                          LoadRun(f.identity->run(), /*create=*/true));
      RP_ASSIGN_OR_RETURN(v1::IncarnationRow* const row,
                          LoadIncarnation(run->id(), *f.identity));
      const uint64_t sequence = f.frame->sequence();
      if (sequence <= row->committed_sequence()) continue;  // a duplicate
      if (sequence != row->committed_sequence() + 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "frames ", row->committed_sequence() + 1, " to ", sequence - 1,
            " of run ", f.identity->run(), " are missing"));
      }
      run->set_updated_unix_ns(now);
      if (f.frame->has_batch()) {
        RP_RETURN_IF_ERROR(AddBatch(f.identity->run(), run,
                                    f.identity->incarnation(), f.frame->batch(),
                                    &work));
      } else if (f.frame->has_chunk()) {
        RP_RETURN_IF_ERROR(AddChunk(run, f.frame->chunk(), &work));
      }
      row->set_committed_sequence(sequence);
      row->set_updated_unix_ns(now);
      if (f.frame->has_batch()) row->set_last_step(f.frame->batch().step());
      work.incarnations.insert({run->id(), f.identity->incarnation()});
      work.runs.insert(f.identity->run());
    }
    return absl::OkStatus();
  }();
  if (!built.ok()) {
    DropCaches();
    return built;
  }
  // Bytes first, then what points at them.
  if (!work.chunks.empty()) {
    absl::StatusOr<std::vector<v1::ChunkRow>> rows =
        payloads_->Append(work.chunks);
    if (!rows.ok()) {
      DropCaches();
      bytes_since_space_check_ = kFreeSpaceCheckBytes;
      if (!absl::IsResourceExhausted(rows.status())) sticky_ = rows.status();
      return rows.status();
    }
    for (size_t i = 0; i < rows->size(); ++i) {
      if (work.chunk_keys[i].empty()) continue;
      work.batch->Put(work.chunk_keys[i], (*rows)[i].SerializeAsString());
    }
  }
  for (const RunIncarnation& id : work.incarnations) {
    work.batch->Put(keys::Incarnation(id.first, id.second),
                    incarnations_[id].SerializeAsString());
  }
  for (const StepId& id : work.steps) {
    work.batch->Put(
        keys::Step(std::get<0>(id), std::get<1>(id), std::get<2>(id)),
        steps_[id].SerializeAsString());
  }
  for (const std::string& run : work.runs)
    work.batch->Put(keys::Run(run), runs_[run].SerializeAsString());
  if (const absl::Status status =
          index_->Write(std::move(work.batch), /*sync=*/false);
      !status.ok()) {
    DropCaches();
    // Where there was no room nothing was written, and the index begins anew
    // once there is.
    if (absl::IsResourceExhausted(status)) {
      bytes_since_space_check_ = kFreeSpaceCheckBytes;
    } else {
      sticky_ = status;
    }
    return status;
  }
  return absl::OkStatus();
}

absl::Status StoreImpl::Sync() {
  {
    absl::MutexLock lock(&mutex_);
    RP_RETURN_IF_ERROR(sticky_);
  }
  // Commits go on meanwhile; what they add may be synced or not.
  absl::Status status = payloads_->Sync();
  if (status.ok()) status = index_->Write(index_->NewBatch(), /*sync=*/true);
  if (status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  // The index waits for room; nothing was synced and nothing is lost.
  if (absl::IsResourceExhausted(status)) return status;
  if (sticky_.ok()) sticky_ = status;
  return status;
}

bool StoreImpl::HasPayload(const std::string& run, absl::string_view digest,
                           uint64_t length_bytes) {
  if (digest.size() != 16) return false;
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<v1::RunRow*> row = LoadRun(run, /*create=*/false);
  if (!row.ok()) return false;
  const absl::StatusOr<bool> whole =
      IsWhole((*row)->id(), digest, length_bytes);
  return whole.ok() && *whole;
}

absl::StatusOr<std::vector<v1::RunInfo>> StoreImpl::ListRuns() {
  std::map<std::string, v1::RunRow> runs;
  {
    absl::MutexLock lock(&mutex_);
    runs = runs_;
  }
  std::vector<v1::RunInfo> out;
  for (const auto& [name, row] : runs) {
    v1::RunInfo& info = out.emplace_back();
    info.set_run(name);
    info.set_created_unix_ns(row.created_unix_ns());
    info.set_updated_unix_ns(row.updated_unix_ns());
    info.set_records(row.records());
    info.set_stored_payload_bytes(row.stored_payload_bytes());
    info.set_offered_payload_bytes(row.offered_payload_bytes());
    std::set<std::string> processes;
    std::set<int64_t> steps;
    RP_ASSIGN_OR_RETURN(const std::vector<v1::StepInfo> step_infos,
                        ListSteps(name));
    for (const v1::StepInfo& step : step_infos) {
      if (step.deleted()) continue;
      processes.insert(
          step.has_rank() ? absl::StrCat("rank", step.rank())
                          : absl::StrCat("proc", step.pid(), "@", step.host()));
      steps.insert(step.step());
    }
    info.set_ranks(processes.size());
    info.set_steps(steps.size());
  }
  return out;
}

absl::StatusOr<std::vector<v1::StepInfo>> StoreImpl::ListSteps(
    const std::string& run) {
  uint32_t id = 0;
  {
    absl::MutexLock lock(&mutex_);
    RP_ASSIGN_OR_RETURN(const v1::RunRow* const row,
                        LoadRun(run, /*create=*/false));
    id = row->id();
  }
  std::map<uint64_t, v1::Identity> identities;
  RP_RETURN_IF_ERROR(index_->Scan(
      keys::IncarnationPrefix(id),
      [&](absl::string_view, absl::string_view value) -> absl::Status {
        v1::IncarnationRow row;
        if (!row.ParseFromArray(value.data(), static_cast<int>(value.size()))) {
          return absl::DataLossError(
              "the row of an incarnation cannot be read");
        }
        identities[row.identity().incarnation()] = row.identity();
        return absl::OkStatus();
      }));
  std::vector<v1::StepInfo> out;
  RP_RETURN_IF_ERROR(index_->Scan(
      keys::StepPrefix(id),
      [&](absl::string_view key, absl::string_view value) -> absl::Status {
        v1::StepRow row;
        const std::optional<keys::StepParts> parts = keys::ParseStep(key);
        if (!parts.has_value() ||
            !row.ParseFromArray(value.data(), static_cast<int>(value.size()))) {
          return absl::DataLossError("the row of a step cannot be read");
        }
        const v1::Identity& identity = identities[parts->incarnation];
        v1::StepInfo& info = out.emplace_back();
        info.set_step(parts->step);
        if (identity.has_rank()) info.set_rank(identity.rank());
        info.set_pid(identity.pid());
        info.set_host(identity.host());
        info.set_incarnation(parts->incarnation);
        info.set_records(row.records());
        info.set_payloads(row.payloads());
        info.set_updated_unix_ns(row.updated_unix_ns());
        info.set_lost(std::max(row.lost_records(), row.end().lost_records()) +
                      std::max(row.lost_payloads(), row.end().lost_payloads()));
        *info.mutable_losses() = row.losses();
        info.set_stored_records(row.rank_records());
        if (row.has_end()) {
          // A rank numbers its records densely and its end is the last.
          info.set_expected_records(row.end_order() + 1);
          info.set_expected_payloads(row.end().payloads());
        }
        info.set_filtered_calls(row.end().filtered_calls() +
                                row.gate_filtered());
        info.set_deleted(row.deleted_unix_ns() != 0);
        info.set_complete(!info.deleted() && row.has_end() && row.begun() &&
                          row.call_phases() >= row.end().call_phases());
        return absl::OkStatus();
      }));
  std::stable_sort(
      out.begin(), out.end(), [](const v1::StepInfo& a, const v1::StepInfo& b) {
        const auto rank = [](const v1::StepInfo& s) {
          return s.has_rank() ? s.rank() : INT64_MAX;
        };
        return std::make_tuple(a.step(), rank(a), a.pid(), a.incarnation()) <
               std::make_tuple(b.step(), rank(b), b.pid(), b.incarnation());
      });
  return out;
}

absl::Status StoreImpl::ForEachRecord(
    const StepKey& key,
    const std::function<absl::Status(const v1::Record&)>& callback) {
  uint32_t id = 0;
  {
    absl::MutexLock lock(&mutex_);
    RP_ASSIGN_OR_RETURN(const v1::RunRow* const row,
                        LoadRun(key.run, /*create=*/false));
    id = row->id();
  }
  v1::Record record;
  return index_->Scan(
      keys::RecordPrefix(id, key.step, key.incarnation),
      [&](absl::string_view, absl::string_view value) -> absl::Status {
        if (!record.ParseFromArray(value.data(),
                                   static_cast<int>(value.size()))) {
          return absl::DataLossError("a record cannot be read");
        }
        return callback(record);
      });
}

absl::Status StoreImpl::ReadPayload(
    const std::string& run, absl::string_view digest, uint64_t length_bytes,
    const std::function<absl::Status(absl::string_view)>& callback) {
  if (length_bytes == 0) return absl::OkStatus();
  uint32_t id = 0;
  {
    absl::MutexLock lock(&mutex_);
    RP_ASSIGN_OR_RETURN(const v1::RunRow* const row,
                        LoadRun(run, /*create=*/false));
    id = row->id();
    RP_ASSIGN_OR_RETURN(const bool whole, IsWhole(id, digest, length_bytes));
    if (!whole)
      return absl::NotFoundError("the payload is not whole in the archive");
  }
  uint64_t at = 0;
  std::string data;
  RP_RETURN_IF_ERROR(index_->Scan(
      keys::ChunkPrefix(id, digest, length_bytes),
      [&](absl::string_view key, absl::string_view value) -> absl::Status {
        v1::ChunkRow row;
        if (!row.ParseFromArray(value.data(), static_cast<int>(value.size())) ||
            keys::ParseChunkOffset(key) != at) {
          return absl::DataLossError("the chunks of a payload have a gap");
        }
        if (const absl::Status read = payloads_->Read(row, &data); !read.ok()) {
          // Moved to another segment since the scan began?
          RP_ASSIGN_OR_RETURN(const std::optional<v1::ChunkRow> now,
                              GetMessage<v1::ChunkRow>(index_.get(), key));
          if (!now.has_value())
            return absl::NotFoundError("the payload was deleted");
          if (now->SerializeAsString() == row.SerializeAsString()) return read;
          RP_RETURN_IF_ERROR(payloads_->Read(*now, &data));
        }
        at += data.size();
        return callback(data);
      }));
  if (at != length_bytes)
    return absl::DataLossError("the chunks of a payload end early");
  return absl::OkStatus();
}

absl::Status StoreImpl::NoteLostFrames(const v1::Identity& identity,
                                       uint64_t through_sequence) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(sticky_);
  RP_ASSIGN_OR_RETURN(v1::RunRow* const run,
                      LoadRun(identity.run(), /*create=*/true));
  RP_ASSIGN_OR_RETURN(v1::IncarnationRow* const row,
                      LoadIncarnation(run->id(), identity));
  if (through_sequence <= row->committed_sequence()) return absl::OkStatus();
  row->set_lost_frames(row->lost_frames() + through_sequence -
                       row->committed_sequence());
  row->set_committed_sequence(through_sequence);
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  batch->Put(keys::Incarnation(run->id(), identity.incarnation()),
             row->SerializeAsString());
  return index_->Write(std::move(batch), /*sync=*/false);
}

absl::Status StoreImpl::ForEachIncarnation(
    const std::string& run,
    const std::function<void(const v1::IncarnationRow&)>& callback) {
  uint32_t id = 0;
  {
    absl::MutexLock lock(&mutex_);
    RP_ASSIGN_OR_RETURN(const v1::RunRow* const row,
                        LoadRun(run, /*create=*/false));
    id = row->id();
  }
  return index_->Scan(
      keys::IncarnationPrefix(id),
      [&](absl::string_view, absl::string_view value) -> absl::Status {
        v1::IncarnationRow row;
        if (!row.ParseFromArray(value.data(), static_cast<int>(value.size())))
          return absl::DataLossError(
              "the row of an incarnation cannot be read");
        callback(row);
        return absl::OkStatus();
      });
}

absl::Status StoreImpl::Exclusive(const std::function<absl::Status()>& fn) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(sticky_);
  absl::Status status = fn();
  // No space leaves nothing behind and may pass; what else failed is unknown.
  if (!status.ok() && !absl::IsResourceExhausted(status) &&
      !absl::IsFailedPrecondition(status))
    sticky_ = status;
  return status;
}

void StoreImpl::ForgetPayload(const std::string& payload_key) {
  mutex_.AssertHeld();
  whole_.erase(payload_key);
  std::string prefix = payload_key;
  prefix[0] = 'k';
  partials_.erase(prefix);
}

void StoreImpl::ForgetStep(uint32_t run, int64_t step, uint64_t incarnation) {
  mutex_.AssertHeld();
  steps_.erase({run, step, incarnation});
}

bool StoreImpl::OfferedLately(const std::string& payload_key) {
  mutex_.AssertHeld();
  const auto it = touched_.find(payload_key);
  std::string prefix = payload_key;
  prefix[0] = 'k';
  const int64_t since = absl::ToUnixNanos(clock_->Now() - options_.quiet_time);
  return (it != touched_.end() && it->second > since) ||
         partials_.contains(prefix);
}

absl::StatusOr<v1::VerifyReport> StoreImpl::Verify(
    const v1::VerifyRequest& request,
    const std::function<absl::Status(const v1::VerifyReport&)>& progress) {
  return VerifyArchive(index_.get(), payloads_.get(), request, progress);
}

absl::StatusOr<int64_t> StoreImpl::KeepFromStep(
    const std::string& run, const absl::flat_hash_set<uint64_t>& live) {
  const int64_t since = absl::ToUnixNanos(clock_->Now() - options_.quiet_time);
  int64_t keep_from = INT64_MAX;
  RP_RETURN_IF_ERROR(ForEachIncarnation(run, [&](const v1::IncarnationRow& r) {
    if (live.contains(r.identity().incarnation()) ||
        r.updated_unix_ns() > since)
      keep_from = std::min(keep_from, r.last_step() - kCollectorKeepsSteps);
  }));
  return keep_from;
}

absl::StatusOr<v1::DeleteReport> StoreImpl::DeleteRun(const std::string& name) {
  v1::DeleteReport report;
  uint32_t id = 0;
  RP_RETURN_IF_ERROR(Exclusive([&]() -> absl::Status {
    mutex_.AssertHeld();
    const v1::RunRow row = runs_[name];
    id = row.id();
    v1::RunTombstone tombstone;
    tombstone.set_deleted_unix_ns(absl::ToUnixNanos(clock_->Now()));
    *tombstone.mutable_run() = row;
    std::unique_ptr<IndexBatch> batch = index_->NewBatch();
    batch->Delete(keys::Run(name));
    batch->Put(keys::DeletedRun(id), "");
    batch->Put(keys::Tombstone(name), tombstone.SerializeAsString());
    runs_.erase(name);
    DropCaches();
    return index_->Write(std::move(batch), /*sync=*/true);
  }));
  RP_RETURN_IF_ERROR(DeleteRunRows(this, id, &report));
  return report;
}

absl::StatusOr<v1::DeleteReport> StoreImpl::Delete(
    const DeleteOptions& options) {
  absl::MutexLock lock(&maintenance_mutex_);
  uint32_t id = 0;
  {
    absl::MutexLock run_lock(&mutex_);
    RP_ASSIGN_OR_RETURN(const v1::RunRow* const row,
                        LoadRun(options.run, /*create=*/false));
    id = row->id();
  }
  v1::DeleteReport report;
  if (!options.steps.has_value()) {
    bool live = false;
    RP_RETURN_IF_ERROR(
        ForEachIncarnation(options.run, [&](const v1::IncarnationRow& row) {
          live = live || options.live_incarnations.contains(
                             row.identity().incarnation());
        }));
    if (live) {
      return absl::FailedPreconditionError(
          absl::StrCat("run \"", options.run,
                       "\" has connected ranks; end them, or delete steps"));
    }
    RP_ASSIGN_OR_RETURN(report, DeleteRun(options.run));
  } else {
    RP_ASSIGN_OR_RETURN(const std::vector<v1::StepInfo> all,
                        ListSteps(options.run));
    std::vector<StepToDelete> steps;
    for (const v1::StepInfo& step : all) {
      if (!step.deleted() && options.steps->count(step.step()) > 0)
        steps.push_back({step.step(), step.incarnation()});
    }
    if (steps.empty())
      return absl::NotFoundError("none of these steps is in the archive");
    RP_ASSIGN_OR_RETURN(const int64_t keep_from,
                        KeepFromStep(options.run, options.live_incarnations));
    RP_RETURN_IF_ERROR(DeleteSteps(this, id, steps, keep_from,
                                   absl::ToUnixNanos(clock_->Now()), &report));
    for (const char table : {'c', 'f', 'k'})
      index_->Compact(keys::TableOfRun(table, id));
  }
  RP_ASSIGN_OR_RETURN(const CompactResult compacted,
                      CompactSegments(this, {options_.min_live_share}));
  report.set_file_bytes(compacted.bytes_removed);
  return report;
}

absl::StatusOr<GarbageReport> StoreImpl::CollectGarbage(
    const absl::flat_hash_set<uint64_t>& live_incarnations) {
  absl::MutexLock lock(&maintenance_mutex_);
  RP_RETURN_IF_ERROR(ResumeDeletions(this));
  std::map<std::string, uint32_t> runs;
  {
    absl::MutexLock run_lock(&mutex_);
    for (const auto& [name, row] : runs_) runs[name] = row.id();
    const int64_t since =
        absl::ToUnixNanos(clock_->Now() - options_.quiet_time);
    absl::erase_if(touched_,
                   [since](const auto& t) { return t.second <= since; });
  }
  GarbageReport report;
  v1::DeleteReport freed;
  for (const auto& [name, id] : runs) {
    const absl::StatusOr<int64_t> keep_from =
        KeepFromStep(name, live_incarnations);
    // Only a run that nobody writes to any more has certain orphans.
    if (!keep_from.ok() || *keep_from != INT64_MAX) continue;
    RP_RETURN_IF_ERROR(FreeOrphans(this, id, &freed));
  }
  RP_ASSIGN_OR_RETURN(const CompactResult compacted,
                      CompactSegments(this, {options_.min_live_share}));
  report.orphans_freed = freed.payloads();
  report.segments_removed = compacted.segments_removed;
  report.bytes_removed = compacted.bytes_removed;
  report.bytes_copied = compacted.bytes_copied;
  report.live_bytes = compacted.live_bytes;
  report.total_bytes = compacted.total_bytes;
  return report;
}

StoreTotals StoreImpl::Totals() {
  absl::MutexLock lock(&mutex_);
  StoreTotals totals;
  totals.runs = runs_.size();
  for (const auto& [name, row] : runs_) {
    totals.records += row.records();
    totals.stored_payload_bytes += row.stored_payload_bytes();
    totals.offered_payload_bytes += row.offered_payload_bytes();
  }
  for (const auto& [reason, count] : lost_records_) {
    totals.lost_records[v1::LossReason_IsValid(reason)
                            ? v1::LossReason_Name(
                                  static_cast<v1::LossReason>(reason))
                            : absl::StrCat(reason)] = count;
  }
  return totals;
}

absl::StatusOr<v1::BackupReport> StoreImpl::Backup(const std::string& directory,
                                                   bool copy) {
  // Nothing may be deleted or moved while it is copied.
  absl::MutexLock lock(&maintenance_mutex_);
  RP_RETURN_IF_ERROR(Sync());
  return BackupArchive(index_.get(), payloads_.get(), file_system_, directory,
                       copy);
}

absl::Status StoreImpl::SavePlan(const std::string& run,
                                 const v1::PlanSpec& plan) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(sticky_);
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  batch->Put(keys::Plan(run), plan.SerializeAsString());
  return index_->Write(std::move(batch), /*sync=*/true);
}

absl::StatusOr<std::optional<v1::PlanSpec>> StoreImpl::LoadPlan(
    const std::string& run) {
  return GetMessage<v1::PlanSpec>(index_.get(), keys::Plan(run));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const StoreOptions& options,
                                                   FileSystem* file_system,
                                                   const Clock* clock) {
  RP_RETURN_IF_ERROR(file_system->CreateDirectories(options.data_dir));
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<FileLock> lock,
      file_system->Lock(absl::StrCat(options.data_dir, "/LOCK")));
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<Index> index,
      OpenLevelDbIndex({absl::StrCat(options.data_dir, "/index"),
                        options.leveldb_write_buffer_bytes,
                        options.leveldb_cache_bytes, file_system}));
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<PayloadStore> payloads,
      PayloadStore::Open({absl::StrCat(options.data_dir, "/segments"),
                          options.segment_bytes, options.compress_payloads},
                         file_system));
  auto store =
      std::make_unique<StoreImpl>(options, file_system, clock, std::move(lock),
                                  std::move(index), std::move(payloads));
  RP_RETURN_IF_ERROR(store->Initialise());
  return store;
}

}  // namespace rankprobe
