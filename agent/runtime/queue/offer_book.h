// SPDX-License-Identifier: Apache-2.0
// Offers of payloads to the collector, and its answers: equal payloads of several
// ranks cross the wire once.
//
// Ahead of the frames the collector hears which payloads come. What it has is
// not sent; what another rank is sending at this moment is put aside until the
// collector has it, or the other is gone, or patience ends. Nobody is offered
// anything that stands behind a barrier: whoever waits at a barrier for a
// payload of another rank has sent all that others may wait for.
// Ownership: the queue's; used under its lock. Failure: without an answer a
// payload is sent.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_OFFER_BOOK_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_OFFER_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "agent/runtime/queue/queued_item.h"
#include "common/base/clock.h"

namespace rankprobe {

class OfferBook {
 public:
  explicit OfferBook(const Clock* clock) : clock_(clock) {}

  void Use(bool use) { use_ = use; }
  // Of `items`, those that are to be offered next; false: none.
  bool Next(const std::deque<QueuedItem>& items, v1::PayloadOffers* offers);
  // The first of the items was taken out.
  void NotePopped() {
    if (next_ > 0) --next_;
  }
  void TakeAnswers(const v1::UploadAck& ack);
  // Whether the first item, a payload, must wait for the collector's answer.
  bool MustAsk(const PayloadItem& item) const;
  // Another rank sends it: it is kept here.
  bool PutAside(const PayloadItem& item);
  const std::deque<PayloadItem>& aside() const { return aside_; }
  // Those put aside that are there by now, wanted after all, or too old.
  // `full`: all, what is kept back must not stop the training.
  std::vector<PayloadItem> TakeReady(bool full);
  // Its turn has come; whether the collector has it.
  bool TakeHave(const PayloadDigest& digest);
  // Another collector, perhaps: it is asked again, of what was put aside, too.
  void Forget(std::deque<QueuedItem>* items);

 private:
  struct Offer {
    enum class State : uint8_t { kAsked, kWanted, kComing, kHave };
    State state = State::kAsked;
    int64_t since_ns = 0;
    uint64_t length = 0;
  };

  const Clock* const clock_;
  bool use_ = false;
  absl::flat_hash_map<PayloadDigest, Offer> offers_;
  // Index into the items of the first that is not offered yet.
  size_t next_ = 0;
  // Of items offered and still there.
  uint64_t offered_bytes_ = 0;
  // Payloads that another rank sends.
  std::deque<PayloadItem> aside_;
  bool answered_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_OFFER_BOOK_H_
