#include "agent/runtime/frame_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMaxFrameBytes = 1 << 20;
// Room in a frame for everything but the payload's or records' own bytes.
constexpr uint64_t kFrameOverhead = 256;
constexpr uint64_t kChunkBytes = kMaxFrameBytes - kFrameOverhead;
constexpr size_t kMaxKnownDigests = 1 << 20;
// Orders of records that the queue itself adds to a step: behind all others.
constexpr uint64_t kLossOrderBase = uint64_t{1} << 62;

class Buffer : public PayloadBuffer {
 public:
  Buffer(FrameQueue* queue, uint64_t size)
      : queue_(queue), size_(size), data_(new char[size]) {}
  ~Buffer() override { queue_->Release(size_); }
  char* data() override { return data_.get(); }
  uint64_t size() const override { return size_; }

 private:
  FrameQueue* const queue_;
  const uint64_t size_;
  const std::unique_ptr<char[]> data_;
};

}  // namespace

FrameQueue::FrameQueue(const Options& options, const Clock* clock,
                       std::function<void()> wake)
    : options_(options), clock_(clock), wake_(std::move(wake)) {}

bool FrameQueue::HasRoom(uint64_t bytes, uint64_t limit) const {
  return bytes <= limit && used_bytes_ <= limit - bytes;
}

bool FrameQueue::Acquire(uint64_t bytes, uint64_t limit,
                         v1::LossReason* reason) {
  if (shedding_ && used_bytes_ <= options_.budget_bytes / 2) shedding_ = false;
  if (!HasRoom(bytes, limit)) {
    *reason = v1::LOSS_REASON_AGENT_BUDGET;
    if (options_.policy != OverflowPolicy::kBlock || shedding_ || bytes > limit)
      return false;
    const int64_t start = clock_->MonotonicNanos();
    struct Wait {
      const FrameQueue* queue;
      uint64_t bytes, limit;
    } wait{this, bytes, limit};
    const bool room = mutex_.AwaitWithTimeout(
        absl::Condition(
            +[](Wait* w) ABSL_NO_THREAD_SAFETY_ANALYSIS {
              return w->queue->HasRoom(w->bytes, w->limit);
            },
            &wait),
        options_.block_deadline);
    blocked_ns_ += static_cast<uint64_t>(clock_->MonotonicNanos() - start);
    if (!room) {
      shedding_ = true;
      *reason = v1::LOSS_REASON_AGENT_DEADLINE;
      return false;
    }
  }
  used_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return true;
}

std::unique_ptr<PayloadBuffer> FrameQueue::Reserve(uint64_t length_bytes,
                                                   v1::LossReason* reason) {
  {
    absl::MutexLock lock(&mutex_);
    *reason = v1::LOSS_REASON_TOO_LARGE;
    // An eighth is kept for records: evidence without bytes beats none.
    const uint64_t limit = options_.budget_bytes - options_.budget_bytes / 8;
    if (length_bytes > options_.max_payload_bytes || length_bytes > limit ||
        !Acquire(length_bytes, limit, reason)) {
      ++lost_payloads_;
      return nullptr;
    }
  }
  *reason = v1::LOSS_REASON_UNSPECIFIED;
  return std::make_unique<Buffer>(this, length_bytes);
}

void FrameQueue::Release(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  used_bytes_ -= bytes;
}

