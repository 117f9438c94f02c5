// SPDX-License-Identifier: Apache-2.0
// FrameQueue's offers: equal payloads of several ranks cross the wire once.
//
// Ahead of the frames the collector hears which payloads come. What it has is
// not sent; what another rank is sending at this moment is put aside until the
// collector has it, or the other is gone, or patience ends. Nobody is offered
// anything that stands behind a barrier: whoever waits at a barrier for a
// payload of another rank has sent all that others may wait for.
#include <cstring>
#include <utility>

#include "agent/runtime/queue/frame_queue.h"

namespace rankprobe {
namespace {

// Smaller ones cost less than the question.
constexpr uint64_t kMinOfferBytes = 16 << 10;
// How far ahead of the frames offers go.
constexpr uint64_t kOfferWindowBytes = 64 << 20;
constexpr int kMaxOffersInFrame = 256;
// How long an answer and another rank's bytes are waited for.
constexpr int64_t kAnswerPatienceNs = 500'000'000;
constexpr int64_t kComingPatienceNs = 2'000'000'000;

}  // namespace

void FrameQueue::UseOffers(bool use) {
  absl::MutexLock lock(&mutex_);
  // A spool that has payloads must have all of them.
  use_offers_ = use && options_.remember &&
                (!options_.spooled || options_.spools_records_only);
}

FrameQueue::Item FrameQueue::PopItem() {
  Item item = std::move(items_.front());
  items_.pop_front();
  if (next_offer_ > 0) --next_offer_;
  return item;
}

bool FrameQueue::NextOffers(v1::PayloadOffers* offers) {
  absl::MutexLock lock(&mutex_);
  // In bunches: each costs the collector a turn.
  if (!use_offers_ || offered_bytes_ > kOfferWindowBytes / 2) return false;
  const int64_t now = clock_->MonotonicNanos();
  while (next_offer_ < items_.size() && offered_bytes_ < kOfferWindowBytes &&
         offers->digests_size() < kMaxOffersInFrame) {
    const Item& item = items_[next_offer_];
    if (std::holds_alternative<std::shared_ptr<FlushMarker>>(item)) break;
    ++next_offer_;
    const auto* payload = std::get_if<PayloadItem>(&item);
    if (payload == nullptr) continue;
    const uint64_t length = PayloadSize(*payload);
    if (length < kMinOfferBytes || offers_.contains(payload->digest)) continue;
    offers_[payload->digest] = {Offer::State::kAsked, now, length};
    offered_bytes_ += length;
    offers->add_digests(payload->digest.data(), payload->digest.size());
    offers->add_length_bytes(length);
  }
  return offers->digests_size() > 0;
}

bool FrameQueue::MustAsk(const PayloadItem& item) const {
  if (!use_offers_ || PayloadSize(item) < kMinOfferBytes) return false;
  const auto it = offers_.find(item.digest);
  if (it == offers_.end()) return next_offer_ == 0;
  return it->second.state == Offer::State::kAsked &&
         clock_->MonotonicNanos() - it->second.since_ns < kAnswerPatienceNs;
}

void FrameQueue::PlacePayload(PayloadItem item) {
  if (const auto it = offers_.find(item.digest); it != offers_.end()) {
    Offer& offer = it->second;
    offered_bytes_ -= offer.length;
    offer.length = 0;
    if (offer.state == Offer::State::kComing) {
      offer.since_ns = clock_->MonotonicNanos();
      waiting_.push_back(std::move(item));
      return;
    }
  }
  if (!Settle(item)) return;
  // The buffer takes the lock when it goes.
  mutex_.Unlock();
  item.payload.reset();
  mutex_.Lock();
}

bool FrameQueue::Settle(const PayloadItem& item) {
  const auto it = offers_.find(item.digest);
  const bool have =
      it != offers_.end() && it->second.state == Offer::State::kHave;
  if (it != offers_.end()) offers_.erase(it);
  if (!have) {
    AddPayloadFrames(item);
    return false;
  }
  // Its number tells when the bytes are as safe as its neighbours'.
  Frame& frame = frames_.emplace_back();
  frame.sequence = ++last_sequence_;
  frame.wire_bytes = kFrameOverhead;
  deduplicated_bytes_ += PayloadSize(item);
  return true;
}

void FrameQueue::PlaceWaiting() {
  if (waiting_.empty()) return;
  const int64_t now = clock_->MonotonicNanos();
  // What is kept back must not stop the training.
  const bool full = budget_.used() > options_.budget_bytes / 2;
  const auto waits = [&](const PayloadItem& item)
                         ABSL_NO_THREAD_SAFETY_ANALYSIS {
                           const auto it = offers_.find(item.digest);
                           return !full && it != offers_.end() &&
                                  it->second.state == Offer::State::kComing &&
                                  now - it->second.since_ns < kComingPatienceNs;
                         };
  if (!answered_ && waits(waiting_.front())) return;
  answered_ = false;
  std::deque<PayloadItem> all, there;
  all.swap(waiting_);
  for (PayloadItem& item : all) {
    if (waits(item)) {
      waiting_.push_back(std::move(item));
    } else if (Settle(item)) {
      there.push_back(std::move(item));
    }
  }
  if (there.empty()) return;
  // Buffers take the lock when they go.
  mutex_.Unlock();
  there.clear();
  mutex_.Lock();
}

void FrameQueue::TakeAnswers(const v1::UploadAck& ack) {
  const auto take = [&](const auto& digests,
                        Offer::State state) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const std::string& text : digests) {
      Digest digest;
      if (text.size() != digest.size()) continue;
      std::memcpy(digest.data(), text.data(), digest.size());
      const auto it = offers_.find(digest);
      if (it == offers_.end()) continue;
      it->second.state = state;
      answered_ = true;
    }
  };
  // A later answer beats an earlier one; "have" is the last.
  take(ack.coming_digests(), Offer::State::kComing);
  take(ack.wanted_digests(), Offer::State::kWanted);
  take(ack.have_digests(), Offer::State::kHave);
}

void FrameQueue::ForgetOffers() {
  offers_.clear();
  offered_bytes_ = 0;
  answered_ = false;
  while (!waiting_.empty()) {
    items_.push_front(std::move(waiting_.back()));
    waiting_.pop_back();
  }
  next_offer_ = 0;
}

}  // namespace rankprobe
