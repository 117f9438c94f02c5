// SPDX-License-Identifier: Apache-2.0
#include "collector/store/store_writer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collector/store/keys.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/io/crc32c.h"

namespace rankprobe {
namespace {

// Maximum number of bytes written before the free space is read again.
constexpr uint64_t kFreeSpaceCheckBytes = 16 << 20;
// Limit per incarnation, because its row is rewritten with each of its commits.
constexpr int kMaxRefusals = 32;

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

absl::Status CheckChunk(const v1::PayloadChunk& chunk, bool verified,
                        uint64_t max_payload_bytes) {
  const uint64_t size = chunk.data().size();
  if (chunk.digest().size() != kPayloadDigestBytes ||
      chunk.length_bytes() > max_payload_bytes || size == 0 ||
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

}  // namespace

absl::Status StoreWriter::Start(bool may_have_begun, RecoveryReport* recovery) {
  absl::MutexLock sync_lock(&sync_mutex_);
  RP_ASSIGN_OR_RETURN(recovery->lost_syncs, CompareSyncCount());
  RP_ASSIGN_OR_RETURN(
      std::set<uint64_t> named,
      NameSegments(core_->index.get(), core_->segments.get(),
                   may_have_begun && recovery->lost_syncs == 0));
  {
    absl::MutexLock lock(&core_->mutex);
    named_segments_ = std::move(named);
  }
  std::unique_ptr<IndexBatch> batch = core_->index->NewBatch();
  batch->Delete(keys::kClean);
  return WriteMark(std::move(batch));
}

void StoreWriter::Close() {
  absl::MutexLock sync_lock(&sync_mutex_);
  {
    absl::MutexLock lock(&core_->mutex);
    if (!core_->sticky.ok()) return;
  }
  if (!core_->segments->Sync().ok()) return;
  std::map<uint64_t, uint64_t> sizes;
  for (const PayloadStore::SegmentInfo& segment : core_->segments->Segments())
    sizes[segment.number] = segment.size_bytes;
  std::unique_ptr<IndexBatch> batch = core_->index->NewBatch();
  batch->Put(keys::kClean, keys::CleanValue(sizes));
  WriteMark(std::move(batch)).IgnoreError();
}

absl::StatusOr<uint64_t> StoreWriter::CompareSyncCount() {
  RP_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                      core_->index->Get(keys::kSynced));
  const std::optional<keys::Synced> synced =
      keys::ParseSynced(value.value_or(""));
  if (synced.has_value()) sync_count_ = synced->count;
  // The file is written after the index has synced its own count, so it is
  // never ahead of an index that lost nothing.
  const uint64_t beside =
      SyncCountBeside(core_->options.data_dir, core_->file_system);
  if (beside <= sync_count_) return 0;
  const uint64_t lost = beside - sync_count_;
  std::unique_ptr<IndexBatch> batch = core_->index->NewBatch();
  uint32_t last_run = 0;
  {
    absl::MutexLock lock(&core_->mutex);
    last_run = core_->runs.last_run_id();
  }
  batch->Put(keys::LostSyncs(beside, last_run),
             absl::StrCat("the index has lost synced writes: it is at sync ",
                          sync_count_, ", sync ", beside,
                          " had been reached; what was stored between the two "
                          "is lost"));
  sync_count_ = beside;
  RP_RETURN_IF_ERROR(core_->index->Write(std::move(batch), /*sync=*/true));
  return lost;
}

absl::Status StoreWriter::Sync() {
  // One sync at a time, so that the counts are written in order.
  absl::MutexLock sync_lock(&sync_mutex_);
  {
    absl::MutexLock lock(&core_->mutex);
    RP_RETURN_IF_ERROR(core_->sticky);
  }
  // Commits continue meanwhile; their data may be synced or not.
  absl::Status status = core_->segments->Sync();
  if (status.ok()) status = WriteMark(core_->index->NewBatch());
  if (status.ok()) return status;
  // If the index waits for disk space, nothing was synced and nothing is lost.
  absl::MutexLock lock(&core_->mutex);
  return core_->NoteWrite(status);
}

absl::Status StoreWriter::WriteMark(std::unique_ptr<IndexBatch> batch) {
  const PayloadStore::Place place = core_->segments->synced();
  batch->Put(keys::kSynced,
             keys::SyncedValue({place.segment, place.offset, ++sync_count_}));
  RP_RETURN_IF_ERROR(core_->index->Write(std::move(batch), /*sync=*/true));
  // Kept next to the index to detect lost syncs; nothing else depends on it.
  NoteSyncCountBeside(core_->options.data_dir, core_->file_system, sync_count_);
  return absl::OkStatus();
}

absl::Status StoreWriter::CheckSpace(uint64_t bytes) {
  if (bytes <= space_allowance_) {
    space_allowance_ -= bytes;
    return absl::OkStatus();
  }
  space_allowance_ = 0;
  RP_ASSIGN_OR_RETURN(const uint64_t free,
                      core_->file_system->FreeBytes(core_->options.data_dir));
  if (free < core_->options.min_free_bytes + bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        core_->options.data_dir, " has ", free,
        " free bytes; writing stops below ", core_->options.min_free_bytes));
  }
  // Only half of the free space may be used, because the index writes as well,
  // and other programs may: min_free_bytes is needed to delete runs.
  space_allowance_ = std::min(
      kFreeSpaceCheckBytes, (free - core_->options.min_free_bytes - bytes) / 2);
  return absl::OkStatus();
}

