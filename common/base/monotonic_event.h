// A flag that a thread waits for with a timeout on the monotonic clock.
//
// The waits of Abseil 20220623 (Debian 12) and of absl::Notification turn a
// timeout into a point of wall time: a clock set back by an hour makes them an
// hour longer. A wait here is as long as it says, whatever the wall clock does.
// Thread-safe.
#ifndef RANKPROBE_COMMON_BASE_MONOTONIC_EVENT_H_
#define RANKPROBE_COMMON_BASE_MONOTONIC_EVENT_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace rankprobe {

class MonotonicEvent {
 public:
  // Ends all waits, those to come too.
  void Set() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      set_ = true;
    }
    changed_.notify_all();
  }

  // True as soon as it is set, false when the time is over.
  bool WaitFor(absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_until(
        lock,
        std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout),
        [this] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_MONOTONIC_EVENT_H_
