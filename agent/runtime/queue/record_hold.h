// SPDX-License-Identifier: Apache-2.0
// The time that records of a FrameQueue wait for others, to leave together with
// them. Used under the queue's lock. Nothing fails.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_RECORD_HOLD_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_RECORD_HOLD_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace rankprobe {

class RecordHold {
 public:
  // If `time` is zero, nothing is held.
  RecordHold(absl::Duration time, uint64_t budget_bytes, const Clock* clock)
      : time_(time),
        // 1 MiB in memory; an eighth of a small budget.
        most_bytes_(std::min(uint64_t{1} << 20, budget_bytes / 8)),
        clock_(clock) {}

  // Adds submitted records; returns whether the worker must be woken.
  bool Add(uint64_t bytes, bool urgent) {
    if (time_ <= absl::ZeroDuration()) return true;
    bytes_ += bytes;
    if (urgent || bytes_ >= most_bytes_) End();
    const bool first = leaves_at_ns_ == 0;
    if (first)
      leaves_at_ns_ =
          clock_->MonotonicNanos() + absl::ToInt64Nanoseconds(time_);
    // The worker is woken by the first record, so that it sets its timer.
    return first || leaving_;
  }
  // Sends everything that is held; records that come later are held again.
  void End() { leaving_ = true; }
  // A frame was sent, or there was none; `more`: other records wait.
  void NoteLeft(bool more) {
    leaving_ = more;
    if (more) return;
    leaves_at_ns_ = 0;
    bytes_ = 0;
  }
  // Zero if nothing is held.
  absl::Duration Rest() const {
    if (leaves_at_ns_ == 0 || leaving_) return absl::ZeroDuration();
    return std::max(absl::Nanoseconds(leaves_at_ns_ - clock_->MonotonicNanos()),
                    absl::ZeroDuration());
  }

 private:
  const absl::Duration time_;
  const uint64_t most_bytes_;
  const Clock* const clock_;
  // When the held records leave (0 if there are none), and their bytes.
  int64_t leaves_at_ns_ = 0;
  uint64_t bytes_ = 0;
  // The held records are being sent, or are to be sent at once.
  bool leaving_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_RECORD_HOLD_H_
