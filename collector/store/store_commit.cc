#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collector/store/keys.h"
#include "collector/store/step_counts.h"
#include "collector/store/store_impl.h"
#include "common/crc32c.h"

namespace rankprobe {
namespace {

// Digests known to be whole, kept to answer HasPayload without the index.
constexpr size_t kMaxKnownPayloads = 1 << 20;

}  // namespace

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
      partial.hash.Add(data);
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
  partial->hash.Add(fresh);
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
    row.set_corrupt(partial->hash.Digest() != chunk.digest());
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

}  // namespace rankprobe
