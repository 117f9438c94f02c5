// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collector/store/keys.h"
#include "collector/store/store_impl.h"
#include "common/base/limits.h"
#include "common/io/crc32c.h"

namespace rankprobe {
namespace {

// Digests known to be whole, kept to answer HasPayload without the index.
constexpr size_t kMaxKnownPayloads = 1 << 20;
// Open ones; what is not known costs questions to the index.
constexpr size_t kMaxKnownSteps = 100000;
// Of one incarnation: its row is written with each of its commits.
constexpr int kMaxRefusals = 32;
constexpr int kMaxAbsentRanges = 256;

void NoteRefusal(const v1::RefusalRow& refusal, v1::IncarnationRow* row) {
  row->set_refused_frames(row->refused_frames() + 1);
  if (const int over = row->refusals_size() - kMaxRefusals + 1; over > 0)
    row->mutable_refusals()->DeleteSubrange(0, over);
  *row->add_refusals() = refusal;
}

void NoteStep(int64_t step, v1::IncarnationRow* row) {
  row->set_last_step(step);
  row->set_lowest_step(
      row->has_lowest_step() ? std::min(row->lowest_step(), step) : step);
  row->set_highest_step(std::max(row->highest_step(), step));
}

// Behind those that are known.
void NoteAbsent(uint64_t first, uint64_t last, v1::IncarnationRow* row) {
  const int known = row->absent_size();
  if (known > 0 && (known >= kMaxAbsentRanges ||
                    row->absent(known - 1).last() + 1 == first)) {
    row->mutable_absent(known - 1)->set_last(last);
    return;
  }
  v1::FrameRange* const range = row->add_absent();
  range->set_first(first);
  range->set_last(last);
}

}  // namespace

absl::Status StoreImpl::CheckSpace(uint64_t bytes) {
  if (bytes <= space_allowance_) {
    space_allowance_ -= bytes;
    return absl::OkStatus();
  }
  space_allowance_ = 0;
  RP_ASSIGN_OR_RETURN(const uint64_t free,
                      file_system_->FreeBytes(options_.data_dir));
  if (free < options_.min_free_bytes + bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        options_.data_dir, " has ", free, " free bytes; writing stops below ",
        options_.min_free_bytes));
  }
  // Half of what is left, because the index writes as well, and other programs
  // may: min_free_bytes is needed to delete runs.
  space_allowance_ = std::min(kFreeSpaceCheckBytes,
                              (free - options_.min_free_bytes - bytes) / 2);
  return absl::OkStatus();
}

absl::StatusOr<bool> StoreImpl::IsWhole(uint32_t run, absl::string_view digest,
                                        uint64_t length) {
  const std::string key = keys::Payload(run, digest, length);
  if (whole_.contains(key)) return true;
  RP_ASSIGN_OR_RETURN(const std::optional<v1::PayloadRow> row,
                      GetMessage<v1::PayloadRow>(index_.get(), key));
  if (!row.has_value() || row->corrupt() || row->damaged()) return false;
  if (whole_.size() > kMaxKnownPayloads) whole_.clear();
  whole_.insert(key);
  return true;
}

absl::Status StoreImpl::DropRows(const std::string& prefix, Work* work) {
  return index_->Scan(prefix, [&](absl::string_view key, absl::string_view) {
    work->batch->Delete(key);
    work->dropped.insert(std::string(key));
    return absl::OkStatus();
  });
}

