// SPDX-License-Identifier: Apache-2.0
#include "collector/store/wall_clock_guard.h"

namespace rankprobe {

WallClockGuard::WallClockGuard(const Clock* clock,
                               std::optional<absl::Time> newest,
                               absl::Duration max_age)
    : clock_(clock) {
  const absl::Time now = clock->Now();
  if (!newest.has_value() || (now > *newest - kJump && now - *newest < max_age))
    trusted_ = Offset();
}

absl::Duration WallClockGuard::Offset() const {
  return clock_->Now() - absl::FromUnixNanos(clock_->MonotonicNanos());
}

bool WallClockGuard::Trusts() {
  const absl::Duration offset = Offset();
  const int64_t now_ns = clock_->MonotonicNanos();
  if (trusted_.has_value() && absl::AbsDuration(offset - *trusted_) < kJump) {
    // Follows the small corrections of a time server.
    trusted_ = offset;
    settling_.reset();
    return true;
  }
  if (!settling_.has_value() ||
      absl::AbsDuration(offset - *settling_) >= kJump) {
    settling_ = offset;
    since_ns_ = now_ns;
    return false;
  }
  settling_ = offset;
  if (absl::Nanoseconds(now_ns - since_ns_) < kSettle) return false;
  trusted_ = offset;
  settling_.reset();
  return true;
}

}  // namespace rankprobe
