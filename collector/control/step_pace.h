// SPDX-License-Identifier: Apache-2.0
// Pace of a rank: steps over the time they took, lately. One step that took
// microseconds says nothing of the next. Times are monotonic.
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
  // The rank was in `step` at `now`; the step before it took `last_step_ns`, 0
  // if it did not say.
  void Note(int64_t step, int64_t last_step_ns, absl::Time now);

  // What a step takes, the step that goes on included: the longer of what the
  // rank said last and of the average over the last tenth of a second, or over
  // the time since the last step before that. 0: nothing is known.
  int64_t StepNanos(absl::Time now) const;

  // Nobody would call it a step that takes this long: two seconds, and three
  // times the shortest of the last steps. A step behind a pause is as long as
  // that was.
  absl::Duration IdleAfter() const;

 private:
  struct Sample {
    absl::Time at;
    int64_t step = 0;
  };
  // From the newest that is old enough to look back to.
  std::deque<Sample> samples_;
  int64_t step_ = 0;
  int64_t last_step_ns_ = 0;
  // The last few.
  std::deque<int64_t> lasted_ns_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_CONTROL_STEP_PACE_H_
