// SPDX-License-Identifier: Apache-2.0
// FrameQueue's losses: what was shed, cut or refused becomes LossEvents, so
// that ledger and export know of it.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "agent/runtime/queue/frame_queue.h"
#include "common/records/record_checksum.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// Orders of records that the queue itself adds to a step: behind all others.
constexpr uint64_t kLossOrderBase = uint64_t{1} << 62;
// Beyond it losses of one step and reason are added up.
constexpr size_t kMaxLossEvents = 1000;
constexpr uint64_t kMaxLines = 20;
constexpr int kEndsOfOneFrame = 2;

const char* DetailOf(v1::LossReason reason) {
  switch (reason) {
    case v1::LOSS_REASON_AGENT_DEADLINE:
      return "the agent's byte budget stayed full for its block deadline";
    case v1::LOSS_REASON_COLLECTOR_SILENT:
      return "the agent's byte budget was full and the collector did not "
             "answer";
    default:
      return "the agent's byte budget was full";
  }
}

void Say(uint64_t nth, const std::string& what) {
  if (nth > kMaxLines) return;
  const std::string line = absl::StrCat(
      "rankprobe: ", what,
      nth == kMaxLines ? "; further ones are counted only" : "", "\n");
  std::fputs(line.c_str(), stderr);
}

}  // namespace

void FrameQueue::NoteLoss(int64_t step, v1::LossEvent loss) {
  lost_records_ += loss.records();
  lost_payloads_ += loss.payloads();
  if (loss_events_.size() < kMaxLossEvents) {
    loss_events_.emplace_back(step, std::move(loss));
    return;
  }
  for (auto& [other, known] : loss_events_) {
    if (other != step || known.reason() != loss.reason()) continue;
    known.set_records(known.records() + loss.records());
    known.set_payloads(known.payloads() + loss.payloads());
    return;
  }
  loss_events_.emplace_back(step, std::move(loss));
}

void FrameQueue::AddLosses() {
  const auto add = [this](int64_t step,
                          v1::LossEvent loss) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    v1::RecordBatch batch;
    batch.set_step(step);
    v1::Record* const record = batch.add_records();
    record->set_order(kLossOrderBase + loss_orders_++);
    *record->mutable_loss() = std::move(loss);
    SealRecord(record);
    AddRecordsFrame(EncodedBatch(batch.SerializeAsString()));
  };
  for (const auto& [place, count] : losses_) {
    v1::LossEvent loss;
    loss.set_reason(place.second);
    loss.set_records(count);
    loss.set_detail(DetailOf(place.second));
    add(place.first, std::move(loss));
  }
  losses_.clear();
  for (auto& [step, loss] : loss_events_) add(step, std::move(loss));
  loss_events_.clear();
  last_loss_sequence_ = last_sequence_;
}

uint64_t FrameQueue::EmptyChunks(const Digest& digest) {
  uint64_t bytes = 0;
  // The lock is let go of in between: some may have been sent meanwhile.
  for (size_t i = 0; i < frames_.size(); ++i) {
    if (i < next_frame_) continue;
    Frame& frame = frames_[i];
    if (frame.payload == nullptr || frame.digest != digest) continue;
    bytes += frame.length;
    frame.wire_bytes = kFrameOverhead;
    std::shared_ptr<Buffer> payload = std::move(frame.payload);
    mutex_.Unlock();
    payload.reset();
    mutex_.Lock();
  }
  return bytes;
}

void FrameQueue::Refuse(uint64_t sequence, absl::string_view reason) {
  const uint64_t first = frames_.empty() ? 0 : frames_.front().sequence;
  if (frames_.empty() || sequence < first || sequence - first >= frames_.size())
    return;
  Frame& frame = frames_[sequence - first];
  const std::string why = VisibleText(reason.substr(0, 500));
  const std::shared_ptr<const EncodedBatch> records =
      std::exchange(frame.records, nullptr);
  std::shared_ptr<Buffer> payload = std::exchange(frame.payload, nullptr);
  const Digest digest = frame.digest;
  if (records != nullptr) {
    const BatchContent held = CountBatch(records->bytes);
    // A report of losses: counted already, and the collector counts the frame.
    if (held.records == 0) return;
    v1::LossEvent loss;
    loss.set_reason(v1::LOSS_REASON_COLLECTOR_REFUSED);
    loss.set_records(held.records);
    loss.set_payloads(held.payloads);
    loss.set_bytes(records->bytes.size());
    loss.set_detail(absl::StrCat("frame ", sequence, ": ", why));
    NoteLoss(held.step, std::move(loss));
    Say(++refused_frames_,
        absl::StrCat("the collector refuses ", held.records,
                     " records of step ", held.step, ", they are lost: ", why));
  } else if (payload != nullptr) {
    // Where records refer to it the ledger names it, with the refusal's reason.
    if (known_.erase(digest) > 0) ++lost_payloads_;
    // That of a full disk was said of all.
    if (budget_.payload_credit() == v1::PAYLOAD_CREDIT_TAKEN) {
      Say(++refused_frames_, absl::StrCat("the collector refuses a payload of ",
                                          PayloadSize({digest, payload}),
                                          " bytes, it is lost: ", why));
    }
    // The buffer takes the lock when it goes.
    mutex_.Unlock();
    payload.reset();
    mutex_.Lock();
    EmptyChunks(digest);
  }
}

