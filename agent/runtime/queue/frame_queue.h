// SPDX-License-Identifier: Apache-2.0
// Bounded send queue: submissions become numbered frames that stay until they
// are committed, within one byte budget.
//
// Ownership: the session's; what it is made of is its own, under its one lock.
// Payload buffers must not outlive it. Threads: Submit*, Reserve*, Flush,
// NextUnspooled and the counters from any thread; NextFrame and Resume from the
// session's worker only, Ack from one thread at a time, and not concurrently
// with Resume. Failure: a full budget sheds by policy and counts; nothing else
// fails.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_QUEUE_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/runtime/queue/buffers.h"
#include "agent/runtime/queue/byte_budget.h"
#include "agent/runtime/queue/frame_encoding.h"
#include "agent/runtime/queue/frame_window.h"
#include "agent/runtime/queue/known_payloads.h"
#include "agent/runtime/queue/loss_reports.h"
#include "agent/runtime/queue/offer_book.h"
#include "agent/runtime/queue/payload_memory.h"
#include "agent/runtime/queue/queued_item.h"
#include "agent/runtime/queue/record_hold.h"
#include "agent/runtime/queue/session_stats.h"
#include "common/base/clock.h"
#include "common/base/monotonic_time.h"

namespace rankprobe {

class FrameQueue {
 public:
  struct Options {
    uint64_t budget_bytes = 0;
    uint64_t max_payload_bytes = 0;
    OverflowPolicy policy = OverflowPolicy::kBlock;
    absl::Duration block_deadline;
    // NextUnspooled is used: frames are made as soon as there is something.
    bool spooled = false;
    // The spool has no payloads: NextUnspooled gives their frames empty.
    bool spools_records_only = false;
    // Whether equal payloads are sent once.
    bool remember = true;
    // Whether large payloads lie in shared memory, for UseLane.
    bool shared_memory = false;
    // How long records may wait for others to leave together with them, unless
    // a thread waits at a barrier or they are many: each frame that is sent
    // wakes threads on both sides. Used only if a spool has the records in the
    // meantime.
    absl::Duration hold;
    // How long a thread waits for room while the collector says nothing.
    absl::Duration silence_deadline = absl::InfiniteDuration();
  };
  using Digest = PayloadDigest;

  // `wake` is called after anything that may make NextFrame return a frame; it
  // must be cheap and take no lock that is held while calling this class: it is
  // called with this class' lock, too.
  FrameQueue(const Options& options, const Clock* clock,
             std::function<void()> wake);

  // As Session::ReservePayload.
  std::unique_ptr<PayloadBuffer> Reserve(uint64_t length_bytes,
                                         v1::LossReason* reason);
  void SubmitPayload(const Digest& digest,
                     std::unique_ptr<PayloadBuffer> payload);
  bool KnowsPayload(const Digest& digest, uint64_t length_bytes) const;
  // `may_wait` false: shed at once when there is no room, whatever the policy.
  bool SubmitRecords(std::unique_ptr<RecordBuffer> records,
                     bool may_wait = true);
  // Whether records of so many bytes would be taken without waiting.
  bool HasRoomFor(uint64_t bytes);
  absl::Status Flush(v1::Durability level, absl::Duration deadline);
  // Until everything submitted before was given to NoteSpooled, or is
  // committed. After it has taken too long once: only while that moves on.
  absl::Status FlushToSpool(absl::Duration deadline);

  // From now on payloads are offered before they are sent, and equal bytes of
  // several ranks cross the wire once. Not for a spooled queue.
  void UseOffers(bool use);
  // The payloads to offer before anything else is sent; false: none.
  bool NextOffers(v1::PayloadOffers* offers);

  // What payloads lie in. A collector that can read its shared memory may
  // receive the offset instead of the bytes.
  PayloadMemory* memory() const { return memory_.get(); }
  // From now on NextFrame does so, or not.
  void UseLane(bool use);