absl::Status StoreWriter::CheckFrames(absl::Span<const FrameToStore> frames) {
  std::map<RunIncarnation, uint64_t> held;
  for (const FrameToStore& f : frames) {
    const v1::RunRow* const run = core_->runs.FindOrAdd(f.identity->run());
    RP_ASSIGN_OR_RETURN(const v1::IncarnationRow* const row,
                        core_->runs.Incarnation(run->id(), *f.identity));
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
      RP_RETURN_IF_ERROR(CheckChunk(f.frame->chunk(), f.chunk_verified,
                                    core_->options.max_payload_bytes));
    last = sequence;
  }
  return absl::OkStatus();
}

absl::Status StoreWriter::AddFrame(const FrameToStore& f, CommitWork* work) {
  v1::RunRow* const run = core_->runs.FindOrAdd(f.identity->run());
  RP_ASSIGN_OR_RETURN(v1::IncarnationRow* const row,
                      core_->runs.Incarnation(run->id(), *f.identity));
  const uint64_t sequence = f.frame->sequence();
  // The frame was committed before: agents send frames again whose ack they did
  // not receive.
  if (sequence <= row->committed_sequence()) return absl::OkStatus();
  const uint64_t incarnation = f.identity->incarnation();
  work->incarnations.insert({run->id(), incarnation});
  work->runs.try_emplace(f.identity->run(), *run);
  run->set_updated_unix_ns(work->now_unix_ns);
  if (f.refusal != nullptr) NoteRefusal(*f.refusal, row);
  if (f.frame->has_batch()) {
    RP_RETURN_IF_ERROR(core_->steps.AddBatch(run, incarnation, *f.frame, work));
  } else if (f.frame->has_chunk()) {
    RP_RETURN_IF_ERROR(core_->payloads.AddChunk(
        run, incarnation, f.frame->chunk(), f.content_digest, work));
  }
  row->set_committed_sequence(sequence);
  row->set_updated_unix_ns(work->now_unix_ns);
  if (f.frame->has_batch()) NoteStep(f.frame->batch().step(), row);
  return absl::OkStatus();
}

