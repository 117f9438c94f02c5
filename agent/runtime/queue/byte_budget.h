// SPDX-License-Identifier: Apache-2.0
// The byte budget of a FrameQueue, and the waits for room in it and in the collector.
//
// Ownership: the queue's. Threads: every method needs the queue's lock; only a wait lets
// go of it.
// Failure: without room by policy, or in time, a LossReason. A collector that says
// nothing is not waited for.
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
    // How long a thread waits for a collector that answers, and for one that says
    // nothing.
    absl::Duration block_deadline, silence_deadline;
  };
  // `ask`: called while a thread waits, to make the collector say something
  // (TakeQuestion). It must not call the queue.
  ByteBudget(const Options& options, const Clock* clock, absl::Mutex* mutex,
             std::function<void()> ask)
      : options_(options), clock_(clock), mutex_(mutex), ask_(std::move(ask)) {}

  bool HasRoom(uint64_t bytes, uint64_t limit) const {
    return bytes <= limit && used_ <= limit - bytes;
  }
  // Takes them; UNSPECIFIED: they are taken. `may_wait` false: at once, whatever
  // the policy.
  v1::LossReason Acquire(uint64_t bytes, uint64_t limit, bool may_wait);
  void Release(uint64_t bytes) { used_ -= bytes; }
  uint64_t used() const { return used_; }
  // Whether the collector has room for payloads; waits by policy.
  bool MayReservePayload();

  // False: it said so before.
  bool SetPayloadCredit(v1::PayloadCredit credit);
  v1::PayloadCredit payload_credit() const { return payload_credit_; }
  void NoteConnected() {
    peer_ = Peer::kThere;
    NoteHeard();
  }
  // `silent`: the connection was given up because no frame was acknowledged.
  void NoteEnded(bool silent);
  // The collector has said something.
  void NoteHeard() {
    heard_ns_ = clock_->MonotonicNanos();
    if (peer_ == Peer::kSilent) peer_ = Peer::kThere;
  }
  // A wait, or the connection, was given up because it says nothing.
  bool silent() const { return peer_ == Peer::kSilent; }
  // A thread waits, and the collector is to be asked for an answer.
  bool TakeQuestion() { return std::exchange(asks_, false); }

  // Something that a wait may be for has changed.
  void TellWaiting() {
    if (waiting_ > 0) changed_.NotifyAll();
  }
  bool waits() const { return waiting_ > 0; }
  // A wait was in vain: nobody waits until half of the budget is free.
  bool shedding() const { return shedding_; }
  void FillStats(SessionStats* stats) const;

 private:
  // What is known of the collector. kGone: there is no connection, and there may be
  // one soon. kSilent: it was waited for, and nothing was heard since.
  enum class Peer : uint8_t { kGone, kThere, kSilent };

  // Until `over`. UNSPECIFIED: it is.
  v1::LossReason Await(const std::function<bool()>& over)
      ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // How long until the collector is taken for silent by a thread that waits since
  // `start_ns`.
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
  // A wait for room in the collector was in vain: no further wait until it has
  // room.
  bool waited_for_collector_ = false;
  Peer peer_ = Peer::kGone;
  int64_t heard_ns_ = 0;
  bool asks_ = false;
  uint64_t blocked_ns_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_BYTE_BUDGET_H_