absl::StatusOr<Partial*> StoreImpl::LoadPartial(const std::string& prefix,
                                                Work* work) {
  if (Partial* const found = partials_.Find(prefix); found != nullptr) {
    if (work->partials_before.count(prefix) == 0)
      work->partials_before.emplace(prefix, found->Clone());
    return found;
  }
  work->partials_before.try_emplace(prefix, std::nullopt);
  Partial partial;
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> first,
                      index_->Get(keys::AtOffset(prefix, 0)));
  if (!first.has_value()) return partials_.Put(prefix, std::move(partial));
  // After a restart: hash again what is already there.
  const absl::Status loaded =
      index_->Scan(prefix, [&](absl::string_view key, absl::string_view value) {
        v1::ChunkRow row;
        if (!row.ParseFromArray(value.data(), static_cast<int>(value.size())) ||
            keys::ParseChunkOffset(key) != partial.next_offset)
          return absl::DataLossError("the chunks of a payload have a gap");
        std::string data;
        RP_RETURN_IF_ERROR(payloads_->Read(row, &data));
        partial.hash.Add(data);
        partial.next_offset += data.size();
        return absl::OkStatus();
      });
  if (absl::IsDataLoss(loaded)) {
    // Damaged: this sender's chunks go, and the ledger misses the payload
    // unless they come again from the beginning.
    RP_RETURN_IF_ERROR(DropRows(prefix, work));
    partial = Partial();
  } else if (!loaded.ok()) {
    return loaded;
  }
  return partials_.Put(prefix, std::move(partial));
}

absl::Status StoreImpl::CheckChunk(const v1::PayloadChunk& chunk,
                                   bool verified) const {
  const uint64_t size = chunk.data().size();
  if (chunk.digest().size() != kPayloadDigestBytes ||
      chunk.length_bytes() > options_.max_payload_bytes || size == 0 ||
      chunk.offset_bytes() > chunk.length_bytes() ||
      size > chunk.length_bytes() - chunk.offset_bytes()) {
    return absl::InvalidArgumentError("a payload chunk has impossible lengths");
  }
  if (!verified && Crc32c(chunk.data()) != chunk.crc32c()) {
    return absl::InvalidArgumentError(
        "a payload chunk does not match its checksum");
  }
  return absl::OkStatus();
}

absl::Status StoreImpl::AddChunk(v1::RunRow* run, uint64_t sender,
                                 const v1::PayloadChunk& chunk,
                                 absl::string_view content_digest, Work* work) {
  const uint64_t size = chunk.data().size(), length = chunk.length_bytes();
  RP_ASSIGN_OR_RETURN(const bool whole,
                      IsWhole(run->id(), chunk.digest(), length));
  if (whole) {
    // Somebody is about to refer to it.
    touched_[keys::Payload(run->id(), chunk.digest(), length)] =
        clock_->MonotonicNanos();
    return absl::OkStatus();
  }
  ChunkToAppend append;
  append.run = run->id();
  append.digest = chunk.digest();
  append.payload_length = length;
  append.data = chunk.data();
  append.crc32c = chunk.crc32c();
  const std::string prefix =
      keys::PartialPrefix(run->id(), chunk.digest(), length, sender);
  if (size == length) {
    // Most payloads are one chunk.
    work->chunks.push_back(append);
    work->chunk_keys.push_back(
        keys::Chunk(run->id(), chunk.digest(), length, 0));
    PayloadHash hash;
    hash.Add(chunk.data());
    return FinishPayload(run, chunk, prefix, hash.Digest(), content_digest,
                         work);
  }
  RP_ASSIGN_OR_RETURN(Partial* const partial, LoadPartial(prefix, work));
  // Its forerunner was lost: the payload stays incomplete and the ledger says
  // so.
  if (chunk.offset_bytes() > partial->next_offset) return absl::OkStatus();
  // The sender may have cut it elsewhere before: the new bytes count.
  const uint64_t known = partial->next_offset - chunk.offset_bytes();
  if (known >= size) return absl::OkStatus();
  append.data.remove_prefix(known);
  append.offset = partial->next_offset;
  if (known > 0) append.crc32c = Crc32c(append.data);
  partial->hash.Add(append.data);
  partial->next_offset += append.data.size();
  work->chunks.push_back(append);
  work->chunk_keys.push_back(keys::AtOffset(prefix, append.offset));
  if (partial->next_offset < length) return absl::OkStatus();
  const std::string digest = partial->hash.Digest();
  partials_.Erase(prefix);
  return FinishPayload(run, chunk, prefix, digest, content_digest, work);
}

