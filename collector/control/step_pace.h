// SPDX-License-Identifier: Apache-2.0
// Pace of a rank: recent steps over the time they took. One step that took
// microseconds does not predict the next. Times are monotonic.
//
// Not thread-safe: guarded by ControlCore's lock.
#ifndef RANKPROBE_COLLECTOR_CONTROL_STEP_PACE_H_
#define RANKPROBE_COLLECTOR_CONTROL_STEP_PACE_H_

#include <cstdint>
#include <deque>

#include "absl/time/time.h"

namespace rankprobe {

class StepPace {
 public:
  // Records that the rank was in `step` at `now`; the step before it took
  // `last_step_ns`, 0 if not reported.
  void Note(int64_t step, int64_t last_step_ns, absl::Time now);

  // Returns the duration of a step, including the current one: the longer of
  // what the rank reported last and of the average over the last tenth of a
  // second, or over the time since the last step before that. 0 if nothing is
  // known.
  int64_t StepNanos(absl::Time now) const;

  // Returns the time after which the rank counts as idle: two seconds, or three
  // times the shortest of the last steps if that is longer. The shortest is
  // used because a step after a pause is as long as the pause.
  absl::Duration IdleAfter() const;

 private:
  struct Sample {
    absl::Time at;
    int64_t step = 0;
  };
  // Begins with the newest sample that is old enough for the average.
  std::deque<Sample> samples_;
  int64_t step_ = 0;
  int64_t last_step_ns_ = 0;
  // Durations of the last few steps.
  std::deque<int64_t> lasted_ns_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_STEP_PACE_H_
