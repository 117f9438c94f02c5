// SPDX-License-Identifier: Apache-2.0
// A flag that a thread waits for with a timeout on the monotonic clock, which
// absl::Notification does not (monotonic_time.h). A wait lasts as long as
// requested, whatever the wall clock does. Thread-safe.
#ifndef RANKPROBE_COMMON_BASE_MONOTONIC_EVENT_H_
#define RANKPROBE_COMMON_BASE_MONOTONIC_EVENT_H_

#include <mutex>

#include "absl/time/time.h"
#include "common/base/monotonic_time.h"

namespace rankprobe {

class MonotonicEvent {
 public:
  // Ends all current and later waits.
  void Set() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      set_ = true;
    }
    changed_.NotifyAll();
  }

  // Returns once the event is set.
  void Wait() {
    while (!WaitFor(absl::InfiniteDuration())) {
    }
  }

  // Returns true as soon as the event is set, false after `timeout`.
  bool WaitFor(absl::Duration timeout) {
    const MonotonicTime end = MonotonicAfter(timeout);
    std::unique_lock<std::mutex> lock(mutex_);
    while (!set_ && MonotonicNow() < end) changed_.WaitUntil(&lock, end);
    return set_;
  }

 private:
  std::mutex mutex_;
  MonotonicCondition changed_;
  bool set_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_MONOTONIC_EVENT_H_
