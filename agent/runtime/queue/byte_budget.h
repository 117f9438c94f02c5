// SPDX-License-Identifier: Apache-2.0
// The byte budget of a FrameQueue, and the waits for room in it and in the
// collector.
//
// Ownership: the queue's. Threads: every method requires the queue's lock; only
// a wait releases it.
// Failure: a LossReason if there is no room, by policy or within the deadline.
// Nothing waits for a collector that does not respond.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_BYTE_BUDGET_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_BYTE_BUDGET_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/runtime/queue/buffers.h"
#include "agent/runtime/queue/session_stats.h"
#include "common/base/clock.h"
#include "common/base/monotonic_time.h"

namespace rankprobe {

class ByteBudget {
 public:
  struct Options {
    uint64_t bytes = 0;
    OverflowPolicy policy = OverflowPolicy::kBlock;
    // How long a thread waits for a collector that responds, and for one that
    // does not.
    absl::Duration block_deadline, silence_deadline;
  };
  // `ask` is called while a thread waits, to request a message from the
  // collector (TakeQuestion). It must not call the queue.
  ByteBudget(const Options& options, const Clock* clock, absl::Mutex* mutex,
             std::function<void()> ask)
      : options_(options), clock_(clock), mutex_(mutex), ask_(std::move(ask)) {}

  bool HasRoom(uint64_t bytes, uint64_t limit) const {
    return bytes <= limit && used_ <= limit - bytes;
  }
  // Takes `bytes` from the budget, within `limit`. Returns UNSPECIFIED on
  // success. If `may_wait` is false it returns at once, whatever the policy.
  v1::LossReason Acquire(uint64_t bytes, uint64_t limit, bool may_wait);
  // Returns bytes to the budget; the caller then calls TellWaiting.
  void Release(uint64_t bytes) { used_ -= bytes; }
  uint64_t used() const { return used_; }
  // Whether the collector has room for payloads; waits for it by policy.
  bool MayReservePayload();

  // Returns false if the collector had said so before.
  bool SetPayloadCredit(v1::PayloadCredit credit);
  v1::PayloadCredit payload_credit() const { return payload_credit_; }
  void NoteConnected() {
    peer_ = Peer::kThere;
    NoteHeard();
  }
  // `silent`: the connection was given up because no frame was acknowledged.
  void NoteEnded(bool silent);
  // The collector has sent something.
  void NoteHeard() {
    heard_ns_ = clock_->MonotonicNanos();
    if (peer_ == Peer::kSilent) peer_ = Peer::kThere;
  }
  // A wait, or the connection, was given up because the collector did not
  // respond.
  bool silent() const { return peer_ == Peer::kSilent; }
  // Whether a thread waits and the collector must be asked for a response.
  // Resets the request.
  bool TakeQuestion() { return std::exchange(asks_, false); }

  // Wakes the waiting threads: something that they wait for has changed.
  void TellWaiting() {
    if (waiting_ > 0) changed_.NotifyAll();
  }
  bool waits() const { return waiting_ > 0; }
  // A wait has failed: no further wait until half of the budget is free.
  bool shedding() const { return shedding_; }
  void FillStats(SessionStats* stats) const;

 private:
  // State of the collector. kGone: there is no connection, but there may be one
  // soon. kSilent: a wait for it failed, and nothing was received since.
  enum class Peer : uint8_t { kGone, kThere, kSilent };

  // Waits until `over` is true, and then returns UNSPECIFIED.
  v1::LossReason Await(const std::function<bool()>& over)
      ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Time until a thread that has waited since `start_ns` considers the
  // collector silent.
  absl::Duration UntilSilent(int64_t start_ns) const;

  const Options options_;
  const Clock* const clock_;
  absl::Mutex* const mutex_;
  const std::function<void()> ask_;
  MonotonicCondVar changed_;
  int waiting_ = 0;
  uint64_t used_ = 0, peak_ = 0;
  bool shedding_ = false;
  v1::PayloadCredit payload_credit_ = v1::PAYLOAD_CREDIT_TAKEN;
  // A wait for room in the collector has failed: no further wait until it has
  // room.
  bool waited_for_collector_ = false;
  Peer peer_ = Peer::kGone;
  int64_t heard_ns_ = 0;
  bool asks_ = false;
  uint64_t blocked_ns_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_BYTE_BUDGET_H_
