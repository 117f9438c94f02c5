// SPDX-License-Identifier: Apache-2.0
// Bounded send queue: submissions become numbered frames that stay until they
// are committed, within one byte budget.
//
// Ownership: the session's. Its parts are its own and are guarded by its one
// lock. Payload buffers must not outlive it.
// Threads: Submit*, Reserve*, Flush, NextUnspooled and the counters may be
// called from any thread; NextFrame and Resume only from the session's worker;
// Ack from one thread at a time, and not concurrently with Resume.
// Failure: a full budget drops data by policy and counts it; nothing else
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
    // NextUnspooled is used: frames are made as soon as there is data for one.
    bool spooled = false;
    // The spool holds no payloads: NextUnspooled returns their frames empty.
    bool spools_records_only = false;
    // Whether equal payloads are sent once.
    bool remember = true;
    // Whether large payloads are allocated in shared memory, for UseLane.
    bool shared_memory = false;
    // How long records may wait for others so that they are sent together,
    // unless a thread waits at a barrier or there are many: each frame that is
    // sent wakes threads on both sides. Used only if a spool has the records in
    // the meantime.
    absl::Duration hold;
    // How long a thread waits for room while the collector does not respond.
    absl::Duration silence_deadline = absl::InfiniteDuration();
  };
  using Digest = PayloadDigest;

  // `wake` is called after anything that may make NextFrame return a frame. It
  // must be cheap and must not take a lock that is held while calling this
  // class, because it is also called with this class' lock held.
  FrameQueue(const Options& options, const Clock* clock,
             std::function<void()> wake);

  // See Session::ReservePayload.
  std::unique_ptr<PayloadBuffer> Reserve(uint64_t length_bytes,
                                         v1::LossReason* reason);
  void SubmitPayload(const Digest& digest,
                     std::unique_ptr<PayloadBuffer> payload);
  bool KnowsPayload(const Digest& digest, uint64_t length_bytes) const;
  // If `may_wait` is false and there is no room, drops the records at once,
  // whatever the policy. Returns false if they are dropped.
  bool SubmitRecords(std::unique_ptr<RecordBuffer> records,
                     bool may_wait = true);
  // Whether records of `bytes` bytes would be accepted without waiting.
  bool HasRoomFor(uint64_t bytes);
  absl::Status Flush(v1::Durability level, absl::Duration deadline);
  // Waits until everything submitted before was reported by NoteSpooled or is
  // committed. Once this has timed out, it waits only while the spool makes
  // progress.
  absl::Status FlushToSpool(absl::Duration deadline);

  // From now on payloads are offered before they are sent, so that equal bytes
  // of several ranks cross the wire once. Not for a spooled queue.
  void UseOffers(bool use);
  // Returns the payloads to offer before anything else is sent; false if there
  // are none.
  bool NextOffers(v1::PayloadOffers* offers);

  // Memory of the payloads. A collector that can read its shared memory may
  // receive the offset instead of the bytes.
  PayloadMemory* memory() const { return memory_.get(); }
  // Whether NextFrame sends offsets instead of bytes from now on.
  void UseLane(bool use);

  // Returns the next frame to send within `credit_bytes` of unacknowledged
  // bytes; false if there is none.
  bool NextFrame(uint64_t credit_bytes, EncodedFrame* frame);
  // For the spool: returns the next frame that this method has not returned
  // before, whatever the credit. A frame that must not be in the spool has no
  // bytes.
  bool NextUnspooled(EncodedFrame* frame);
  // The spool has the frames up to this one, or will not have them. UINT64_MAX:
  // there is no spool.
  void NoteSpooled(uint64_t sequence);
  // Whether everything submitted so far is in the spool or committed.
  bool AllKept() const;
  // From now on payloads stay in memory, while there is room, until later
  // records, which refer to them, are committed: if the process moves to
  // another collector, that one has neither.
  void KeepUntilReferred(bool keep);
  // The collector holds everything up to `sequence`. Later frames are sent
  // again; a payload with unsent parts starts from its beginning. Frames that
  // the collector holds are kept until its first ack, which names those it has
  // refused: an earlier ack that did so may have been lost.
  void Resume(uint64_t sequence);
  // Returns whether NextFrame may now return a frame that it did not return
  // before. Frames that the ack names as refused are dropped, and their
  // contents count as lost. While the ack reports that the collector has no
  // room for payloads, Reserve returns none; it waits for room by policy, once.
  bool Ack(const v1::UploadAck& ack);
  // The collector has sent something on the control stream.
  void NoteHeard();
  // The connection has ended; `silent`: because nothing was received on it.
  void NoteEnded(bool silent);
  // Whether the collector must be asked for a response: a thread waits for
  // room, or frames have been in flight for long.
  bool TakeQuestion();
  // An error if an ack of this connection named frames that were never sent.
  // Its contents are ignored, and the caller must end the connection.
  absl::Status AckFault() const;
  // How long frames have been in flight without any ack; zero if none are.
  absl::Duration WaitingForAck() const;
  // The collector has ended the upload for `reason`, a text for a person. If it
  // does so again while the same frame alone is in flight, that frame is
  // dropped as if it were refused: it would block all later frames forever.
  enum class End : uint8_t { kRefused, kDamaged };
  // kDamaged: the received bytes did not match their checksum. The connection
  // is the cause and not a frame, so the frame is sent a few more times.
  void StreamEnded(absl::string_view reason, End end = End::kRefused);
  // Whether there is unsent data that does not wait for more records.
  bool HasWork() const;
  // How long NextFrame returns nothing because records wait for more records;
  // infinite if none wait.
  absl::Duration HeldFor() const;
  // Number of submissions and barriers that are not frames yet.
  size_t Unframed() const;
  // The lowest sequence number that can still be sent.
  uint64_t FirstSequence() const;

  // Data that is in the queue and not committed, and dropped data that was not
  // reported; `reason` is not set. Reads all frames, so it is called only at
  // the end. `spool_delivers`: leaves out what the spool has. `held`: the
  // collector has the frames up to this one, even if no ack has said so.
  v1::Undelivered Undelivered(bool spool_delivers = false,
                              uint64_t held = 0) const;

  void FillStats(SessionStats* stats) const;
  // Returns the bytes of a reservation to the budget.
  void Release(uint64_t bytes);

 private:
  bool HasWorkLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // How long records are still held; zero if none are.
  absl::Duration Held() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Waits by policy. Returns why the bytes are dropped, UNSPECIFIED if they are
  // not.
  v1::LossReason Acquire(uint64_t bytes, uint64_t limit, bool may_wait)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Releases mutex_ while it encodes.
  void MakeFrames(GonePayloads* gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(framing_, mutex_);
  // Place and level that a Flush waits for.
  struct Barrier {
    const FlushMarker* marker;
    FrameWindow::Level level;
  };
  absl::Status Await(FrameWindow::Level level, absl::Duration deadline);
  // Whether everything submitted so far has reached `level`.
  bool IsAt(FrameWindow::Level level) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool Passed(const Barrier& barrier) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Called after anything that may end a wait for room or at a barrier.
  void TellWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const std::function<void()> wake_;
  const std::shared_ptr<PayloadMemory> memory_;

  // Held during MakeFrames: only one thread at a time makes frames, so that
  // their order is that of the submissions.
  absl::Mutex framing_ ABSL_ACQUIRED_BEFORE(mutex_);
  // Taken before the lock of the memory and the locks that `wake` takes.
  mutable absl::Mutex mutex_;
  // Notified when a barrier is passed.
  MonotonicCondVar passed_;
  std::vector<const Barrier*> barriers_ ABSL_GUARDED_BY(mutex_);
  ByteBudget budget_ ABSL_GUARDED_BY(mutex_);
  std::deque<QueuedItem> items_ ABSL_GUARDED_BY(mutex_);
  RecordHold hold_ ABSL_GUARDED_BY(mutex_);
  OfferBook offers_ ABSL_GUARDED_BY(mutex_);
  // Set while records are neither in items_ nor in window_.
  bool encoding_ ABSL_GUARDED_BY(mutex_) = false;
  FrameWindow window_ ABSL_GUARDED_BY(mutex_);
  KnownPayloads known_ ABSL_GUARDED_BY(mutex_);
  LossReports losses_ ABSL_GUARDED_BY(mutex_);
  // The newest frame with losses: a barrier waits for it too.
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
