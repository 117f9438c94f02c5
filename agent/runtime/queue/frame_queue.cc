// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/frame_queue.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/dedup_window.h"
#include "common/base/limits.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxKnownDigests = 1 << 20;

}  // namespace

class FrameQueue::Buffer : public PayloadBuffer {
 public:
  Buffer(FrameQueue* queue, uint64_t size, std::shared_ptr<char> memory)
      : queue_(queue), size_(size), memory_(std::move(memory)) {}
  ~Buffer() override {
    memory_.reset();
    queue_->Release(PayloadMemory::BlockBytes(size_));
  }
  char* data() override { return memory_.get(); }
  uint64_t size() const override { return size_; }
  const std::shared_ptr<char>& memory() const { return memory_; }

 private:
  FrameQueue* const queue_;
  const uint64_t size_;
  std::shared_ptr<char> memory_;
};

uint64_t FrameQueue::PayloadSize(const PayloadItem& item) {
  return item.payload->size();
}

FrameQueue::FrameQueue(const Options& options, const Clock* clock,
                       std::function<void()> wake)
    : options_(options),
      clock_(clock),
      wake_(std::move(wake)),
      memory_(std::make_shared<PayloadMemory>(options.budget_bytes,
                                              options.shared_memory)),
      budget_({options.budget_bytes, options.policy, options.block_deadline,
               options.silence_deadline},
              clock, &mutex_, wake_) {}

v1::LossReason FrameQueue::Acquire(uint64_t bytes, uint64_t limit,
                                   bool may_wait) {
  if (!kept_.empty() && (budget_.shedding() || !budget_.HasRoom(bytes, limit)))
    ForgetKept();
  return budget_.Acquire(bytes, limit, may_wait);
}

std::unique_ptr<PayloadBuffer> FrameQueue::Reserve(uint64_t length_bytes,
                                                   v1::LossReason* reason) {
  {
    absl::MutexLock lock(&mutex_);
    *reason = v1::LOSS_REASON_TOO_LARGE;
    // An eighth is kept for records: evidence without bytes beats none.
    const uint64_t limit = options_.budget_bytes - options_.budget_bytes / 8;
    if (length_bytes > options_.max_payload_bytes || length_bytes > limit) {
      ++lost_payloads_;
      return nullptr;
    }
    if (!budget_.MayReservePayload()) {
      ++lost_payloads_;
      *reason = v1::LOSS_REASON_COLLECTOR_DISK;
      return nullptr;
    }
    *reason = Acquire(PayloadMemory::BlockBytes(length_bytes), limit,
                      /*may_wait=*/true);
    if (*reason != v1::LOSS_REASON_UNSPECIFIED) {
      ++lost_payloads_;
      return nullptr;
    }
  }
  return std::make_unique<Buffer>(this, length_bytes,
                                  memory_->Allocate(length_bytes));
}

void FrameQueue::Release(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  budget_.Release(bytes);
  TellWaiting();
}

void FrameQueue::SubmitPayload(const Digest& digest,
                               std::unique_ptr<PayloadBuffer> payload) {
  // Only Reserve makes payloads for this queue.
  std::shared_ptr<Buffer> shared(static_cast<Buffer*>(payload.release()));
  {
    absl::MutexLock lock(&mutex_);
    if (shared->size() > 0 && !Knows(digest)) {
      if (known_.size() >= kMaxKnownDigests) known_.clear();
      known_[digest] = newest_step_;
      ++payloads_;
      payload_bytes_ += shared->size();
      // stop() waits for payloads.
      EndHold();
      items_.push_back(PayloadItem{digest, std::move(shared)});
    } else {
      deduplicated_bytes_ += shared->size();
    }
  }
  // A buffer that was not queued gives its room back here, outside the lock.
  wake_();
}

bool FrameQueue::KnowsPayload(const Digest& digest,
                              uint64_t length_bytes) const {
  absl::MutexLock lock(&mutex_);
  return Knows(digest);
}

bool FrameQueue::Knows(const Digest& digest) const {
  const auto it = known_.find(digest);
  // After a while the collector may have dropped the bytes by retention.
  return options_.remember && it != known_.end() &&
         newest_step_ - it->second <= kAgentRemembersSteps;
}

