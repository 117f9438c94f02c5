// SPDX-License-Identifier: Apache-2.0
// Interface of the time source. Logic takes a Clock*; only main() makes a real
// one.
// Thread-safe. A Clock outlives everything that holds a pointer to it.
#ifndef RANKPROBE_COMMON_BASE_CLOCK_H_
#define RANKPROBE_COMMON_BASE_CLOCK_H_

#include <atomic>
#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace rankprobe {

class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time, for people.
  virtual absl::Time Now() const = 0;
  // Nanoseconds of a monotonic clock, for durations.
  virtual int64_t MonotonicNanos() const = 0;
};

class SystemClock : public Clock {
 public:
  absl::Time Now() const override;
  int64_t MonotonicNanos() const override;
};

// A clock that advances only when a test moves it.
class ManualClock : public Clock {
 public:
  absl::Time Now() const override {
    return absl::FromUnixNanos(1700000000000000000 + nanos_.load());
  }
  int64_t MonotonicNanos() const override { return nanos_.load(); }
  void Advance(absl::Duration d) { nanos_ += absl::ToInt64Nanoseconds(d); }

 private:
  std::atomic<int64_t> nanos_{0};
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_CLOCK_H_
