// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/frame_queue.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

using Frame = FrameWindow::Frame;
using Level = FrameWindow::Level;

constexpr int kEndsOfOneFrame = 2;
// How long frames may stay without an ack before the collector is asked for a
// response.
constexpr absl::Duration kAskAfter = absl::Seconds(1);

// `place`: offset of bytes that stay in shared memory.
void Encode(Frame frame, std::optional<uint64_t> place, EncodedFrame* out) {
  if (!frame.undeliverable.empty()) {
    v1::UndeliverableFrame what;
    what.set_reason(frame.undeliverable);
    if (frame.records != nullptr) {
      const BatchContent held = CountBatch(frame.records->bytes);
      what.set_step(held.step);
      what.set_records(held.records + held.lost_records);
    } else if (frame.payload != nullptr) {
      what.set_payload_digest(frame.digest.data(), frame.digest.size());
      what.set_payload_bytes(frame.payload->size());
    }
    EncodeUndeliverable(frame.sequence, what, out);
  } else if (frame.records != nullptr) {
    EncodeBatch(frame.sequence, std::move(frame.records), out);
  } else if (frame.payload != nullptr) {
    // Without the lock: computing checksums is most of the work.
    EncodeChunk(frame.sequence,
                {&frame.digest,
                 frame.payload->size(),
                 frame.offset,
                 {frame.payload->data() + frame.offset, frame.length},
                 place},
                frame.payload->memory(), out);
  } else {
    EncodeEmpty(frame.sequence, out);
  }
}

}  // namespace

QueuedPayload::~QueuedPayload() {
  // Before the budget is released: otherwise a thread that waits for room could
  // allocate another block first, and exceed the limit.
  memory_.reset();
  queue_->Release(PayloadMemory::BlockBytes(size_));
}

FrameQueue::FrameQueue(const Options& options, const Clock* clock,
                       std::function<void()> wake)
    : options_(options),
      wake_(std::move(wake)),
      memory_(std::make_shared<PayloadMemory>(options.budget_bytes,
                                              options.shared_memory)),
      budget_({options.budget_bytes, options.policy, options.block_deadline,
               options.silence_deadline},
              clock, &mutex_, wake_),
      hold_(options.hold, options.budget_bytes, clock),
      offers_(clock),
      window_(clock),
      known_(options.remember) {}

v1::LossReason FrameQueue::Acquire(uint64_t bytes, uint64_t limit,
                                   bool may_wait) {
  // Kept payloads are only a precaution for a change of the collector, so they
  // give way to new data. Their destructors take the lock.
  if (window_.has_kept() &&
      (budget_.shedding() || !budget_.HasRoom(bytes, limit))) {
    GonePayloads gone;
    window_.ForgetKept(&gone);
    mutex_.Unlock();
    gone.clear();
    mutex_.Lock();
  }
  return budget_.Acquire(bytes, limit, may_wait);
}

std::unique_ptr<PayloadBuffer> FrameQueue::Reserve(uint64_t length_bytes,
                                                   v1::LossReason* reason) {
  {
    absl::MutexLock lock(&mutex_);
    // An eighth is reserved for records, which are useful without their
    // payloads.
    const uint64_t limit = options_.budget_bytes - options_.budget_bytes / 8;
    v1::LossReason lost;
    if (length_bytes > options_.max_payload_bytes || length_bytes > limit) {
      lost = v1::LOSS_REASON_TOO_LARGE;
    } else if (!budget_.MayReservePayload()) {
      lost = v1::LOSS_REASON_COLLECTOR_DISK;
    } else {
      lost = Acquire(PayloadMemory::BlockBytes(length_bytes), limit,
                     /*may_wait=*/reason != nullptr);
    }
    if (lost != v1::LOSS_REASON_UNSPECIFIED && reason != nullptr)
      losses_.NotePayload();
    if (reason != nullptr) *reason = lost;
    if (lost != v1::LOSS_REASON_UNSPECIFIED) return nullptr;
  }
  return std::make_unique<QueuedPayload>(this, length_bytes,
                                         memory_->Allocate(length_bytes));
}

void FrameQueue::Release(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  budget_.Release(bytes);
  TellWaiting();
}

