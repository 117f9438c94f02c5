// SPDX-License-Identifier: Apache-2.0
// Limits concurrent requests to a store and delays retries. A store that says
// it has too much to do gets half as many; with each answer the number grows
// again (additive increase, multiplicative decrease). Waits are spread over all
// of their length (full jitter), so that many collectors do not come back
// together. Ownership: one per store; the clock outlives it. Thread-safe.
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_REQUEST_PACER_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_REQUEST_PACER_H_

#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/monotonic_time.h"

namespace rankprobe {

class RequestPacer {
 public:
  struct Options {
    int most_at_once = 16;
    absl::Duration first_wait = absl::Milliseconds(100);
    absl::Duration longest_wait = absl::Seconds(10);
    // Overloads within this time are one.
    absl::Duration overload_window = absl::Seconds(1);
    // A number in [0, 1).
    std::function<double()> random;
  };

  RequestPacer(Options options, const Clock* clock);

  // Waits for a place among those at once; false: not within this time.
  bool Enter(absl::Duration timeout);
  // Gives it back.
  void Leave();

  void OnSuccess();
  void OnOverload();

  // Before attempt number `attempt` + 1; `attempt` from 1.
  absl::Duration WaitAfter(int attempt);

  int at_once() const;

 private:
  const Options options_;
  const Clock* const clock_;
  mutable absl::Mutex mutex_;
  MonotonicCondVar left_;
  double limit_ ABSL_GUARDED_BY(mutex_);
  int inside_ ABSL_GUARDED_BY(mutex_) = 0;
  bool overloaded_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t overload_ns_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_REQUEST_PACER_H_
