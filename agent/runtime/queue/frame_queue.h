// SPDX-License-Identifier: Apache-2.0
// Bounded send queue: submissions become numbered frames that stay until they
// are committed, within one byte budget.
//
// Threads: Submit*, Reserve*, Flush, NextUnspooled and the counters from any
// thread; NextFrame and Resume from the session's worker only, Ack from one
// thread at a time, and not concurrently with Resume.
// Failure: a full budget sheds by policy and counts; nothing else fails.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_QUEUE_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_QUEUE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/runtime/queue/buffers.h"
#include "agent/runtime/queue/byte_budget.h"
#include "agent/runtime/queue/frame_encoding.h"
#include "agent/runtime/queue/frame_suspect.h"
#include "agent/runtime/queue/payload_memory.h"
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
  using Digest = std::array<uint8_t, 16>;

  // `wake` is called after anything that may make NextFrame return a frame; it
  // must be cheap and take no lock that is held while calling this class: it is
  // called with this class' lock, too.
  FrameQueue(const Options& options, const Clock* clock,
             std::function<void()> wake);

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

  // The shared memory of large payloads, once there was one: a collector that
  // can read it may receive the offset instead of the bytes. Null: there is
  // none; `status` has the reason if it is known.
  const SharedMemory* shared_memory(absl::Status* status) const;
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
  // again, payloads of which a part is to be sent from their beginning. What it holds stays until its first ack, which names those it has
  // refused: an ack that did may have been lost.
  void Resume(uint64_t sequence);
  // Whether NextFrame may now give what it did not give before. Frames that it
  // names as refused are dropped and what they held is counted as lost. As long as
  // it says that the collector has no room for payloads Reserve gives none, and
  // waits for room by policy, once.
  bool Ack(const v1::UploadAck& ack);
  // The collector has said something, on the control stream.
  void NoteHeard();
  // The connection has ended; `silent`: because nothing was heard on it.
  void NoteEnded(bool silent);
  // The collector is to be asked whether it is there: a thread waits for room, or
  // frames have been on their way for long.
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

  // Called from time to time; gives memory back that is no longer needed.
  void Trim() { memory_->Trim(); }

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
  // Until when on the clock; 0: it is not held.
  int64_t HeldUntil() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Records that were submitted; whether the worker is to know.
  bool HoldRecords(uint64_t bytes, bool urgent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends everything that is held; records that come later are held again.
  void EndHold() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { leaving_ = true; }
  void NoteLeft() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  class Buffer;
  struct PayloadItem {
    Digest digest;
    std::shared_ptr<Buffer> payload;
  };
  static uint64_t PayloadSize(const PayloadItem& item);
  struct FlushMarker {
    uint64_t sequence = 0;
    bool placed = false;
  };
  using Item = std::variant<std::unique_ptr<RecordBuffer>, PayloadItem,
                            std::shared_ptr<FlushMarker>>;
  // A frame that is kept: either encoded records or a piece of a payload.
  struct Frame {
    uint64_t sequence = 0;
    uint64_t wire_bytes = 0;
    // Budget to give back when the frame is committed.
    uint64_t budget_bytes = 0;
    // An encoded RecordBatch.
    std::shared_ptr<const EncodedBatch> records;
    Digest digest{};
    std::shared_ptr<Buffer> payload;
    uint64_t offset = 0;
    uint64_t length = 0;
    // Not empty: it was given up for this reason, and an UndeliverableFrame is
    // sent in its place.
    std::string undeliverable;
  };
  // Records that were taken off the queue to become frames.
  struct Batch {
    int64_t step = 0;
    std::vector<std::unique_ptr<RecordBuffer>> buffers;
  };

  // What the collector says of a payload that was offered.
  struct Offer {
    enum class State : uint8_t { kAsked, kWanted, kComing, kHave };
    State state = State::kAsked;
    int64_t since_ns = 0;
    uint64_t length = 0;
  };

  void NotePayloadCredit(v1::PayloadCredit credit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the first item out.
  Item PopItem() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeAnswers(const v1::UploadAck& ack)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the first item, a payload, must wait for the collector's answer.
  bool MustAsk(const PayloadItem& item) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes frames of it, or puts it aside.
  void PlacePayload(PayloadItem item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frames of it. If the collector has it an empty one, and true: the buffer is
  // to be let go, without the lock.
  bool Settle(const PayloadItem& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Those put aside that are there by now, wanted after all, or too old.
  void PlaceWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetOffers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  bool Knows(const Digest& digest) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits by policy; why the bytes are shed, UNSPECIFIED: they are not.
  v1::LossReason Acquire(uint64_t bytes, uint64_t limit, bool may_wait)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the next frame may leave, as far as those before it are concerned.
  bool MayLeave(uint64_t credit_bytes) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Lets go of the lock while it encodes.
  void MakeFrames() ABSL_EXCLUSIVE_LOCKS_REQUIRED(framing_, mutex_);
  // `lane`: bytes in shared memory stay there.
  void Encode(Frame frame, bool lane, EncodedFrame* out) const;
  void AddRecordsFrame(EncodedBatch batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddPayloadFrames(const PayloadItem& item)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration WaitingForAckLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Losses become records, which become frames.
  bool HasLosses() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return !losses_.empty() || !loss_events_.empty();
  }
  void NoteLoss(int64_t step, v1::LossEvent loss)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddLosses() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Empties the frame of that number, counts what it held, says so.
  void Refuse(uint64_t sequence, absl::string_view reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frames of a payload that were not sent yet hold nothing any more; how many
  // bytes they held. Lets go of the lock meanwhile.
  uint64_t EmptyChunks(const Digest& digest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a Flush waits for.
  enum class Level : uint8_t { kSpooled, kCommitted, kSynced };
  struct Barrier {
    const FlushMarker* marker;
    Level level;
  };
  absl::Status Await(Level level, absl::Duration deadline);
  // The newest frame that has come so far.
  uint64_t Reached(Level level) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool Passed(const Barrier& barrier) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // After anything that may end a wait for room or at a barrier.
  void TellWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropCommitted(uint64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets go of frames that are kept. Lets go of the lock meanwhile.
  void ForgetKept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const Clock* const clock_;
  const std::function<void()> wake_;
  const std::shared_ptr<PayloadMemory> memory_;

  // Held over MakeFrames: one thread at a time makes frames, so that their
  // order is that of the submissions.
  absl::Mutex framing_ ABSL_ACQUIRED_BEFORE(mutex_);
  mutable absl::Mutex mutex_;
  // A barrier is.
  MonotonicCondVar passed_;
  std::vector<const Barrier*> barriers_ ABSL_GUARDED_BY(mutex_);
  ByteBudget budget_ ABSL_GUARDED_BY(mutex_);
  uint64_t credit_lines_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  // When the records that are held leave, 0: none are; and how many bytes they
  // are. `leaving_`: they have begun to, or are to at once.
  int64_t leaves_at_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  bool use_offers_ ABSL_GUARDED_BY(mutex_) = false;
  bool use_lane_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<Digest, Offer> offers_ ABSL_GUARDED_BY(mutex_);
  // Index into items_ of the first that is not offered yet.
  size_t next_offer_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of items offered and still in items_.
  uint64_t offered_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Payloads that another rank sends.
  std::deque<PayloadItem> waiting_ ABSL_GUARDED_BY(mutex_);
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
  // Records are neither in items_ nor in frames_ at the moment.
  bool encoding_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Frame> frames_ ABSL_GUARDED_BY(mutex_);
  // Index into frames_ of the next one to send.
  size_t next_frame_ ABSL_GUARDED_BY(mutex_) = 0;
  // Likewise, of the next one to spool.
  size_t next_spooled_ ABSL_GUARDED_BY(mutex_) = 0;
  // Number of the newest frame in the spool, and of the frame for which a
  // barrier timed out.
  uint64_t spooled_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<uint64_t> spool_stuck_at_ ABSL_GUARDED_BY(mutex_);
  uint64_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t committed_ ABSL_GUARDED_BY(mutex_) = 0;
  // The same of this connection's collector alone.
  uint64_t committed_here_ ABSL_GUARDED_BY(mutex_) = 0;
  bool keep_until_referred_ ABSL_GUARDED_BY(mutex_) = false;
  // Frames of payloads right before those of frames_, committed.
  std::deque<Frame> kept_ ABSL_GUARDED_BY(mutex_);
  // What the collector of this connection held when it began.
  uint64_t resumed_ ABSL_GUARDED_BY(mutex_) = 0;
  // The highest number that was ever sent.
  uint64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status ack_fault_ ABSL_GUARDED_BY(mutex_);
  // When an ack came last, or the first frame left that is on its way.
  int64_t heard_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t synced_ ABSL_GUARDED_BY(mutex_) = 0;
  // Payloads sent, with the step they were sent in.
  absl::flat_hash_map<Digest, int64_t> known_ ABSL_GUARDED_BY(mutex_);
  int64_t newest_step_ ABSL_GUARDED_BY(mutex_) = 0;
  // Dropped records, by step and reason, until a LossEvent reports them.
  std::map<std::pair<int64_t, v1::LossReason>, uint64_t> losses_
      ABSL_GUARDED_BY(mutex_);
  // Losses that have more to say, by step.
  std::vector<std::pair<int64_t, v1::LossEvent>> loss_events_
      ABSL_GUARDED_BY(mutex_);
  uint64_t loss_orders_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of the newest frame with losses: a barrier waits for it too.
  uint64_t last_loss_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t refused_frames_ ABSL_GUARDED_BY(mutex_) = 0;
  FrameSuspect suspect_ ABSL_GUARDED_BY(mutex_);
  uint64_t records_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t payloads_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t payload_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t deduplicated_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t lane_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t lost_records_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t lost_payloads_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_QUEUE_H_
