// SPDX-License-Identifier: Apache-2.0
// CommitQueue: behaviour while the disk has no room for payloads. Chunks are
// committed empty and refused at once, so that no upload waits for them.
// Records that refer to refused payloads are marked, so that the ledger lists
// each by its entry, wherever the record is stored.
#include <string>
#include <utility>

#include "collector/ingest/commit_queue.h"
#include "common/records/call_values.h"

namespace rankprobe {
namespace {

// Limit for disconnected processes with refused payloads.
constexpr size_t kMaxRemembered = 256;

}  // namespace

bool CommitQueue::HasRoomFor(const Upload& upload,
                             const v1::PayloadChunk& chunk) const {
  const bool begins = chunk.offset_bytes() == 0;
  const bool refused =
      upload.refused != nullptr && upload.refused->Has(chunk.digest());
  switch (options_.pressure->level()) {
    case v1::DiskState::LEVEL_FULL:
      break;
    case v1::DiskState::LEVEL_HIGH:
      // A payload that has begun is completed, because half of it is useless.
      if (!begins && !refused) return true;
      break;
    default:
      // The rest of a refused payload is useless too.
      if (begins || !refused) return true;
  }
  // A payload that is already stored takes no room.
  return store_->KeepPayload(upload.identity.run(), chunk.digest(),
                             chunk.length_bytes());
}

std::shared_ptr<NoRoomPayloads> CommitQueue::RefusedOf(
    const v1::Identity& identity) {
  absl::MutexLock lock(&mutex_);
  if (no_room_payloads_.size() >= kMaxRemembered) {
    std::erase_if(no_room_payloads_,
                  [](const auto& one) { return one.second.use_count() == 1; });
  }
  std::shared_ptr<NoRoomPayloads>& refused =
      no_room_payloads_[{identity.run(), identity.incarnation()}];
  if (refused == nullptr) refused = std::make_shared<NoRoomPayloads>();
  return refused;
}

void CommitQueue::RefuseChunk(Taken* taken, Acks* acks) {
  Upload& upload = *taken->upload;
  const v1::PayloadChunk& chunk = taken->pending.frame->chunk();
  if (upload.refused == nullptr) upload.refused = RefusedOf(upload.identity);
  if (upload.refused->Add(taken->pending.frame->sequence(), chunk.digest()) ||
      chunk.offset_bytes() == 0)
    options_.pressure->CountRefused(chunk.length_bytes());
  {
    absl::MutexLock lock(&mutex_);
    // Uploads that wait for it have to send their own copy, which is then
    // refused.
    const std::string& digest =
        taken->content_digest.empty() ? chunk.digest() : taken->content_digest;
    for (const uint64_t id :
         leases_.OnComplete(upload.sharing, digest, chunk.length_bytes())) {
      const auto other = uploads_.find(id);
      if (other != uploads_.end() && id != taken->id)
        (*acks)[other->second].add_wanted_digests(digest);
    }
  }
  ReceivedFrame empty;
  empty->set_sequence(taken->pending.frame->sequence());
  taken->pending.frame = std::move(empty);
  taken->pending.no_room = true;
}

void CommitQueue::MarkRefused(const Upload& upload, v1::UploadFrame* frame) {
  for (v1::Record& record : *frame->mutable_batch()->mutable_records()) {
    if (!record.has_call()) continue;
    ForEachTensor(record.mutable_call(), [&](v1::TensorSummary* tensor) {
      if (!tensor->has_payload()) return;
      v1::PayloadRef* const payload = tensor->mutable_payload();
      if (payload->lost() != v1::LOSS_REASON_UNSPECIFIED ||
          !upload.refused->Has(payload->digest()) ||
          store_->KeepPayload(upload.identity.run(), payload->digest(),
                              payload->length_bytes()))
        return;
      payload->clear_digest();
      payload->set_lost(v1::LOSS_REASON_COLLECTOR_DISK);
      // The store computes a new checksum.
      record.clear_crc32c();
    });
  }
}

void CommitQueue::RefusePayloads(std::vector<Taken>* taken) {
  if (options_.pressure == nullptr) return;
  Acks acks;
  for (Taken& t : *taken) {
    if (t.pending.refusal.has_value() || t.pending.no_room) continue;
    v1::UploadFrame& frame = *t.pending.frame;
    if (frame.has_chunk()) {
      if (!HasRoomFor(*t.upload, frame.chunk())) {
        RefuseChunk(&t, &acks);
      } else if (t.upload->refused != nullptr &&
                 frame.chunk().offset_bytes() == 0) {
        t.upload->refused->Forget(frame.chunk().digest());
      }
    } else if (frame.has_batch() && t.upload->refused != nullptr) {
      MarkRefused(*t.upload, &frame);
    }
  }
  for (const auto& [upload, ack] : acks) upload->listener.ack(ack);
}

void CommitQueue::TellPayloadCredit() {
  std::vector<std::shared_ptr<Upload>> uploads;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, upload] : uploads_)
      if (!upload->removed) uploads.push_back(upload);
  }
  v1::UploadAck ack;
  ack.set_payload_credit(PayloadCredit());
  for (const auto& upload : uploads) upload->listener.ack(ack);
}

}  // namespace rankprobe