void FrameQueue::SubmitPayload(const Digest& digest,
                               std::unique_ptr<PayloadBuffer> payload) {
  // All payloads of this queue were made by Reserve.
  std::shared_ptr<QueuedPayload> shared(
      static_cast<QueuedPayload*>(payload.release()));
  {
    absl::MutexLock lock(&mutex_);
    if (shared->size() > 0 && !known_.Has(digest)) {
      known_.Add(digest);
      ++payloads_;
      payload_bytes_ += shared->size();
      // stop() waits for payloads, so held records must not wait for more.
      hold_.End();
      items_.push_back(PayloadItem{digest, std::move(shared)});
    } else {
      deduplicated_bytes_ += shared->size();
    }
  }
  // A buffer that was not queued returns its bytes here, without the lock.
  wake_();
}

bool FrameQueue::KnowsPayload(const Digest& digest,
                              uint64_t length_bytes) const {
  absl::MutexLock lock(&mutex_);
  return known_.Has(digest);
}

bool FrameQueue::HasRoomFor(uint64_t bytes) {
  GonePayloads gone;
  absl::MutexLock lock(&mutex_);
  if (budget_.HasRoom(bytes, options_.budget_bytes)) return true;
  if (!window_.has_kept()) return false;
  window_.ForgetKept(&gone);
  mutex_.Unlock();
  gone.clear();
  mutex_.Lock();
  return budget_.HasRoom(bytes, options_.budget_bytes);
}

bool FrameQueue::SubmitRecords(std::unique_ptr<RecordBuffer> records,
                               bool may_wait) {
  const auto count = static_cast<uint64_t>(records->batch()->records_size());
  const int64_t step = records->batch()->step();
  bool wake = false;
  {
    absl::MutexLock lock(&mutex_);
    known_.NoteStep(step);
    if (const v1::LossReason reason =
            Acquire(records->ApproxBytes(), options_.budget_bytes, may_wait);
        reason != v1::LOSS_REASON_UNSPECIFIED) {
      losses_.NoteShed(step, reason, count);
      return false;
    }
    records_ += count;
    wake = hold_.Add(records->ApproxBytes(), /*urgent=*/!may_wait);
    items_.push_back(std::move(records));
  }
  if (wake) wake_();
  return true;
}

bool FrameQueue::Passed(const Barrier& barrier) const {
  // There is no spool to wait for.
  if (barrier.level == Level::kSpooled && window_.spooled() == UINT64_MAX)
    return true;
  return barrier.marker->placed && !losses_.any() &&
         window_.Reached(barrier.level) >=
             std::max(barrier.marker->sequence, last_loss_sequence_);
}

void FrameQueue::TellWaiting() {
  budget_.TellWaiting();
  // The training thread is woken only when its own barrier is passed.
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
    if (spool_stuck_at_ == window_.spooled())
      return absl::DeadlineExceededError("the spool is stuck");
  }
  const absl::Status status = Await(Level::kSpooled, deadline);
  absl::MutexLock lock(&mutex_);
  spool_stuck_at_.reset();
  if (!status.ok()) spool_stuck_at_ = window_.spooled();
  return status;
}

void FrameQueue::NoteSpooled(uint64_t sequence) {
  absl::MutexLock lock(&mutex_);
  window_.NoteSpooled(sequence);
  TellWaiting();
}

bool FrameQueue::IsAt(Level level) const {
  return items_.empty() && offers_.aside().empty() && !encoding_ &&
         !losses_.any() && window_.Reached(level) >= window_.last_sequence();
}