absl::Status StoreImpl::FinishPayload(
    v1::RunRow* run, const v1::PayloadChunk& chunk, const std::string& partial,
    const std::string& digest, absl::string_view content_digest, Work* work) {
  const uint64_t length = chunk.length_bytes();
  const bool one_chunk = chunk.data().size() == length;
  const std::string key = keys::Payload(run->id(), chunk.digest(), length);
  if (digest != (content_digest.empty() ? chunk.digest() : content_digest)) {
    // Bytes of another digest are not kept; nobody else's are touched.
    for (std::string& pending : work->chunk_keys) {
      if (absl::StartsWith(pending, partial)) pending.clear();
    }
    if (one_chunk) work->chunk_keys.back().clear();
    RP_RETURN_IF_ERROR(DropRows(partial, work));
    RP_ASSIGN_OR_RETURN(const std::optional<std::string> row, index_->Get(key));
    if (row.has_value()) return absl::OkStatus();
    v1::PayloadRow corrupt;
    corrupt.set_corrupt(true);
    work->batch->Put(key, corrupt.SerializeAsString());
    return absl::OkStatus();
  }
  // What damage or a lost end left of it makes way.
  const std::string chunks =
      keys::ChunkPrefix(run->id(), chunk.digest(), length);
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> first,
                      index_->Get(keys::AtOffset(chunks, 0)));
  if (first.has_value()) RP_RETURN_IF_ERROR(DropRows(chunks, work));
  if (!one_chunk) {
    RP_RETURN_IF_ERROR(index_->Scan(
        partial, [&](absl::string_view row, absl::string_view value) {
          if (work->dropped.contains(row)) return absl::OkStatus();
          work->batch->Put(keys::ChunkOfPartial(row), value);
          work->batch->Delete(row);
          return absl::OkStatus();
        }));
    for (std::string& pending : work->chunk_keys) {
      if (absl::StartsWith(pending, partial))
        pending = keys::ChunkOfPartial(pending);
    }
  }
  v1::PayloadRow row;
  row.set_content_digest(std::string(content_digest));
  work->batch->Put(key, row.SerializeAsString());
  if (whole_.insert(key).second) work->whole_added.push_back(key);
  run->set_stored_payload_bytes(run->stored_payload_bytes() + length);
  return absl::OkStatus();
}

void StoreImpl::Undo(Work* work) {
  for (const RunIncarnation& id : work->incarnations) incarnations_.erase(id);
  for (const StepId& id : work->steps) steps_.erase(id);
  for (const std::string& key : work->whole_added) whole_.erase(key);
  for (auto& [prefix, partial] : work->partials_before) {
    if (partial.has_value()) {
      partials_.Put(prefix, *std::move(partial));
    } else {
      partials_.Erase(prefix);
    }
  }
  for (const std::string& name : work->runs) {
    const auto stored = GetMessage<v1::RunRow>(index_.get(), keys::Run(name));
    if (stored.ok() && stored->has_value()) runs_[name] = **stored;
  }
}

void StoreImpl::ForgetRun(uint32_t run) {
  const auto of_run = [run](const auto& row) {
    return std::get<0>(row.first) == run;
  };
  std::erase_if(incarnations_, of_run);
  std::erase_if(steps_, of_run);
  std::erase_if(next_orders_, of_run);
  std::erase_if(heard_, of_run);
  std::erase_if(open_rollups_, of_run);
  for (std::set<StepId>* const steps : {&pending_rollups_, &rollups_aside_})
    std::erase_if(*steps,
                  [run](const StepId& id) { return std::get<0>(id) == run; });
  std::erase_if(open_tiles_,
                [run](const auto& tile) { return tile.first.first == run; });
  std::erase_if(missing_tiles_, [run](const auto& tile) {
    return std::get<1>(tile.first) == run;
  });
  partials_.Erase(keys::TableOfRun('q', run));
  absl::erase_if(whole_, [run](const std::string& key) {
    return keys::ParseRun(key) == run;
  });
}