  // The next frame to send within `credit_bytes` of unacknowledged bytes; false
  // when there is none.
  bool NextFrame(uint64_t credit_bytes, EncodedFrame* frame);
  // The next frame that was not given out here before, whatever the credit:
  // for the spool. One that the spool is not to have has no bytes.
  bool NextUnspooled(EncodedFrame* frame);
  // The spool has frames up to this one, or will not have them. UINT64_MAX:
  // there is none.
  void NoteSpooled(uint64_t sequence);
  // Everything submitted so far is in the spool or committed.
  bool AllKept() const;
  // From now on payloads stay here, as far as there is room, until records
  // behind them are committed, which refer to them: another collector that the
  // process may come to has neither.
  void KeepUntilReferred(bool keep);
  // The collector holds everything up to `sequence`; what follows is sent
  // again, payloads of which a part is to be sent from their beginning. What it
  // holds stays until its first ack, which names those it has refused: an ack
  // that did may have been lost.
  void Resume(uint64_t sequence);
  // Whether NextFrame may now give what it did not give before. Frames that it
  // names as refused are dropped and what they held is counted as lost. As long
  // as it says that the collector has no room for payloads Reserve gives none,
  // and waits for room by policy, once.
  bool Ack(const v1::UploadAck& ack);
  // The collector has said something, on the control stream.
  void NoteHeard();
  // The connection has ended; `silent`: because nothing was heard on it.
  void NoteEnded(bool silent);
  // The collector is to be asked whether it is there: a thread waits for room,
  // or frames have been on their way for long.
  bool TakeQuestion();
  // Of this connection's acks: one that speaks of frames that were never sent.
  // Its contents are ignored, and the caller must end the connection.
  absl::Status AckFault() const;
  // How long frames have been on their way without a word about any; zero: none
  // are.
  absl::Duration WaitingForAck() const;
  // The collector has ended the upload, for a person: `reason`. If it does so
  // again with one and the same frame alone on its way, that frame is dropped
  // as if it were refused: it would never let the others through.
  enum class End : uint8_t { kRefused, kDamaged };
  // kDamaged: what came did not match its checksum. The cause is the connection
  // and not a frame, so the frame is sent some more times.
  void StreamEnded(absl::string_view reason, End end = End::kRefused);
  // Something has not been sent yet and does not wait for more records.
  bool HasWork() const;
  // How long NextFrame returns nothing because records wait for more records;
  // infinite: they do not wait.
  absl::Duration HeldFor() const;
  // Submissions and barriers that have not become frames.
  size_t Unframed() const;
  // The lowest sequence number that can still be sent.
  uint64_t FirstSequence() const;

  // Data that is here and not committed, and dropped data that was not
  // reported; `reason` is not set. Reads all frames: for the end.
  // `spool_delivers`: without what the spool has. The collector has frames up
  // to `held`, if no ack said so either.
  v1::Undelivered Undelivered(bool spool_delivers = false,
                              uint64_t held = 0) const;

  void FillStats(SessionStats* stats) const;
  // Gives back the room of a reservation.
  void Release(uint64_t bytes);

 private:
  bool HasWorkLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // How long records that are held wait still; zero: none are.
  absl::Duration Held() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Waits by policy; why the bytes are shed, UNSPECIFIED: they are not.
  v1::LossReason Acquire(uint64_t bytes, uint64_t limit, bool may_wait)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets go of the lock while it encodes.
  void MakeFrames(GonePayloads* gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(framing_, mutex_);
  // What a Flush waits for.
  struct Barrier {
    const FlushMarker* marker;
    FrameWindow::Level level;
  };
  absl::Status Await(FrameWindow::Level level, absl::Duration deadline);
  // Everything submitted so far is.
  bool IsAt(FrameWindow::Level level) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool Passed(const Barrier& barrier) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // After anything that may end a wait for room or at a barrier.
  void TellWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const std::function<void()> wake_;
  const std::shared_ptr<PayloadMemory> memory_;

  // Held over MakeFrames: one thread at a time makes frames, so that their
  // order is that of the submissions.
  absl::Mutex framing_ ABSL_ACQUIRED_BEFORE(mutex_);
  // Behind it come the locks of the memory and of what `wake` takes.
  mutable absl::Mutex mutex_;
  // A barrier is.
  MonotonicCondVar passed_;
  std::vector<const Barrier*> barriers_ ABSL_GUARDED_BY(mutex_);
  ByteBudget budget_ ABSL_GUARDED_BY(mutex_);
  std::deque<QueuedItem> items_ ABSL_GUARDED_BY(mutex_);
  RecordHold hold_ ABSL_GUARDED_BY(mutex_);
  OfferBook offers_ ABSL_GUARDED_BY(mutex_);
  // Records are neither in items_ nor in window_ at the moment.
  bool encoding_ ABSL_GUARDED_BY(mutex_) = false;
  FrameWindow window_ ABSL_GUARDED_BY(mutex_);
  KnownPayloads known_ ABSL_GUARDED_BY(mutex_);
  LossReports losses_ ABSL_GUARDED_BY(mutex_);
  // Of the newest frame with losses: a barrier waits for it too.
  uint64_t last_loss_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  bool use_lane_ ABSL_GUARDED_BY(mutex_) = false;
  bool keep_until_referred_ ABSL_GUARDED_BY(mutex_) = false;
  // The newest frame in the spool when a barrier timed out.
  std::optional<uint64_t> spool_stuck_at_ ABSL_GUARDED_BY(mutex_);
  uint64_t records_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t payloads_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t payload_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t deduplicated_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t lane_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_QUEUE_H_