bool FrameQueue::HasRoomFor(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (!kept_.empty() && !budget_.HasRoom(bytes, options_.budget_bytes))
    ForgetKept();
  return budget_.HasRoom(bytes, options_.budget_bytes);
}

bool FrameQueue::SubmitRecords(std::unique_ptr<RecordBuffer> records,
                               bool may_wait) {
  const auto count = static_cast<uint64_t>(records->batch()->records_size());
  bool wake = false;
  {
    absl::MutexLock lock(&mutex_);
    newest_step_ = records->batch()->step();
    if (const v1::LossReason reason =
            Acquire(records->ApproxBytes(), options_.budget_bytes, may_wait);
        reason != v1::LOSS_REASON_UNSPECIFIED) {
      lost_records_ += count;
      losses_[{records->batch()->step(), reason}] += count;
      return false;
    }
    records_ += count;
    wake = HoldRecords(records->ApproxBytes(), /*urgent=*/!may_wait);
    items_.push_back(std::move(records));
  }
  if (wake) wake_();
  return true;
}

uint64_t FrameQueue::Reached(Level level) const {
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

bool FrameQueue::Passed(const Barrier& barrier) const {
  // There is no spool.
  if (barrier.level == Level::kSpooled && spooled_ == UINT64_MAX) return true;
  return barrier.marker->placed && !HasLosses() &&
         Reached(barrier.level) >=
             std::max(barrier.marker->sequence, last_loss_sequence_);
}

void FrameQueue::TellWaiting() {
  budget_.TellWaiting();
  // The training thread is not woken before its turn.
  if (std::any_of(
          barriers_.begin(), barriers_.end(),
          [this](const Barrier* barrier)
              ABSL_NO_THREAD_SAFETY_ANALYSIS { return Passed(*barrier); }))
    passed_.NotifyAll();
}

absl::Status FrameQueue::Flush(v1::Durability level, absl::Duration deadline) {
  return Await(
      level == v1::DURABILITY_SYNCED ? Level::kSynced : Level::kCommitted,
      deadline);
}

absl::Status FrameQueue::FlushToSpool(absl::Duration deadline) {
  {
    absl::MutexLock lock(&mutex_);
    if (spool_stuck_at_ == spooled_)
      return absl::DeadlineExceededError("the spool is stuck");
  }
  const absl::Status status = Await(Level::kSpooled, deadline);
  absl::MutexLock lock(&mutex_);
  spool_stuck_at_.reset();
  if (!status.ok()) spool_stuck_at_ = spooled_;
  return status;
}

void FrameQueue::NoteSpooled(uint64_t sequence) {
  absl::MutexLock lock(&mutex_);
  spooled_ = std::max(spooled_, sequence);
  TellWaiting();
}

absl::Status FrameQueue::Await(Level level, absl::Duration deadline) {
  std::shared_ptr<FlushMarker> marker;
  {
    absl::MutexLock lock(&mutex_);
    if (items_.empty() && waiting_.empty() && !encoding_ && !HasLosses() &&
        Reached(level) >= last_sequence_)
      return absl::OkStatus();
    // Without a collector each stop() tries again, and markers have no budget.
    if (!items_.empty()) {
      auto* const last =
          std::get_if<std::shared_ptr<FlushMarker>>(&items_.back());
      if (last != nullptr) marker = *last;
    }
    if (marker == nullptr) {
      marker = std::make_shared<FlushMarker>();
      items_.push_back(marker);
    }
    EndHold();
  }
  wake_();
  absl::MutexLock lock(&mutex_);
  const Barrier barrier{marker.get(), level};
  barriers_.push_back(&barrier);
  const bool passed = passed_.WaitFor(
      &mutex_, deadline,
      [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return Passed(barrier); });
  std::erase(barriers_, &barrier);
  if (passed) return absl::OkStatus();
  const uint64_t reached = Reached(level);
  return absl::DeadlineExceededError(absl::StrCat(
      marker->placed
          ? absl::StrCat(marker->sequence - std::min(marker->sequence, reached),
                         " frames")
          : std::string("some records"),
      level == Level::kSpooled ? " are not spooled after "
                               : " are not committed after ",
      absl::FormatDuration(deadline), "; they stay queued"));
}

void FrameQueue::AddPayloadFrames(const PayloadItem& item) {
  const uint64_t size = item.payload->size();
  for (uint64_t offset = 0; offset < size; offset += kChunkBytes) {
    Frame& frame = frames_.emplace_back();
    frame.sequence = ++last_sequence_;
    frame.digest = item.digest;
    frame.payload = item.payload;
    frame.offset = offset;
    frame.length = std::min(kChunkBytes, size - offset);
    frame.wire_bytes = frame.length + kFrameOverhead;
  }
}

void FrameQueue::AddRecordsFrame(EncodedBatch batch) {
  Frame& frame = frames_.emplace_back();
  frame.sequence = ++last_sequence_;
  frame.wire_bytes = batch.bytes.size() + kFrameOverhead;
  frame.records = std::make_shared<const EncodedBatch>(std::move(batch));
}

void FrameQueue::MakeFrames() {
  // A few at a time: encoded frames cost memory beside what they came from.
  const auto ahead = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return frames_.size() - (options_.spooled ? next_spooled_ : next_frame_);
  };
  PlaceWaiting();
  while (!items_.empty() && ahead() < 4) {
    if (const auto* payload = std::get_if<PayloadItem>(&items_.front());
        payload != nullptr && MustAsk(*payload))
      break;
    // A barrier stands behind what came before it.
    if (std::holds_alternative<std::shared_ptr<FlushMarker>>(items_.front()) &&
        !waiting_.empty())
      break;
    Item item = PopItem();
    if (auto* records = std::get_if<std::unique_ptr<RecordBuffer>>(&item)) {
      Batch batch;
      uint64_t budget = 0;
      // What has come meanwhile goes into the same frame.
      for (;;) {
        batch.step = (*records)->batch()->step();
        budget += (*records)->ApproxBytes();
        batch.buffers.push_back(std::move(*records));
        if (items_.empty() || budget >= kMaxFrameBytes) break;
        records = std::get_if<std::unique_ptr<RecordBuffer>>(&items_.front());
        if (records == nullptr || (*records)->batch()->step() != batch.step)
          break;
        item = PopItem();
        records = &std::get<std::unique_ptr<RecordBuffer>>(item);
      }
      encoding_ = true;
      mutex_.Unlock();
      std::vector<v1::LossEvent> cut;
      std::vector<EncodedBatch> pieces =
          EncodeRecords(batch.step, batch.buffers, &cut);
      batch.buffers.clear();
      mutex_.Lock();
      encoding_ = false;
      for (v1::LossEvent& loss : cut) NoteLoss(batch.step, std::move(loss));
      for (EncodedBatch& piece : pieces) AddRecordsFrame(std::move(piece));
      if (pieces.empty()) {
        budget_.Release(budget);
      } else {
        frames_.back().budget_bytes = budget;
      }
    } else if (auto* payload = std::get_if<PayloadItem>(&item)) {
      PlacePayload(std::move(*payload));
    } else {
      auto& marker = std::get<std::shared_ptr<FlushMarker>>(item);
      if (HasLosses()) AddLosses();
      marker->sequence = last_sequence_;
      marker->placed = true;
    }
  }
  if (items_.empty() && HasLosses()) AddLosses();
  TellWaiting();
}