absl::Status StoreImpl::CheckFrames(absl::Span<const FrameToStore> frames) {
  std::map<RunIncarnation, uint64_t> held;
  for (const FrameToStore& f : frames) {
    RP_ASSIGN_OR_RETURN(v1::RunRow* const run,
                        LoadRun(f.identity->run(), /*create=*/true));
    RP_ASSIGN_OR_RETURN(v1::IncarnationRow* const row,
                        LoadIncarnation(run->id(), *f.identity));
    uint64_t& last = held.try_emplace({run->id(), f.identity->incarnation()},
                                      row->committed_sequence())
                         .first->second;
    const uint64_t sequence = f.frame->sequence();
    if (sequence <= last) continue;  // a duplicate
    if (sequence != last + 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("frames ", last + 1, " to ", sequence - 1, " of run ",
                       f.identity->run(), " are missing"));
    }
    if (f.frame->has_batch() && f.frame->batch().step() < 0)
      return absl::InvalidArgumentError("a record batch has a negative step");
    if (f.frame->has_chunk())
      RP_RETURN_IF_ERROR(CheckChunk(f.frame->chunk(), f.chunk_verified));
    last = sequence;
  }
  return absl::OkStatus();
}

absl::Status StoreImpl::Commit(absl::Span<const FrameToStore> frames) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(sticky_);
  uint64_t bytes = 0;
  for (const FrameToStore& f : frames)
    bytes += f.bytes > 0 ? f.bytes : f.frame->ByteSizeLong();
  RP_RETURN_IF_ERROR(CheckSpace(bytes));
  // What is refused is refused before anything is touched: one rank's fault
  // costs the others nothing.
  RP_RETURN_IF_ERROR(CheckFrames(frames));
  Work work;
  work.batch = index_->NewBatch();
  const int64_t now = absl::ToUnixNanos(clock_->Now());
  const int64_t heard = clock_->MonotonicNanos();
  const absl::Status built = [&]() -> absl::Status {
    mutex_.AssertHeld();
    for (const FrameToStore& f : frames) {
      RP_ASSIGN_OR_RETURN(v1::RunRow* const run,
                          LoadRun(f.identity->run(), /*create=*/true));
      RP_ASSIGN_OR_RETURN(v1::IncarnationRow* const row,
                          LoadIncarnation(run->id(), *f.identity));
      const uint64_t sequence = f.frame->sequence();
      if (sequence <= row->committed_sequence()) continue;  // a duplicate
      work.incarnations.insert({run->id(), f.identity->incarnation()});
      work.runs.insert(f.identity->run());
      run->set_updated_unix_ns(now);
      if (f.refusal != nullptr) NoteRefusal(*f.refusal, row);
      if (f.frame->has_batch()) {
        RP_RETURN_IF_ERROR(
            AddBatch(run, f.identity->incarnation(), *f.frame, &work));
      } else if (f.frame->has_chunk()) {
        RP_RETURN_IF_ERROR(AddChunk(run, f.identity->incarnation(),
                                    f.frame->chunk(), f.content_digest, &work));
      }
      row->set_committed_sequence(sequence);
      row->set_updated_unix_ns(now);
      if (f.frame->has_batch()) NoteStep(f.frame->batch().step(), row);
    }
    return absl::OkStatus();
  }();
  if (!built.ok()) {
    Undo(&work);
    return built;
  }
  // Bytes first, then what points at them.
  std::set<uint64_t> new_segments;
  if (!work.chunks.empty()) {
    absl::StatusOr<std::vector<v1::ChunkRow>> rows =
        payloads_->Append(work.chunks);
    if (!rows.ok()) {
      Undo(&work);
      space_allowance_ = 0;
      if (!absl::IsResourceExhausted(rows.status())) sticky_ = rows.status();
      return rows.status();
    }
    for (size_t i = 0; i < rows->size(); ++i) {
      if (work.chunk_keys[i].empty()) continue;
      work.batch->Put(work.chunk_keys[i], (*rows)[i].SerializeAsString());
    }
    for (const v1::ChunkRow& row : *rows) {
      if (named_segments_.count(row.segment()) > 0) continue;
      work.batch->Put(keys::Segment(row.segment()), "");
      new_segments.insert(row.segment());
    }
  }
  for (const RunIncarnation& id : work.incarnations) {
    work.batch->Put(keys::Incarnation(id.first, id.second),
                    incarnations_[id].SerializeAsString());
  }
  for (const StepId& id : work.steps) {
    const auto& [run, step, incarnation] = id;
    const v1::StepRow& row = steps_[id];
    work.batch->Put(keys::Step(run, step, incarnation),
                    row.SerializeAsString());
    // Also while it is open: a step without this row has a rollup that holds.
    if (row.deleted_unix_ns() == 0)
      work.batch->Put(keys::PendingRollup(run, step, incarnation), "");
  }
  for (const std::string& run : work.runs)
    work.batch->Put(keys::Run(run), runs_[run].SerializeAsString());
  if (const absl::Status status =
          index_->Write(std::move(work.batch), /*sync=*/false);
      !status.ok()) {
    Undo(&work);
    // Where there was no room nothing was written, and the index begins anew
    // once there is.
    if (absl::IsResourceExhausted(status)) {
      space_allowance_ = 0;
    } else {
      sticky_ = status;
    }
    return status;
  }
  named_segments_.insert(new_segments.begin(), new_segments.end());
  for (const RunIncarnation& id : work.incarnations) heard_[id] = heard;
  for (const StepId& id : work.steps) {
    const v1::StepRow& row = steps_[id];
    if (row.deleted_unix_ns() != 0) continue;
    if (row.has_end()) {
      open_rollups_.erase(id);
      AddPendingRollup(id);
    } else {
      open_rollups_[id] = heard;
    }
  }
  for (const auto& [reason, records] : work.lost_records)
    lost_records_[reason] += records;
  partials_.Trim();
  // Not before the batch is written: it takes the rows of its steps from here.
  if (steps_.size() > forget_steps_at_) ForgetEndedSteps();
  return absl::OkStatus();
}