void FrameQueue::SubmitPayload(const Digest& digest,
                               std::unique_ptr<PayloadBuffer> payload) {
  std::shared_ptr<PayloadBuffer> shared = std::move(payload);
  {
    absl::MutexLock lock(&mutex_);
    if (shared->size() > 0 && !known_.contains(digest)) {
      if (known_.size() >= kMaxKnownDigests) known_.clear();
      known_.insert(digest);
      ++payloads_;
      payload_bytes_ += shared->size();
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
  return known_.contains(digest);
}

bool FrameQueue::SubmitRecords(std::unique_ptr<RecordBuffer> records) {
  const auto count = static_cast<uint64_t>(records->batch()->records_size());
  {
    absl::MutexLock lock(&mutex_);
    v1::LossReason reason;
    if (!Acquire(records->ApproxBytes(), options_.budget_bytes, &reason)) {
      lost_records_ += count;
      losses_[{records->batch()->step(), reason}] += count;
      return false;
    }
    records_ += count;
    items_.push_back(std::move(records));
  }
  wake_();
  return true;
}

absl::Status FrameQueue::Flush(v1::Durability level, absl::Duration deadline) {
  auto marker = std::make_shared<FlushMarker>();
  {
    absl::MutexLock lock(&mutex_);
    const uint64_t acked =
        level == v1::DURABILITY_SYNCED ? synced_ : committed_;
    if (items_.empty() && losses_.empty() && acked >= last_sequence_)
      return absl::OkStatus();
    items_.push_back(marker);
  }
  wake_();
  absl::MutexLock lock(&mutex_);
  struct Wait {
    const FrameQueue* queue;
    const FlushMarker* marker;
    bool synced;
  } wait{this, marker.get(), level == v1::DURABILITY_SYNCED};
  if (mutex_.AwaitWithTimeout(
          absl::Condition(
              +[](Wait* w) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                const uint64_t acked =
                    w->synced ? w->queue->synced_ : w->queue->committed_;
                return w->marker->placed && acked >= w->marker->sequence;
              },
              &wait),
          deadline)) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat(
      marker->placed ? absl::StrCat(marker->sequence -
                                        std::min(marker->sequence, committed_),
                                    " frames")
                     : std::string("some records"),
      " are not committed after ", absl::FormatDuration(deadline),
      "; they stay queued"));
}

void FrameQueue::AddRecordFrames(const RecordBuffer& records) {
  // The batch is const for us; frames copy it into messages of their own so
  // that its arena can go.
  RecordBuffer& source = const_cast<RecordBuffer&>(records);
  const uint64_t budget = source.ApproxBytes();
  v1::RecordBatch* const batch = source.batch();
  const size_t first = frames_.size();
  uint64_t size = 0;
  for (const v1::Record& record : batch->records()) {
    const uint64_t bytes = record.ByteSizeLong() + 8;
    if (frames_.size() == first || size + bytes > kChunkBytes) {
      Frame& frame = frames_.emplace_back();
      frame.sequence = ++last_sequence_;
      frame.records.set_step(batch->step());
      size = 0;
    }
    *frames_.back().records.add_records() = record;
    size += bytes;
    frames_.back().wire_bytes = size + kFrameOverhead;
  }
  if (frames_.size() == first) {
    used_bytes_ -= budget;
  } else {
    frames_.back().budget_bytes += budget;
  }
}

void FrameQueue::AddLosses() {
  for (const auto& [place, count] : losses_) {
    const auto& [step, reason] = place;
    Frame& frame = frames_.emplace_back();
    frame.sequence = ++last_sequence_;
    frame.wire_bytes = kFrameOverhead;
    frame.records.set_step(step);
    v1::Record* record = frame.records.add_records();
    record->set_order(kLossOrderBase + loss_orders_++);
    record->mutable_loss()->set_reason(reason);
    record->mutable_loss()->set_records(count);
    record->mutable_loss()->set_detail(
        reason == v1::LOSS_REASON_AGENT_DEADLINE
            ? "the agent's byte budget stayed full for its block deadline"
            : "the agent's byte budget was full");
  }
  losses_.clear();
}

void FrameQueue::MakeFrames() {
  // A few at a time: encoded frames cost memory beside what they came from.
  while (!items_.empty() && frames_.size() - next_frame_ < 4) {
    Item item = std::move(items_.front());
    items_.pop_front();
    if (auto* records = std::get_if<std::unique_ptr<RecordBuffer>>(&item)) {
      AddRecordFrames(**records);
    } else if (auto* payload = std::get_if<PayloadItem>(&item)) {
      const uint64_t size = payload->payload->size();
      for (uint64_t offset = 0; offset < size; offset += kChunkBytes) {
        Frame& frame = frames_.emplace_back();
        frame.sequence = ++last_sequence_;
        frame.digest = payload->digest;
        frame.payload = payload->payload;
        frame.offset = offset;
        frame.length = std::min(kChunkBytes, size - offset);
        frame.wire_bytes = frame.length + kFrameOverhead;
      }
    } else {
      auto& marker = std::get<std::shared_ptr<FlushMarker>>(item);
      if (!losses_.empty()) AddLosses();
      marker->sequence = last_sequence_;
      marker->placed = true;
    }
  }
  if (items_.empty() && !losses_.empty()) AddLosses();
}

