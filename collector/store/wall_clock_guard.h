// SPDX-License-Identifier: Apache-2.0
// Decides if the wall clock can be trusted when data is to be deleted for its
// age.
//
// It is, as long as it moves with the monotonic clock. After a jump of more
// than a minute nothing is old until the clock has gone back to where it was,
// or has run on steadily for an hour: three seconds of a wrong date must not
// cost an archive. At start the newest row of the archive stands for the clock:
// if all of it would be too old, or if it lies in the future, the hour is
// waited too. Threads: none of its own.
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

  // `newest`: when the archive was written to last; absent: it is empty.
  WallClockGuard(const Clock* clock, std::optional<absl::Time> newest,
                 absl::Duration max_age);

  // Looks at both clocks.
  bool Trusts();

 private:
  // Wall time less monotonic time.
  absl::Duration Offset() const;

  const Clock* const clock_;
  std::optional<absl::Duration> trusted_;
  // Where the wall clock has been since `since_ns_`, and is not trusted yet.
  std::optional<absl::Duration> settling_;
  int64_t since_ns_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_WALL_CLOCK_GUARD_H_