void StoreImpl::ForgetEndedSteps() {
  for (auto it = steps_.begin(); it != steps_.end();) {
    if (it->second.has_end()) {
      next_orders_.erase(it->first);
      it = steps_.erase(it);
    } else {
      ++it;
    }
  }
  if (steps_.size() > kMaxKnownSteps) {
    steps_.clear();
    next_orders_.clear();
  }
  // Where so many are open, not with each commit.
  forget_steps_at_ = std::max(kUsualKnownSteps, 2 * steps_.size());
}

absl::Status StoreImpl::Sync() {
  // One at a time, so that the counts are written in their order.
  absl::MutexLock sync_lock(&sync_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    RP_RETURN_IF_ERROR(sticky_);
  }
  // Commits go on meanwhile; what they add may be synced or not.
  absl::Status status = payloads_->Sync();
  keys::Synced synced;
  if (status.ok()) {
    std::unique_ptr<IndexBatch> batch = index_->NewBatch();
    {
      absl::MutexLock lock(&mutex_);
      synced = NextSynced();
    }
    batch->Put(keys::kSynced, keys::SyncedValue(synced));
    status = index_->Write(std::move(batch), /*sync=*/true);
  }
  if (status.ok()) {
    NoteSyncCount(synced.count);
    return status;
  }
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
  NoteAbsent(row->committed_sequence() + 1, through_sequence, row);
  row->set_committed_sequence(through_sequence);
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  batch->Put(keys::Incarnation(run->id(), identity.incarnation()),
             row->SerializeAsString());
  return index_->Write(std::move(batch), /*sync=*/false);
}

absl::Status StoreImpl::NoteUndelivered(const v1::Identity& identity,
                                        const v1::Undelivered& undelivered) {
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(sticky_);
  RP_ASSIGN_OR_RETURN(v1::RunRow* const run,
                      LoadRun(identity.run(), /*create=*/true));
  RP_ASSIGN_OR_RETURN(v1::IncarnationRow* const row,
                      LoadIncarnation(run->id(), identity));
  if (undelivered.records() + undelivered.payloads() == 0) {
    row->clear_undelivered();
  } else {
    *row->mutable_undelivered() = undelivered;
  }
  std::unique_ptr<IndexBatch> batch = index_->NewBatch();
  batch->Put(keys::Incarnation(run->id(), identity.incarnation()),
             row->SerializeAsString());
  return index_->Write(std::move(batch), /*sync=*/true);
}

}  // namespace rankprobe