bool FrameQueue::NextFrame(uint64_t credit_bytes, v1::UploadFrame* out) {
  std::shared_ptr<PayloadBuffer> payload;
  uint64_t offset = 0, length = 0;
  {
    absl::MutexLock lock(&mutex_);
    MakeFrames();
    if (next_frame_ >= frames_.size()) return false;
    Frame& frame = frames_[next_frame_];
    // One frame may always be on its way, however small the credit.
    if (in_flight_bytes_ > 0 &&
        in_flight_bytes_ + frame.wire_bytes > credit_bytes)
      return false;
    in_flight_bytes_ += frame.wire_bytes;
    ++next_frame_;
    out->Clear();
    out->set_sequence(frame.sequence);
    if (frame.payload != nullptr) {
      payload = frame.payload;
      offset = frame.offset;
      length = frame.length;
      v1::PayloadChunk* chunk = out->mutable_chunk();
      chunk->set_digest(frame.digest.data(), frame.digest.size());
      chunk->set_length_bytes(payload->size());
      chunk->set_offset_bytes(offset);
    } else if (frame.records.records_size() > 0) {
      *out->mutable_batch() = frame.records;
    }
  }
  if (payload != nullptr) {
    // Outside the lock: copying and checksums are the bulk of the work.
    const absl::string_view data(payload->data() + offset, length);
    out->mutable_chunk()->set_data(data.data(), data.size());
    out->mutable_chunk()->set_crc32c(Crc32c(data));
    // The frame may have been the last owner; its room is given back unlocked.
    payload.reset();
  }
  return true;
}

void FrameQueue::DropCommitted(uint64_t sequence) {
  // Payload buffers take the lock when they go: keep them until it is free.
  std::vector<std::shared_ptr<PayloadBuffer>> done;
  while (!frames_.empty() && frames_.front().sequence <= sequence) {
    Frame& frame = frames_.front();
    used_bytes_ -= frame.budget_bytes;
    if (next_frame_ > 0) {
      --next_frame_;
      in_flight_bytes_ -= frame.wire_bytes;
    }
    if (frame.payload != nullptr) done.push_back(std::move(frame.payload));
    frames_.pop_front();
  }
  mutex_.Unlock();
  done.clear();
  mutex_.Lock();
}

void FrameQueue::Resume(uint64_t sequence) {
  absl::MutexLock lock(&mutex_);
  committed_ = std::max(committed_, sequence);
  DropCommitted(sequence);
  next_frame_ = 0;
  in_flight_bytes_ = 0;
}

void FrameQueue::Ack(const v1::UploadAck& ack) {
  absl::MutexLock lock(&mutex_);
  committed_ = std::max(committed_, ack.committed());
  synced_ = std::max(synced_, ack.synced());
  DropCommitted(committed_);
  for (const std::string& have : ack.have_digests()) {
    if (have.size() != 16) continue;
    // Frames not yet sent become empty: their numbers must still come.
    for (size_t i = next_frame_; i < frames_.size(); ++i) {
      Frame& frame = frames_[i];
      if (frame.payload == nullptr ||
          std::memcmp(frame.digest.data(), have.data(), 16) != 0)
        continue;
      deduplicated_bytes_ += frame.length;
      frame.wire_bytes = kFrameOverhead;
      std::shared_ptr<PayloadBuffer> payload = std::move(frame.payload);
      mutex_.Unlock();
      payload.reset();
      mutex_.Lock();
    }
  }
}

void FrameQueue::FillStats(SessionStats* stats) const {
  absl::MutexLock lock(&mutex_);
  stats->queue_bytes = used_bytes_;
  stats->queue_peak_bytes = peak_bytes_;
  stats->records = records_;
  stats->payloads = payloads_;
  stats->payload_bytes = payload_bytes_;
  stats->deduplicated_bytes = deduplicated_bytes_;
  stats->lost_records = lost_records_;
  stats->lost_payloads = lost_payloads_;
  stats->committed_sequence = committed_;
  stats->blocked_ns = blocked_ns_;
}

}  // namespace rankprobe
