// SPDX-License-Identifier: Apache-2.0
// FrameQueue's records that wait for others to leave together with them.
#include <algorithm>

#include "agent/runtime/queue/frame_queue.h"

namespace rankprobe {
namespace {

// Records, in memory, that are not held any longer; of a small budget an eighth.
constexpr uint64_t kMaxHeldBytes = 1 << 20;

}  // namespace

bool FrameQueue::HoldRecords(uint64_t bytes, bool urgent) {
  if (options_.hold <= absl::ZeroDuration()) return true;
  held_bytes_ += bytes;
  if (urgent ||
      held_bytes_ >= std::min(kMaxHeldBytes, options_.budget_bytes / 8))
    EndHold();
  const bool first = leaves_at_ns_ == 0;
  if (first) {
    leaves_at_ns_ =
        clock_->MonotonicNanos() + absl::ToInt64Nanoseconds(options_.hold);
  }
  // Of the first one it hears, to look at the clock.
  return first || leaving_;
}

void FrameQueue::NoteLeft() {
  leaving_ = HasWorkLocked();
  if (leaving_) return;
  leaves_at_ns_ = 0;
  held_bytes_ = 0;
}

int64_t FrameQueue::HeldUntil() const {
  if (leaves_at_ns_ == 0 || leaving_ || budget_.waits() || HasLosses() ||
      clock_->MonotonicNanos() >= leaves_at_ns_)
    return 0;
  return leaves_at_ns_;
}

absl::Duration FrameQueue::HeldFor() const {
  absl::MutexLock lock(&mutex_);
  const int64_t until = HeldUntil();
  return until == 0 ? absl::InfiniteDuration()
                    : absl::Nanoseconds(until - clock_->MonotonicNanos());
}

}  // namespace rankprobe