absl::Status FrameQueue::Await(Level level, absl::Duration deadline) {
  std::shared_ptr<FlushMarker> marker;
  {
    absl::MutexLock lock(&mutex_);
    if (IsAt(level)) return absl::OkStatus();
    // Without a collector each stop() tries again, and markers do not count in
    // the budget: reuse the last one.
    if (!items_.empty()) {
      auto* const last =
          std::get_if<std::shared_ptr<FlushMarker>>(&items_.back());
      if (last != nullptr) marker = *last;
    }
    if (marker == nullptr) {
      marker = std::make_shared<FlushMarker>();
      items_.push_back(marker);
    }
    hold_.End();
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
  const uint64_t reached = window_.Reached(level);
  return absl::DeadlineExceededError(absl::StrCat(
      marker->placed
          ? absl::StrCat(marker->sequence - std::min(marker->sequence, reached),
                         " frames")
          : std::string("some records"),
      level == Level::kSpooled ? " are not spooled after "
                               : " are not committed after ",
      absl::FormatDuration(deadline), "; they stay queued"));
}

void FrameQueue::MakeFrames(GonePayloads* gone) {
  const auto add_losses = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    window_.AddRecords(losses_.Take());
    last_loss_sequence_ = window_.last_sequence();
  };
  const auto settle = [&](PayloadItem item) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (!offers_.TakeHave(item.digest)) return window_.AddPayload(item);
    // An empty frame keeps the number, whose ack then covers the bytes too.
    window_.AddEmpty();
    deduplicated_bytes_ += item.payload->size();
    gone->push_back(std::move(item.payload));
  };
  const auto pop = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    QueuedItem item = std::move(items_.front());
    items_.pop_front();
    offers_.NotePopped();
    return item;
  };
  for (PayloadItem& item :
       offers_.TakeReady(budget_.used() > options_.budget_bytes / 2))
    settle(std::move(item));
  // Only a few at a time, because encoded frames need memory in addition to
  // their sources.
  while (!items_.empty() &&
         (options_.spooled ? window_.unspooled() : window_.unsent()) < 4) {
    if (const auto* payload = std::get_if<PayloadItem>(&items_.front());
        payload != nullptr && offers_.MustAsk(*payload))
      break;
    // A barrier must follow everything that was submitted before it.
    if (std::holds_alternative<std::shared_ptr<FlushMarker>>(items_.front()) &&
        !offers_.aside().empty())
      break;
    QueuedItem item = pop();
    if (auto* records = std::get_if<std::unique_ptr<RecordBuffer>>(&item)) {
      const int64_t step = (*records)->batch()->step();
      std::vector<std::unique_ptr<RecordBuffer>> buffers;
      uint64_t bytes = 0;
      // Records that were submitted meanwhile go into the same frame.
      for (;;) {
        bytes += (*records)->ApproxBytes();
        buffers.push_back(std::move(*records));
        if (items_.empty() || bytes >= kMaxFrameBytes) break;
        records = std::get_if<std::unique_ptr<RecordBuffer>>(&items_.front());
        if (records == nullptr || (*records)->batch()->step() != step) break;
        item = pop();
        records = &std::get<std::unique_ptr<RecordBuffer>>(item);
      }
      encoding_ = true;
      mutex_.Unlock();
      std::vector<v1::LossEvent> cut;
      std::vector<EncodedBatch> pieces = EncodeRecords(step, buffers, &cut);
      buffers.clear();
      mutex_.Lock();
      encoding_ = false;
      for (v1::LossEvent& loss : cut) losses_.Note(step, std::move(loss));
      // All records were lost, so no frame will return their bytes.
      if (pieces.empty()) budget_.Release(bytes);
      window_.AddRecords(std::move(pieces), bytes);
    } else if (auto* payload = std::get_if<PayloadItem>(&item)) {
      if (!offers_.PutAside(*payload)) settle(std::move(*payload));
    } else {
      auto& marker = std::get<std::shared_ptr<FlushMarker>>(item);
      // A barrier covers the losses before it: their report is framed first.
      if (losses_.any()) add_losses();
      marker->sequence = window_.last_sequence();
      marker->placed = true;
    }
  }
  if (items_.empty() && losses_.any()) add_losses();
  TellWaiting();
}

void FrameQueue::UseOffers(bool use) {
  absl::MutexLock lock(&mutex_);
  // A spool with payloads must have all of them.
  offers_.Use(use && options_.remember &&
              (!options_.spooled || options_.spools_records_only));
}

bool FrameQueue::NextOffers(v1::PayloadOffers* offers) {
  absl::MutexLock lock(&mutex_);
  return offers_.Next(items_, offers);
}

void FrameQueue::UseLane(bool use) {
  absl::MutexLock lock(&mutex_);
  use_lane_ = use;
}

bool FrameQueue::NextFrame(uint64_t credit_bytes, EncodedFrame* out) {
  GonePayloads gone;
  Frame frame;
  std::optional<uint64_t> place;
  bool followed = false;
  {
    absl::MutexLock framing(&framing_);
    absl::MutexLock lock(&mutex_);
    if (Held() > absl::ZeroDuration()) return false;
    MakeFrames(&gone);
    if (window_.unsent() == 0) hold_.NoteLeft(HasWorkLocked());
    if (!window_.MayLeave(credit_bytes)) return false;
    frame = window_.TakeNext();
    hold_.NoteLeft(HasWorkLocked());
    followed = window_.MayLeave(credit_bytes);
    if (use_lane_ && frame.payload != nullptr)
      place = memory_->PlaceOf(frame.payload->data() + frame.offset);
    if (place.has_value()) lane_bytes_ += frame.length;
  }
  Encode(std::move(frame), place, out);
  out->followed = followed;
  return true;
}

