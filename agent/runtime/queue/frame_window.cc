// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/frame_window.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"

namespace rankprobe {

FrameWindow::Frame& FrameWindow::Add() {
  Frame& frame = frames_.emplace_back();
  frame.sequence = ++last_sequence_;
  frame.wire_bytes = kFrameOverhead;
  return frame;
}

void FrameWindow::AddEmpty() { Add(); }

void FrameWindow::AddRecords(std::vector<EncodedBatch> batches,
                             uint64_t budget_bytes) {
  for (EncodedBatch& batch : batches) {
    Frame& frame = Add();
    frame.wire_bytes += batch.bytes.size();
    frame.records = std::make_shared<const EncodedBatch>(std::move(batch));
  }
  // The last frame returns the budget, once all batches are committed.
  if (!batches.empty()) frames_.back().budget_bytes = budget_bytes;
}

void FrameWindow::AddPayload(const PayloadItem& item) {
  const uint64_t size = item.payload->size();
  for (uint64_t offset = 0; offset < size; offset += kChunkBytes) {
    Frame& frame = Add();
    frame.digest = item.digest;
    frame.payload = item.payload;
    frame.offset = offset;
    frame.length = std::min(kChunkBytes, size - offset);
    frame.wire_bytes += frame.length;
  }
}

bool FrameWindow::MayLeave(uint64_t credit_bytes) const {
  if (unsent() == 0) return false;
  // One frame may always be in flight, however small the credit is.
  if (in_flight_bytes_ == 0) return true;
  const Frame& next = frames_[next_];
  return !suspect_.GoesAlone(next.sequence) &&
         in_flight_bytes_ + next.wire_bytes <= credit_bytes;
}

FrameWindow::Frame FrameWindow::TakeNext() {
  const Frame& frame = frames_[next_++];
  if (in_flight_bytes_ == 0) heard_ns_ = clock_->MonotonicNanos();
  in_flight_bytes_ += frame.wire_bytes;
  sent_ = std::max(sent_, frame.sequence);
  return frame;
}

void FrameWindow::NoteSpooled(uint64_t sequence) {
  spooled_ = std::max(spooled_, sequence);
}

uint64_t FrameWindow::Reached(Level level) const {
  switch (level) {
    case Level::kSpooled:
      return std::max(spooled_, committed_);
    case Level::kCommitted:
      return committed_;
    case Level::kSynced:
      break;
  }
  return synced_;
}

absl::Duration FrameWindow::WaitingForAck() const {
  return in_flight_bytes_ == 0
             ? absl::ZeroDuration()
             : absl::Nanoseconds(clock_->MonotonicNanos() - heard_ns_);
}

void FrameWindow::TakeBack(uint64_t sequence) {
  while (!kept_.empty() && kept_.back().sequence > sequence) {
    frames_.push_front(std::move(kept_.back()));
    kept_.pop_back();
    ++next_spooled_;
  }
  // The end of a payload is useless alone, so its pieces before it are sent
  // again. They have consecutive numbers.
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
}

bool FrameWindow::Resume(uint64_t sequence) {
  TakeBack(sequence);
  committed_here_ = resumed_ = sequence;
  ack_fault_ = absl::OkStatus();
  heard_ns_ = clock_->MonotonicNanos();
  next_ = 0;
  in_flight_bytes_ = 0;
  // Count frames that the collector holds as in flight until its first ack.
  while (unsent() > 0 && frames_[next_].sequence <= sequence)
    in_flight_bytes_ += frames_[next_++].wire_bytes;
  return sequence >= committed_;
}

void FrameWindow::CheckAck(const v1::UploadAck& ack) {
  const uint64_t sent = std::max(sent_, resumed_);
  if (const uint64_t acked =
          std::max({ack.received(), ack.committed(), ack.synced()});
      acked > sent && ack_fault_.ok()) {
    ack_fault_ = absl::InternalError(
        absl::StrCat("the collector acks frame ", acked,
                     " of this process, which has sent ", sent));
  }
  if (ack_fault_.ok()) heard_ns_ = clock_->MonotonicNanos();
}

uint64_t FrameWindow::TakeAck(const v1::UploadAck& ack, bool keep,
                              GonePayloads* gone) {
  committed_ = std::max(committed_, ack.committed());
  committed_here_ = std::max(committed_here_, ack.committed());
  synced_ = std::max(synced_, ack.synced());
  uint64_t budget_bytes = 0;
  // Only by acks of this connection: its collector may lack frames that another
  // one has committed.
  while (!frames_.empty() && frames_.front().sequence <= committed_here_) {
    Frame& frame = frames_.front();
    budget_bytes += std::exchange(frame.budget_bytes, 0);
    if (next_spooled_ > 0) --next_spooled_;
    if (next_ > 0) {
      --next_;
      in_flight_bytes_ -= frame.wire_bytes;
    }
    // Committed records refer to the payloads kept so far, which are then safe.
    if (frame.records != nullptr || !keep) ForgetKept(gone);
    if (frame.records == nullptr && keep) {
      kept_.push_back(std::move(frame));
    } else if (frame.payload != nullptr) {
      gone->push_back(std::move(frame.payload));
    }
    frames_.pop_front();
  }
  return budget_bytes;
}

void FrameWindow::ForgetKept(GonePayloads* gone) {
  for (Frame& kept : kept_) gone->push_back(std::move(kept.payload));
  kept_.clear();
}

FrameWindow::Frame FrameWindow::Empty(uint64_t sequence) {
  Frame held;
  const uint64_t first = first_sequence();
  if (sequence < first || sequence - first >= frames_.size()) return held;
  Frame& frame = frames_[sequence - first];
  held.digest = frame.digest;
  held.records = std::exchange(frame.records, nullptr);
  held.payload = std::exchange(frame.payload, nullptr);
  return held;
}

uint64_t FrameWindow::EmptyChunks(const PayloadDigest& digest,
                                  GonePayloads* gone) {
  uint64_t bytes = 0;
  for (size_t i = next_; i < frames_.size(); ++i) {
    Frame& frame = frames_[i];
    if (frame.payload == nullptr || frame.digest != digest) continue;
    bytes += frame.length;
    frame.wire_bytes = kFrameOverhead;
    gone->push_back(std::move(frame.payload));
  }
  return bytes;
}

void FrameWindow::NoteEnd(int most, absl::string_view why) {
  // Frames that the collector had when the connection began cannot have ended
  // it.
  size_t held = 0;
  while (held < next_ && frames_[held].sequence <= resumed_) ++held;
  if (next_ > held && suspect_.NoteEnd(frames_[held].sequence,
                                       frames_[next_ - 1].sequence, most))
    frames_[held].undeliverable = std::string(why);
}

}  // namespace rankprobe
