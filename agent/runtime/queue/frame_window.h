// SPDX-License-Identifier: Apache-2.0
// The frames of a FrameQueue that are not committed, by their numbers: which
// are sent, spooled and acknowledged, and which a collector that has lost them
// gets again.
//
// Ownership: the queue's; used under its lock. Payloads that go are handed out:
// they may take that lock. Failure: an ack of what was never sent is AckFault,
// and is not believed.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_WINDOW_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/runtime/queue/frame_encoding.h"
#include "agent/runtime/queue/frame_suspect.h"
#include "agent/runtime/queue/queued_item.h"
#include "common/base/clock.h"

namespace rankprobe {

class FrameWindow {
 public:
  // Either encoded records, a piece of a payload, or nothing.
  struct Frame {
    uint64_t sequence = 0;
    uint64_t wire_bytes = 0;
    // Budget to give back when the frame is committed.
    uint64_t budget_bytes = 0;
    // An encoded RecordBatch.
    std::shared_ptr<const EncodedBatch> records;
    PayloadDigest digest{};
    std::shared_ptr<QueuedPayload> payload;
    uint64_t offset = 0;
    uint64_t length = 0;
    // Not empty: it was given up for this reason, and an UndeliverableFrame is
    // sent in its place.
    std::string undeliverable;
  };
  // What a barrier waits for.
  enum class Level : uint8_t { kSpooled, kCommitted, kSynced };

  explicit FrameWindow(const Clock* clock) : clock_(clock) {}

  // New frames, behind all others.
  void AddRecords(std::vector<EncodedBatch> batches, uint64_t budget_bytes = 0);
  void AddPayload(const PayloadItem& item);
  void AddEmpty();
  uint64_t last_sequence() const { return last_sequence_; }
  // The lowest number that can still be sent.
  uint64_t first_sequence() const {
    return frames_.empty() ? last_sequence_ + 1 : frames_.front().sequence;
  }
  const std::deque<Frame>& frames() const { return frames_; }
  size_t unsent() const { return frames_.size() - next_; }
  size_t unspooled() const { return frames_.size() - next_spooled_; }

  // Whether the next frame may leave, as far as those before it are concerned.
  bool MayLeave(uint64_t credit_bytes) const;
  // Needs MayLeave.
  Frame TakeNext();
  // Needs unspooled() > 0.
  const Frame& TakeUnspooled() { return frames_[next_spooled_++]; }

  // UINT64_MAX: there is no spool.
  void NoteSpooled(uint64_t sequence);
  uint64_t spooled() const { return spooled_; }
  // The newest frame that has come so far.
  uint64_t Reached(Level level) const;
  // How long frames have been on their way without a word about any.
  absl::Duration WaitingForAck() const;

  // Another connection, whose collector holds everything up to `sequence`.
  // False: it has lost what was committed.
  bool Resume(uint64_t sequence);
  // AckFault is set if it speaks of frames that were never sent.
  void CheckAck(const v1::UploadAck& ack);
  const absl::Status& ack_fault() const { return ack_fault_; }
  // What is committed goes. `keep`: payloads stay until records behind them are
  // committed. Returns the budget that is free by that.
  uint64_t TakeAck(const v1::UploadAck& ack, bool keep, GonePayloads* gone);
  // Frames of payloads right before those of frames(), committed.
  bool has_kept() const { return !kept_.empty(); }
  void ForgetKept(GonePayloads* gone);
  // Empties the frame of that number; what it held.
  Frame Empty(uint64_t sequence);
  // Frames of a payload that were not sent yet hold nothing any more; how many
  // bytes they held.
  uint64_t EmptyChunks(const PayloadDigest& digest, GonePayloads* gone);
  // The upload has ended; a frame that has ended it often, alone, is given up
  // for `why`.
  void NoteEnd(int most, absl::string_view why);

 private:
  Frame& Add();
  // Frames behind `sequence` that are here and not in frames_ any more.
  void TakeBack(uint64_t sequence);

  const Clock* const clock_;
  std::deque<Frame> frames_, kept_;
  // Indices into frames_ of the next one to send and to spool.
  size_t next_ = 0, next_spooled_ = 0;
  uint64_t in_flight_bytes_ = 0;
  uint64_t last_sequence_ = 0;
  // The newest frame in the spool.
  uint64_t spooled_ = 0;
  uint64_t committed_ = 0, synced_ = 0;
  // The same of this connection's collector alone.
  uint64_t committed_here_ = 0;
  // What the collector of this connection held when it began.
  uint64_t resumed_ = 0;
  // The highest number that was ever sent.
  uint64_t sent_ = 0;
  absl::Status ack_fault_;
  // When an ack came last, or the first frame left that is on its way.
  int64_t heard_ns_ = 0;
  FrameSuspect suspect_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_WINDOW_H_