absl::Status StoreWriter::Commit(absl::Span<const FrameToStore> frames) {
  absl::MutexLock lock(&core_->mutex);
  RP_RETURN_IF_ERROR(core_->sticky);
  uint64_t bytes = 0;
  for (const FrameToStore& f : frames)
    bytes += f.bytes > 0 ? f.bytes : f.frame->ByteSizeLong();
  RP_RETURN_IF_ERROR(CheckSpace(bytes));
  // Frames are checked before anything is changed, so that one rank's fault
  // does not affect the others.
  RP_RETURN_IF_ERROR(CheckFrames(frames));
  CommitWork work;
  work.batch = core_->index->NewBatch();
  work.now_unix_ns = absl::ToUnixNanos(core_->clock->Now());
  const int64_t heard = core_->clock->MonotonicNanos();
  for (const FrameToStore& f : frames) {
    if (absl::Status added = AddFrame(f, &work); !added.ok()) {
      Undo(&work);
      return added;
    }
  }
  // The bytes are written first, then the rows that point at them.
  absl::Status status = AppendChunks(&work);
  if (status.ok()) {
    PutRows(&work);
    status = core_->index->Write(std::move(work.batch), /*sync=*/false);
  }
  if (!status.ok()) {
    Undo(&work);
    // The next commit reads the free space again.
    space_allowance_ = 0;
    return core_->NoteWrite(status);
  }
  named_segments_.insert(work.new_segments.begin(), work.new_segments.end());
  core_->runs.Hear(work.incarnations, heard);
  for (const StepId& id : work.steps) {
    const v1::StepRow& row = core_->steps.at(id);
    if (row.deleted_unix_ns() == 0)
      core_->series.WrittenTo(id, row.has_end(), heard);
  }
  for (const auto& [reason, records] : work.lost_records)
    lost_records_[reason] += records;
  core_->payloads.Trim();
  // After the batch is written, because PutRows takes the rows of its steps
  // from the table.
  core_->steps.Trim();
  return absl::OkStatus();
}

absl::Status StoreWriter::AppendChunks(CommitWork* work) {
  if (work->chunks.empty()) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(const std::vector<v1::ChunkRow> rows,
                      core_->segments->Append(work->chunks));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!work->chunk_keys[i].empty())
      work->batch->Put(work->chunk_keys[i], rows[i].SerializeAsString());
    if (named_segments_.contains(rows[i].segment())) continue;
    work->batch->Put(keys::Segment(rows[i].segment()), "");
    work->new_segments.insert(rows[i].segment());
  }
  return absl::OkStatus();
}

void StoreWriter::PutRows(CommitWork* work) {
  for (const RunIncarnation& id : work->incarnations) {
    work->batch->Put(keys::Incarnation(id.first, id.second),
                     core_->runs.at(id).SerializeAsString());
  }
  for (const StepId& id : work->steps) {
    const v1::StepRow& row = core_->steps.at(id);
    work->batch->Put(keys::Step(id.run, id.step, id.incarnation),
                     row.SerializeAsString());
    // Also for open steps, because a step without this row has a valid rollup.
    if (row.deleted_unix_ns() == 0)
      work->batch->Put(keys::PendingRollup(id.run, id.step, id.incarnation),
                       "");
  }
  for (const auto& [run, before] : work->runs)
    work->batch->Put(keys::Run(run),
                     core_->runs.rows().at(run).SerializeAsString());
}

void StoreWriter::Undo(CommitWork* work) {
  core_->runs.Undo(*work);
  core_->steps.Undo(*work);
  core_->payloads.Undo(work);
}

bool StoreWriter::KeepPayload(const std::string& run, absl::string_view digest,
                              uint64_t length_bytes) {
  absl::MutexLock lock(&core_->mutex);
  const std::optional<uint32_t> id =
      core_->RunWithPayload(run, digest, length_bytes);
  if (!id.has_value()) return false;
  core_->payloads.Touch(keys::Payload(*id, digest, length_bytes));
  return true;
}

StoreTotals StoreWriter::Totals() {
  absl::MutexLock lock(&core_->mutex);
  StoreTotals totals;
  totals.runs = core_->runs.rows().size();
  for (const auto& [name, row] : core_->runs.rows()) {
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

}  // namespace rankprobe