const SharedMemory* FrameQueue::shared_memory(absl::Status* status) const {
  const SharedMemory* const shared = memory_->shared();
  if (shared == nullptr) *status = memory_->shared_status();
  return shared;
}

void FrameQueue::UseLane(bool use) {
  absl::MutexLock lock(&mutex_);
  use_lane_ = use;
}

bool FrameQueue::MayLeave(uint64_t credit_bytes) const {
  if (next_frame_ >= frames_.size()) return false;
  // One frame may always be on its way, however small the credit.
  if (in_flight_bytes_ == 0) return true;
  const Frame& next = frames_[next_frame_];
  return !suspect_.GoesAlone(next.sequence) &&
         in_flight_bytes_ + next.wire_bytes <= credit_bytes;
}

bool FrameQueue::NextFrame(uint64_t credit_bytes, EncodedFrame* out) {
  Frame frame;
  bool lane = false, followed = false;
  {
    absl::MutexLock framing(&framing_);
    absl::MutexLock lock(&mutex_);
    if (HeldUntil() != 0) return false;
    MakeFrames();
    if (next_frame_ >= frames_.size()) {
      NoteLeft();
      return false;
    }
    if (!MayLeave(credit_bytes)) return false;
    frame = frames_[next_frame_++];
    if (in_flight_bytes_ == 0) heard_ns_ = clock_->MonotonicNanos();
    in_flight_bytes_ += frame.wire_bytes;
    sent_ = std::max(sent_, frame.sequence);
    NoteLeft();
    followed = MayLeave(credit_bytes);
    lane = use_lane_ && frame.payload != nullptr &&
           memory_->PlaceOf(frame.payload->data()).has_value();
    if (lane) lane_bytes_ += frame.length;
  }
  Encode(std::move(frame), lane, out);
  out->followed = followed;
  return true;
}

