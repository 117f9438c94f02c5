// SPDX-License-Identifier: Apache-2.0
// Uncommitted frames of a FrameQueue by their numbers: which are sent, spooled
// and acknowledged, and which are sent again to a collector that has lost them.
//
// Ownership: the queue's; used under its lock. Released payloads are returned
// to the caller, because their destructors may take that lock.
// Failure: an ack of frames that were never sent sets AckFault, and is ignored.
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
  // A frame holds encoded records, a piece of a payload, or nothing.
  struct Frame {
    uint64_t sequence = 0;
    uint64_t wire_bytes = 0;
    // Bytes to return to the budget when the frame is committed.
    uint64_t budget_bytes = 0;
    // An encoded RecordBatch.
    std::shared_ptr<const EncodedBatch> records;
    PayloadDigest digest{};
    std::shared_ptr<QueuedPayload> payload;
    uint64_t offset = 0;
    uint64_t length = 0;
    // If not empty, the frame was given up for this reason, and an
    // UndeliverableFrame is sent instead.
    std::string undeliverable;
  };
  // The state of frames that a barrier waits for.
  enum class Level : uint8_t { kSpooled, kCommitted, kSynced };

  explicit FrameWindow(const Clock* clock) : clock_(clock) {}

  // Append new frames.
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

  // Whether the next frame may be sent, as far as the frames before it are
  // concerned.
  bool MayLeave(uint64_t credit_bytes) const;
  // Requires MayLeave.
  Frame TakeNext();
  // Requires unspooled() > 0.
  const Frame& TakeUnspooled() { return frames_[next_spooled_++]; }

  // UINT64_MAX: there is no spool.
  void NoteSpooled(uint64_t sequence);
  uint64_t spooled() const { return spooled_; }
  // The newest frame that has reached `level`.
  uint64_t Reached(Level level) const;
  // How long frames have been in flight without any ack.
  absl::Duration WaitingForAck() const;

  // A new connection, whose collector holds everything up to `sequence`.
  // Returns false if it has lost what was committed.
  bool Resume(uint64_t sequence);
  // Sets AckFault if the ack names frames that were never sent.
  void CheckAck(const v1::UploadAck& ack);
  const absl::Status& ack_fault() const { return ack_fault_; }
  // Removes committed frames. `keep`: payloads stay until later records are
  // committed. Returns the budget that becomes free; `gone` receives the
  // released payloads.
  uint64_t TakeAck(const v1::UploadAck& ack, bool keep, GonePayloads* gone);
  // Committed frames of payloads that directly precede those of frames().
  bool has_kept() const { return !kept_.empty(); }
  void ForgetKept(GonePayloads* gone);
  // Empties the frame of that number and returns its former contents.
  Frame Empty(uint64_t sequence);
  // Empties the frames of a payload that were not sent yet; returns how many
  // bytes they held.
  uint64_t EmptyChunks(const PayloadDigest& digest, GonePayloads* gone);
  // The upload has ended. A frame that was alone in flight `most` times when it
  // ended is given up for the reason `why`.
  void NoteEnd(int most, absl::string_view why);

 private:
  Frame& Add();
  // Moves kept frames after `sequence` back into frames_.
  void TakeBack(uint64_t sequence);

  const Clock* const clock_;
  std::deque<Frame> frames_, kept_;
  // Indices in frames_ of the next frame to send and to spool.
  size_t next_ = 0, next_spooled_ = 0;
  uint64_t in_flight_bytes_ = 0;
  uint64_t last_sequence_ = 0;
  // The newest frame in the spool.
  uint64_t spooled_ = 0;
  uint64_t committed_ = 0, synced_ = 0;
  // The same, but only by acks of the current connection's collector.
  uint64_t committed_here_ = 0;
  // The newest frame that the collector held when this connection began.
  uint64_t resumed_ = 0;
  // The highest number that was ever sent.
  uint64_t sent_ = 0;
  absl::Status ack_fault_;
  // When the last ack was received, or when the first frame in flight was sent.
  int64_t heard_ns_ = 0;
  FrameSuspect suspect_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_WINDOW_H_
