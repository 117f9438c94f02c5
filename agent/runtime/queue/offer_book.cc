// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/offer_book.h"

#include <cstring>
#include <utility>

namespace rankprobe {
namespace {

// An offer of a smaller payload costs more than it saves.
constexpr uint64_t kMinOfferBytes = 16 << 10;
// How many bytes of payloads are offered ahead of the frames.
constexpr uint64_t kOfferWindowBytes = 64 << 20;
constexpr int kMaxOffersInFrame = 256;
// How long to wait for an answer, and for another rank's bytes.
constexpr int64_t kAnswerPatienceNs = 500'000'000;
constexpr int64_t kComingPatienceNs = 2'000'000'000;

}  // namespace

bool OfferBook::Next(const std::deque<QueuedItem>& items,
                     v1::PayloadOffers* offers) {
  // Offers are sent in groups, because each message costs the collector work.
  if (!use_ || offered_bytes_ > kOfferWindowBytes / 2) return false;
  const int64_t now = clock_->MonotonicNanos();
  while (next_ < items.size() && offered_bytes_ < kOfferWindowBytes &&
         offers->digests_size() < kMaxOffersInFrame) {
    const QueuedItem& item = items[next_];
    if (std::holds_alternative<std::shared_ptr<FlushMarker>>(item)) break;
    ++next_;
    const auto* payload = std::get_if<PayloadItem>(&item);
    if (payload == nullptr) continue;
    const uint64_t length = payload->payload->size();
    if (length < kMinOfferBytes || offers_.contains(payload->digest)) continue;
    offers_[payload->digest] = {Offer::State::kAsked, now, length};
    offered_bytes_ += length;
    offers->add_digests(payload->digest.data(), payload->digest.size());
    offers->add_length_bytes(length);
  }
  return offers->digests_size() > 0;
}

bool OfferBook::MustAsk(const PayloadItem& item) const {
  if (!use_ || item.payload->size() < kMinOfferBytes) return false;
  const auto it = offers_.find(item.digest);
  // Not offered: next_ is 0 if it is still the next one to offer.
  if (it == offers_.end()) return next_ == 0;
  return it->second.state == Offer::State::kAsked &&
         clock_->MonotonicNanos() - it->second.since_ns < kAnswerPatienceNs;
}

bool OfferBook::PutAside(const PayloadItem& item) {
  const auto it = offers_.find(item.digest);
  if (it == offers_.end()) return false;
  Offer& offer = it->second;
  offered_bytes_ -= std::exchange(offer.length, 0);
  if (offer.state != Offer::State::kComing) return false;
  offer.since_ns = clock_->MonotonicNanos();
  aside_.push_back(item);
  return true;
}

bool OfferBook::TakeHave(const PayloadDigest& digest) {
  const auto it = offers_.find(digest);
  if (it == offers_.end()) return false;
  const bool have = it->second.state == Offer::State::kHave;
  offers_.erase(it);
  return have;
}

std::vector<PayloadItem> OfferBook::TakeReady(bool full) {
  std::vector<PayloadItem> ready;
  if (aside_.empty()) return ready;
  const int64_t now = clock_->MonotonicNanos();
  const auto waits = [&](const PayloadItem& item) {
    const auto it = offers_.find(item.digest);
    return !full && it != offers_.end() &&
           it->second.state == Offer::State::kComing &&
           now - it->second.since_ns < kComingPatienceNs;
  };
  // The front has waited longest: without an answer no other item is ready.
  if (!answered_ && waits(aside_.front())) return ready;
  answered_ = false;
  std::deque<PayloadItem> all;
  all.swap(aside_);
  ready.reserve(all.size());
  for (PayloadItem& item : all) {
    if (waits(item)) {
      aside_.push_back(std::move(item));
    } else {
      ready.push_back(std::move(item));
    }
  }
  return ready;
}

void OfferBook::TakeAnswers(const v1::UploadAck& ack) {
  const auto take = [&](const auto& digests, Offer::State state) {
    for (const std::string& text : digests) {
      PayloadDigest digest;
      if (text.size() != digest.size()) continue;
      std::memcpy(digest.data(), text.data(), digest.size());
      const auto it = offers_.find(digest);
      if (it == offers_.end()) continue;
      it->second.state = state;
      answered_ = true;
    }
  };
  // A later answer replaces an earlier one; "have" is final.
  take(ack.coming_digests(), Offer::State::kComing);
  take(ack.wanted_digests(), Offer::State::kWanted);
  take(ack.have_digests(), Offer::State::kHave);
}

void OfferBook::Forget(std::deque<QueuedItem>* items) {
  offers_.clear();
  offered_bytes_ = 0;
  answered_ = false;
  while (!aside_.empty()) {
    items->push_front(std::move(aside_.back()));
    aside_.pop_back();
  }
  next_ = 0;
}

}  // namespace rankprobe
