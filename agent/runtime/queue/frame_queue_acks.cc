// SPDX-License-Identifier: Apache-2.0
// FrameQueue's acks: what is committed goes, what a collector has lost comes back.
#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/runtime/queue/frame_queue.h"
#include "common/base/limits.h"

namespace rankprobe {
namespace {

// How long frames may stay without an ack before it is asked whether the collector
// is there; before its connection is given up.
constexpr absl::Duration kAskAfter = absl::Seconds(1);

}  // namespace

void FrameQueue::DropCommitted(uint64_t sequence) {
  // Payload buffers take the lock when they go: keep them until it is free.
  std::vector<std::shared_ptr<Buffer>> done;
  while (!frames_.empty() && frames_.front().sequence <= sequence) {
    Frame& frame = frames_.front();
    budget_.Release(frame.budget_bytes);
    if (next_spooled_ > 0) --next_spooled_;
    if (next_frame_ > 0) {
      --next_frame_;
      in_flight_bytes_ -= frame.wire_bytes;
    }
    const bool keeps =
        keep_until_referred_ && !budget_.waits() && !budget_.shedding();
    if (frame.records != nullptr || !keeps) {
      for (Frame& kept : kept_) done.push_back(std::move(kept.payload));
      kept_.clear();
    }
    if (frame.records == nullptr && keeps) {
      frame.budget_bytes = 0;
      kept_.push_back(std::move(frame));
    } else if (frame.payload != nullptr) {
      done.push_back(std::move(frame.payload));
    }
    frames_.pop_front();
  }
  mutex_.Unlock();
  done.clear();
  mutex_.Lock();
}

void FrameQueue::ForgetKept() {
  std::deque<Frame> kept;
  kept.swap(kept_);
  mutex_.Unlock();
  kept.clear();
  mutex_.Lock();
}

void FrameQueue::KeepUntilReferred(bool keep) {
  absl::MutexLock lock(&mutex_);
  keep_until_referred_ = keep;
  if (!keep) ForgetKept();
}

void FrameQueue::Resume(uint64_t sequence) {
  absl::MutexLock lock(&mutex_);
  // What is here and not in frames_ any more.
  while (!kept_.empty() && kept_.back().sequence > sequence) {
    frames_.push_front(std::move(kept_.back()));
    kept_.pop_back();
    ++next_spooled_;
  }
  // Nobody can make use of the end of a payload alone. Its pieces have numbers
  // in a row.
  while (!frames_.empty() && frames_.front().payload != nullptr &&
         frames_.front().offset > 0 &&
         frames_.front().sequence > sequence + 1) {
    Frame frame = frames_.front();
    frame.budget_bytes = 0;
    --frame.sequence;
    frame.offset -= kChunkBytes;
    frame.length = kChunkBytes;
    frame.wire_bytes = frame.length + kFrameOverhead;
    frames_.push_front(std::move(frame));
    ++next_spooled_;
  }
  committed_here_ = sequence;
  // The collector has lost what it had committed, perhaps payloads as well.
  if (sequence < committed_) known_.clear();
  // Another collector, perhaps: it is asked again.
  ForgetOffers();
  // It may have refused payloads of which the ack was lost.
  if (budget_.payload_credit() != v1::PAYLOAD_CREDIT_TAKEN) known_.clear();
  NotePayloadCredit(v1::PAYLOAD_CREDIT_TAKEN);
  resumed_ = sequence;
  ack_fault_ = absl::OkStatus();
  heard_ns_ = clock_->MonotonicNanos();
  budget_.NoteConnected();
  EndHold();
  next_frame_ = 0;
  in_flight_bytes_ = 0;
  // As if they were on their way until its first ack.
  while (next_frame_ < frames_.size() &&
         frames_[next_frame_].sequence <= sequence)
    in_flight_bytes_ += frames_[next_frame_++].wire_bytes;
}

absl::Duration FrameQueue::WaitingForAck() const {
  absl::MutexLock lock(&mutex_);
  return WaitingForAckLocked();
}

absl::Duration FrameQueue::WaitingForAckLocked() const {
  return in_flight_bytes_ == 0
             ? absl::ZeroDuration()
             : absl::Nanoseconds(clock_->MonotonicNanos() - heard_ns_);
}

void FrameQueue::NoteHeard() {
  absl::MutexLock lock(&mutex_);
  budget_.NoteHeard();
}

void FrameQueue::NoteEnded(bool silent) {
  absl::MutexLock lock(&mutex_);
  budget_.NoteEnded(silent);
}

bool FrameQueue::TakeQuestion() {
  absl::MutexLock lock(&mutex_);
  return budget_.TakeQuestion() || WaitingForAckLocked() > kAskAfter;
}

absl::Status FrameQueue::AckFault() const {
  absl::MutexLock lock(&mutex_);
  return ack_fault_;
}

bool FrameQueue::Ack(const v1::UploadAck& ack) {
  absl::MutexLock lock(&mutex_);
  const uint64_t sent = std::max(sent_, resumed_);
  if (const uint64_t acked =
          std::max({ack.received(), ack.committed(), ack.synced()});
      acked > sent && ack_fault_.ok()) {
    ack_fault_ = absl::InternalError(
        absl::StrCat("the collector acks frame ", acked,
                     " of this process, which has sent ", sent));
  }
  if (!ack_fault_.ok()) return true;
  heard_ns_ = clock_->MonotonicNanos();
  budget_.NoteHeard();
  if (ack.payload_credit() != v1::PAYLOAD_CREDIT_UNSPECIFIED)
    NotePayloadCredit(ack.payload_credit());
  // Before they go as committed.
  for (const v1::RefusedFrame& refused : ack.refused_frames())
    Refuse(refused.sequence(), refused.reason());
  committed_ = std::max(committed_, ack.committed());
  committed_here_ = std::max(committed_here_, ack.committed());
  synced_ = std::max(synced_, ack.synced());
  DropCommitted(committed_here_);
  TakeAnswers(ack);
  for (const std::string& have : ack.have_digests()) {
    if (!options_.remember) break;
    if (have.size() != kPayloadDigestBytes) continue;
    // Frames not yet sent become empty: their numbers must still come.
    Digest digest;
    std::memcpy(digest.data(), have.data(), digest.size());
    deduplicated_bytes_ += EmptyChunks(digest);
  }
  TellWaiting();
  return HasWorkLocked() && HeldUntil() == 0;
}

}  // namespace rankprobe