bool FrameQueue::NextUnspooled(EncodedFrame* out) {
  GonePayloads gone;
  Frame frame;
  {
    absl::MutexLock framing(&framing_);
    absl::MutexLock lock(&mutex_);
    MakeFrames(&gone);
    if (window_.unspooled() == 0) return false;
    frame = window_.TakeUnspooled();
  }
  if (options_.spools_records_only && frame.records == nullptr) {
    *out = EncodedFrame();
    out->sequence = frame.sequence;
    return true;
  }
  // The frame is for a later process, and shared memory ends with this one.
  Encode(std::move(frame), /*place=*/std::nullopt, out);
  return true;
}

bool FrameQueue::AllKept() const {
  absl::MutexLock lock(&mutex_);
  return IsAt(Level::kSpooled);
}

void FrameQueue::KeepUntilReferred(bool keep) {
  GonePayloads gone;
  absl::MutexLock lock(&mutex_);
  keep_until_referred_ = keep;
  if (!keep) window_.ForgetKept(&gone);
}

void FrameQueue::Resume(uint64_t sequence) {
  absl::MutexLock lock(&mutex_);
  // The collector has lost what it had committed, perhaps also payloads, or it
  // may have refused payloads in an ack that was lost.
  if (!window_.Resume(sequence) ||
      budget_.payload_credit() != v1::PAYLOAD_CREDIT_TAKEN)
    known_.ForgetAll();
  offers_.Forget(&items_);
  budget_.SetPayloadCredit(v1::PAYLOAD_CREDIT_TAKEN);
  budget_.NoteConnected();
  hold_.End();
}

bool FrameQueue::Ack(const v1::UploadAck& ack) {
  GonePayloads gone;
  absl::MutexLock lock(&mutex_);
  window_.CheckAck(ack);
  if (!window_.ack_fault().ok()) return true;
  budget_.NoteHeard();
  const bool had_room = budget_.payload_credit() == v1::PAYLOAD_CREDIT_TAKEN;
  if (ack.payload_credit() != v1::PAYLOAD_CREDIT_UNSPECIFIED &&
      budget_.SetPayloadCredit(ack.payload_credit()) && had_room)
    losses_.TellNoRoom();
  // Handled first, because the ack counts them as committed.
  for (const v1::RefusedFrame& refused : ack.refused_frames()) {
    Frame held = window_.Empty(refused.sequence());
    const std::string why = VisibleText(refused.reason().substr(0, 500));
    if (held.records != nullptr)
      losses_.NoteRefused(refused.sequence(), *held.records, why);
    if (held.payload == nullptr) continue;
    // If records refer to it, the ledger lists it with the reason of the
    // refusal.
    if (known_.Forget(held.digest)) losses_.NotePayload();
    // A full disk was reported for all payloads.
    if (budget_.payload_credit() == v1::PAYLOAD_CREDIT_TAKEN)
      losses_.TellRefusedPayload(held.payload->size(), why);
    window_.EmptyChunks(held.digest, &gone);
    gone.push_back(std::move(held.payload));
  }
  budget_.Release(window_.TakeAck(
      ack, keep_until_referred_ && !budget_.waits() && !budget_.shedding(),
      &gone));
  offers_.TakeAnswers(ack);
  for (const std::string& have : ack.have_digests()) {
    if (!options_.remember) break;
    if (have.size() != kPayloadDigestBytes) continue;
    // Unsent frames become empty, because their numbers must still be sent.
    Digest digest;
    std::memcpy(digest.data(), have.data(), digest.size());
    deduplicated_bytes_ += window_.EmptyChunks(digest, &gone);
  }
  TellWaiting();
  return HasWorkLocked() && Held() == absl::ZeroDuration();
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
  return budget_.TakeQuestion() || window_.WaitingForAck() > kAskAfter;
}

absl::Status FrameQueue::AckFault() const {
  absl::MutexLock lock(&mutex_);
  return window_.ack_fault();
}

absl::Duration FrameQueue::WaitingForAck() const {
  absl::MutexLock lock(&mutex_);
  return window_.WaitingForAck();
}