void FrameQueue::NotePayloadCredit(v1::PayloadCredit credit) {
  const bool had_room = budget_.payload_credit() == v1::PAYLOAD_CREDIT_TAKEN;
  if (budget_.SetPayloadCredit(credit) && had_room) {
    Say(++credit_lines_,
        "the collector's disk has no room for tensors: they are left out and "
        "counted until it has; statistics are recorded");
  }
}

v1::Undelivered FrameQueue::Undelivered(bool spool_delivers,
                                        uint64_t held) const {
  v1::Undelivered left;
  const auto add_records = [&left](int64_t step, uint64_t records) {
    if (records == 0) return;
    left.set_records(left.records() + records);
    if (!left.has_first_step() || step < left.first_step())
      left.set_first_step(step);
    if (!left.has_last_step() || step > left.last_step())
      left.set_last_step(step);
  };
  absl::flat_hash_set<Digest> seen;
  const auto add_payload = [&](const Digest& digest, uint64_t bytes) {
    if (!seen.insert(digest).second) return;
    left.set_payloads(left.payloads() + 1);
    left.set_payload_bytes(left.payload_bytes() + bytes);
  };
  absl::MutexLock lock(&mutex_);
  const uint64_t safe =
      std::max(spool_delivers ? Reached(Level::kSpooled) : committed_, held);
  left.set_after_sequence(safe);
  for (const Frame& frame : frames_) {
    if (frame.sequence <= safe) continue;
    if (frame.records != nullptr) {
      const BatchContent content = CountBatch(frame.records->bytes);
      add_records(content.step, content.records);
    } else if (frame.payload != nullptr) {
      add_payload(frame.digest, PayloadSize({frame.digest, frame.payload}));
    } else {
      continue;
    }
    left.set_last_sequence(frame.sequence);
  }
  const uint64_t framed_records = left.records();
  const uint64_t framed_payloads = left.payloads();
  for (const Item& item : items_) {
    if (const auto* records =
            std::get_if<std::unique_ptr<RecordBuffer>>(&item)) {
      const v1::RecordBatch& batch = *(*records)->batch();
      add_records(batch.step(), static_cast<uint64_t>(batch.records_size()));
    } else if (const auto* payload = std::get_if<PayloadItem>(&item)) {
      add_payload(payload->digest, PayloadSize(*payload));
    }
  }
  for (const PayloadItem& item : waiting_)
    add_payload(item.digest, PayloadSize(item));
  for (const auto& [place, count] : losses_) add_records(place.first, count);
  for (const auto& [step, loss] : loss_events_)
    add_records(step, loss.records());
  left.set_unframed_records(left.records() - framed_records);
  left.set_unframed_payloads(left.payloads() - framed_payloads);
  return left;
}

void FrameQueue::StreamEnded(absl::string_view reason, End end) {
  absl::MutexLock lock(&mutex_);
  // Those that the collector had when the connection began end nothing.
  size_t held = 0;
  while (held < next_frame_ && frames_[held].sequence <= resumed_) ++held;
  if (next_frame_ == held) return;
  const bool damaged = end == End::kDamaged;
  if (!suspect_.NoteEnd(frames_[held].sequence,
                        frames_[next_frame_ - 1].sequence,
                        damaged ? FrameSuspect::kMaxDamages : kEndsOfOneFrame))
    return;
  frames_[held].undeliverable =
      damaged ? std::string(FrameSuspect::kDamaged)
              : absl::StrCat("it ends the upload each time: ", reason);
}

}  // namespace rankprobe
