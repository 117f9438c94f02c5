#include "collector/store/store.h"

#include <xxhash.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "collector/store/index.h"
#include "collector/store/keys.h"
#include "collector/store/payload_refs.h"
#include "collector/store/payload_store.h"
#include "common/crc32c.h"
#include "common/status_macros.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {
namespace {

constexpr char kSchemaVersion[] = "1";
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

v1::LossCount* LossOf(v1::LossReason reason, v1::StepRow* step) {
  for (v1::LossCount& known : *step->mutable_losses()) {
    if (known.reason() == reason) return &known;
  }
  v1::LossCount* const count = step->add_losses();
  count->set_reason(reason);
  return count;
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

class StoreImpl : public Store {
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

 private:
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
};

absl::Status StoreImpl::Initialise() {
  absl::MutexLock lock(&mutex_);
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> schema,
                      index_->Get(keys::kSchema));
  if (schema.has_value() && *schema != kSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(options_.data_dir, " has format version ", *schema,
                     "; this rankprobed reads version ", kSchemaVersion));
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
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> clean,
                      index_->Get(keys::kClean));
  recovery_.torn_bytes_dropped = payloads_->recovery().torn_bytes_dropped;
  recovery_.segments = payloads_->recovery().segments;
  if (schema.has_value() && !clean.has_value())
    RP_RETURN_IF_ERROR(RemoveDanglingChunks());
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  batch->Put(keys::kSchema, kSchemaVersion);
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
  if (chunk.offset_bytes() > 0) {
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
  if (whole) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(Partial* const partial, LoadPartial(run->id(), chunk));
  // A piece that is already there, or one whose forerunner was lost: in the
  // second case the payload stays incomplete and the export lists it.
  if (chunk.offset_bytes() != partial->next_offset) return absl::OkStatus();
  XXH3_128bits_update(partial->hash.get(), chunk.data().data(), size);
  partial->next_offset += size;
  ChunkToAppend append;
  append.run = run->id();
  append.digest = chunk.digest();
  append.payload_length = chunk.length_bytes();
  append.offset = chunk.offset_bytes();
  append.data = chunk.data();
  append.crc32c = chunk.crc32c();
  work->chunks.push_back(append);
  work->chunk_keys.push_back(keys::Chunk(
      run->id(), chunk.digest(), chunk.length_bytes(), chunk.offset_bytes()));
  if (partial->next_offset == chunk.length_bytes()) {
    v1::PayloadRow row;
    row.set_corrupt(DigestOf(partial->hash.get()) != chunk.digest());
    const std::string key =
        keys::Payload(run->id(), chunk.digest(), chunk.length_bytes());
    work->batch->Put(key, row.SerializeAsString());
    partials_.erase(
        keys::ChunkPrefix(run->id(), chunk.digest(), chunk.length_bytes()));
    if (!row.corrupt()) {
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
  for (const v1::Record& record : records.records()) {
    step->set_records(step->records() + 1);
    if (record.order() < kFirstAddedOrder)
      step->set_rank_records(step->rank_records() + 1);
    switch (record.body_case()) {
      case v1::Record::kCall: {
        step->set_call_phases(step->call_phases() + 1);
        uint64_t count = 0, bytes = 0;
        ForEachTensor(record.call(), [&](const v1::TensorSummary& tensor) {
          if (!tensor.has_payload()) return;
          ++count;
          if (tensor.payload().lost() != v1::LOSS_REASON_UNSPECIFIED) {
            v1::LossCount* const lost = LossOf(tensor.payload().lost(), step);
            lost->set_referred_payloads(lost->referred_payloads() + 1);
          }
          bytes += tensor.payload().length_bytes();
        });
        step->set_payloads(step->payloads() + count);
        run->set_offered_payload_bytes(run->offered_payload_bytes() + bytes);
        break;
      }
      case v1::Record::kStepBegin:
        step->set_begun(true);
        break;
      case v1::Record::kStepEnd:
        *step->mutable_end() = record.step_end();
        step->set_end_order(record.order());
        break;
      case v1::Record::kLoss:
        if (record.loss().reason() == v1::LOSS_REASON_FILTERED) {
          step->set_gate_filtered(step->gate_filtered() +
                                  record.loss().records());
          break;
        }
        if (record.loss().records() + record.loss().payloads() > 0) {
          v1::LossCount* const lost = LossOf(record.loss().reason(), step);
          lost->set_records(lost->records() + record.loss().records());
          lost->set_payloads(lost->payloads() + record.loss().payloads());
        }
        step->set_lost_records(step->lost_records() + record.loss().records());
        step->set_lost_payloads(step->lost_payloads() +
                                record.loss().payloads());
        break;
      default:
        break;
    }
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
      if (!absl::IsResourceExhausted(rows.status())) sticky_ = rows.status();
      return rows.status();
    }
    for (size_t i = 0; i < rows->size(); ++i)
      work.batch->Put(work.chunk_keys[i], (*rows)[i].SerializeAsString());
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
    // LevelDB refuses all writes after a failed one.
    sticky_ = status;
    DropCaches();
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
        info.set_complete(row.has_end() && row.begun() &&
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
        RP_RETURN_IF_ERROR(payloads_->Read(row, &data));
        at += data.size();
        return callback(data);
      }));
  if (at != length_bytes)
    return absl::DataLossError("the chunks of a payload end early");
  return absl::OkStatus();
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
                        options.leveldb_cache_bytes}));
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<PayloadStore> payloads,
      PayloadStore::Open(
          {absl::StrCat(options.data_dir, "/segments"), options.segment_bytes},
          file_system));
  auto store =
      std::make_unique<StoreImpl>(options, file_system, clock, std::move(lock),
                                  std::move(index), std::move(payloads));
  RP_RETURN_IF_ERROR(store->Initialise());
  return store;
}

}  // namespace rankprobe