void FrameQueue::StreamEnded(absl::string_view reason, End end) {
  absl::MutexLock lock(&mutex_);
  if (end == End::kDamaged) {
    window_.NoteEnd(FrameSuspect::kMaxDamages, FrameSuspect::kDamaged);
  } else {
    window_.NoteEnd(kEndsOfOneFrame,
                    absl::StrCat("it ends the upload each time: ", reason));
  }
}

uint64_t FrameQueue::FirstSequence() const {
  absl::MutexLock lock(&mutex_);
  return window_.first_sequence();
}

bool FrameQueue::HasWork() const {
  absl::MutexLock lock(&mutex_);
  return HasWorkLocked() && Held() == absl::ZeroDuration();
}

bool FrameQueue::HasWorkLocked() const {
  return !items_.empty() || !offers_.aside().empty() || losses_.any() ||
         window_.unsent() > 0;
}

absl::Duration FrameQueue::Held() const {
  return budget_.waits() || losses_.any() ? absl::ZeroDuration() : hold_.Rest();
}

absl::Duration FrameQueue::HeldFor() const {
  absl::MutexLock lock(&mutex_);
  const absl::Duration held = Held();
  return held == absl::ZeroDuration() ? absl::InfiniteDuration() : held;
}

size_t FrameQueue::Unframed() const {
  absl::MutexLock lock(&mutex_);
  return items_.size();
}

v1::Undelivered FrameQueue::Undelivered(bool spool_delivers,
                                        uint64_t held) const {
  v1::Undelivered left;
  const auto add = [&left](int64_t step, uint64_t records, uint64_t payloads) {
    if (records + payloads == 0) return;
    left.set_records(left.records() + records);
    left.set_payloads(left.payloads() + payloads);
    if (!left.has_first_step() || step < left.first_step())
      left.set_first_step(step);
    if (!left.has_last_step() || step > left.last_step())
      left.set_last_step(step);
  };
  // The losses that a batch reports are known only from it.
  const auto add_batch = [&add](const BatchContent& content) {
    add(content.step, content.records + content.lost_records,
        content.lost_payloads);
  };
  absl::flat_hash_set<Digest> seen;
  const auto add_payload = [&](const Digest& digest,
                               const QueuedPayload& payload) {
    if (!seen.insert(digest).second) return;
    left.set_payloads(left.payloads() + 1);
    left.set_payload_bytes(left.payload_bytes() + payload.size());
  };
  absl::MutexLock lock(&mutex_);
  const uint64_t safe = std::max(
      window_.Reached(spool_delivers ? Level::kSpooled : Level::kCommitted),
      held);
  left.set_after_sequence(safe);
  for (const Frame& frame : window_.frames()) {
    if (frame.sequence <= safe) continue;
    if (frame.records != nullptr) {
      add_batch(CountBatch(frame.records->bytes));
    } else if (frame.payload != nullptr) {
      add_payload(frame.digest, *frame.payload);
    } else {
      continue;
    }
    left.set_last_sequence(frame.sequence);
  }
  const uint64_t framed_records = left.records();
  const uint64_t framed_payloads = left.payloads();
  for (const QueuedItem& item : items_) {
    if (const auto* records =
            std::get_if<std::unique_ptr<RecordBuffer>>(&item)) {
      const v1::RecordBatch& batch = *(*records)->batch();
      BatchContent content;
      content.step = batch.step();
      for (const v1::Record& record : batch.records())
        CountRecord(record, &content);
      add_batch(content);
    } else if (const auto* payload = std::get_if<PayloadItem>(&item)) {
      add_payload(payload->digest, *payload->payload);
    }
  }
  for (const PayloadItem& item : offers_.aside())
    add_payload(item.digest, *item.payload);
  losses_.ForEach(add);
  left.set_unframed_records(left.records() - framed_records);
  left.set_unframed_payloads(left.payloads() - framed_payloads);
  return left;
}

void FrameQueue::FillStats(SessionStats* stats) const {
  absl::MutexLock lock(&mutex_);
  budget_.FillStats(stats);
  losses_.FillStats(stats);
  stats->silence =
      budget_.silent() ? absl::InfiniteDuration() : window_.WaitingForAck();
  stats->records = records_;
  stats->payloads = payloads_;
  stats->payload_bytes = payload_bytes_;
  stats->deduplicated_bytes = deduplicated_bytes_;
  stats->lane_bytes = lane_bytes_;
  stats->committed_sequence = window_.Reached(Level::kCommitted);
}

}  // namespace rankprobe
