// SPDX-License-Identifier: Apache-2.0
// Limits concurrent requests to a store and delays retries. After a report of
// overload the limit is halved; with each answer it grows again (additive
// increase, multiplicative decrease). Waits are random over their full length
// (full jitter), so that many collectors do not retry together. Ownership: one
// per store; the clock outlives it. Thread-safe.
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
    // Overloads within this time count once.
    absl::Duration overload_window = absl::Seconds(1);
    // Returns a number in [0, 1).
    std::function<double()> random;
  };

  RequestPacer(Options options, const Clock* clock);

  // Waits until a request may start; returns false after the timeout.
  bool Enter(absl::Duration timeout);
  // Called after the request has ended.
  void Leave();

  void OnSuccess();
  void OnOverload();

  // Returns the wait before attempt number `attempt` + 1; `attempt` begins at
  // 1.
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