bool FrameQueue::NextUnspooled(EncodedFrame* out) {
  Frame frame;
  {
    absl::MutexLock framing(&framing_);
    absl::MutexLock lock(&mutex_);
    MakeFrames();
    if (next_spooled_ >= frames_.size()) return false;
    frame = frames_[next_spooled_++];
  }
  if (options_.spools_records_only && frame.records == nullptr) {
    *out = EncodedFrame();
    out->sequence = frame.sequence;
    return true;
  }
  // For another process' life: shared memory ends with this one.
  Encode(std::move(frame), /*lane=*/false, out);
  return true;
}

bool FrameQueue::AllKept() const {
  absl::MutexLock lock(&mutex_);
  return items_.empty() && waiting_.empty() && !encoding_ && !HasLosses() &&
         Reached(Level::kSpooled) >= last_sequence_;
}

void FrameQueue::Encode(Frame frame, bool lane, EncodedFrame* out) const {
  if (!frame.undeliverable.empty()) {
    v1::UndeliverableFrame what;
    what.set_reason(frame.undeliverable);
    if (frame.records != nullptr) {
      const BatchContent held = CountBatch(frame.records->bytes);
      what.set_step(held.step);
      what.set_records(held.records);
    } else if (frame.payload != nullptr) {
      what.set_payload_digest(frame.digest.data(), frame.digest.size());
      what.set_payload_bytes(frame.payload->size());
    }
    EncodeUndeliverable(frame.sequence, what, out);
  } else if (frame.records != nullptr) {
    EncodeBatch(frame.sequence, std::move(frame.records), out);
  } else if (frame.payload != nullptr) {
    // Outside the lock: checksums are the bulk of the work.
    const char* const data = frame.payload->data() + frame.offset;
    EncodeChunk(frame.sequence,
                {&frame.digest,
                 frame.payload->size(),
                 frame.offset,
                 {data, frame.length},
                 lane ? memory_->PlaceOf(data) : std::nullopt},
                frame.payload->memory(), out);
  } else {
    EncodeEmpty(frame.sequence, out);
  }
}

uint64_t FrameQueue::FirstSequence() const {
  absl::MutexLock lock(&mutex_);
  return frames_.empty() ? last_sequence_ + 1 : frames_.front().sequence;
}

bool FrameQueue::HasWork() const {
  absl::MutexLock lock(&mutex_);
  return HasWorkLocked() && HeldUntil() == 0;
}

bool FrameQueue::HasWorkLocked() const {
  return !items_.empty() || !waiting_.empty() || HasLosses() ||
         next_frame_ < frames_.size();
}

size_t FrameQueue::Unframed() const {
  absl::MutexLock lock(&mutex_);
  return items_.size();
}

void FrameQueue::FillStats(SessionStats* stats) const {
  absl::MutexLock lock(&mutex_);
  stats->silence =
      budget_.silent() ? absl::InfiniteDuration() : WaitingForAckLocked();
  budget_.FillStats(stats);
  stats->records = records_;
  stats->payloads = payloads_;
  stats->payload_bytes = payload_bytes_;
  stats->deduplicated_bytes = deduplicated_bytes_;
  stats->lane_bytes = lane_bytes_;
  stats->lost_records = lost_records_;
  stats->lost_payloads = lost_payloads_;
  stats->committed_sequence = committed_;
}

}  // namespace rankprobe
