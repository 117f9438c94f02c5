// SPDX-License-Identifier: Apache-2.0
// Decides if the wall clock can be trusted when data is to be deleted for its
// age.
//
// It can as long as it advances with the monotonic clock. After a jump of more
// than a minute nothing counts as old until the clock has returned, or has run
// steadily for an hour: three seconds of a wrong date must not cost an archive.
// At start the newest row of the archive is compared with the clock: if all of
// it would be too old, or if it lies in the future, the guard waits for the
// same hour. Threads: none of its own.
#ifndef RANKPROBE_COLLECTOR_STORE_WALL_CLOCK_GUARD_H_
#define RANKPROBE_COLLECTOR_STORE_WALL_CLOCK_GUARD_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace rankprobe {

class WallClockGuard {
 public:
  static constexpr absl::Duration kJump = absl::Minutes(1);
  static constexpr absl::Duration kSettle = absl::Hours(1);

  // `newest` is the time of the last write to the archive; absent if it is
  // empty.
  WallClockGuard(const Clock* clock, std::optional<absl::Time> newest,
                 absl::Duration max_age);

  // Reads both clocks and returns whether the wall clock is trusted.
  bool Trusts();

 private:
  // Returns wall time minus monotonic time.
  absl::Duration Offset() const;

  const Clock* const clock_;
  std::optional<absl::Duration> trusted_;
  // The offset since `since_ns_`, which is not trusted yet.
  std::optional<absl::Duration> settling_;
  int64_t since_ns_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_WALL_CLOCK_GUARD_H_
