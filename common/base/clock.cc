// SPDX-License-Identifier: Apache-2.0
#include "common/base/clock.h"

#include <chrono>

namespace rankprobe {

absl::Time SystemClock::Now() const { return absl::Now(); }

int64_t SystemClock::MonotonicNanos() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace rankprobe
