// SPDX-License-Identifier: Apache-2.0
// Offers of payloads to the collector, and its answers: equal payloads of
// several ranks cross the wire once.
//
// Before the frames, the collector receives the digests of the payloads. A
// payload that it has is not sent. One that another rank is sending is put
// aside until the collector has it, the other rank disconnects, or a deadline
// passes. Payloads after a barrier are not offered: a rank that waits at a
// barrier for a payload of another rank has thus sent everything that others
// may wait for.
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
  // Selects those of `items` to offer next; returns false if there are none.
  bool Next(const std::deque<QueuedItem>& items, v1::PayloadOffers* offers);
  // The first item was removed.
  void NotePopped() {
    if (next_ > 0) --next_;
  }
  // Takes the collector's answers from an ack; unknown digests are ignored.
  void TakeAnswers(const v1::UploadAck& ack);
  // Whether the first item, a payload, must wait for the collector's answer.
  bool MustAsk(const PayloadItem& item) const;
  // Keeps the item aside if another rank sends its payload; returns whether it
  // does.
  bool PutAside(const PayloadItem& item);
  const std::deque<PayloadItem>& aside() const { return aside_; }
  // Returns those put aside that the collector now has, requires after all, or
  // that are too old. `full`: returns all, because kept payloads must not stop
  // the training.
  std::vector<PayloadItem> TakeReady(bool full);
  // Called when the payload is next to be sent; returns whether the collector
  // has it.
  bool TakeHave(const PayloadDigest& digest);
  // The collector may be another one: offers everything again, including what
  // was put aside.
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
  // Index of the first item that is not offered yet.
  size_t next_ = 0;
  // Bytes of the offered items that are still queued.
  uint64_t offered_bytes_ = 0;
  // Payloads that another rank sends.
  std::deque<PayloadItem> aside_;
  bool answered_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_OFFER_BOOK_H_
