// SPDX-License-Identifier: Apache-2.0
// Replaceable source of monotonic time, timed waits and service threads.
//
// monotonic_time.h, monotonic_event.h and service_thread.h use it in every
// call. Outside of tests none is set; a simulation that runs threads as fibers
// of one thread, in virtual time, sets itself as the source (tests/sim).
// Ownership: the test's. It is set while no thread waits and no service thread
// runs, and outlives everything that was made while it was set.
#ifndef RANKPROBE_COMMON_BASE_TIME_SOURCE_H_
#define RANKPROBE_COMMON_BASE_TIME_SOURCE_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>

namespace rankprobe {

using MonotonicTime = std::chrono::steady_clock::time_point;

class TimeSource {
 public:
  class Thread {
   public:
    virtual ~Thread() = default;
    // Returns when the thread's body has returned.
    virtual void Join() = 0;
  };

  virtual ~TimeSource() = default;

  virtual MonotonicTime Now() = 0;
  // Waits like a condition variable: `lock` is held, but released during the
  // wait. Returns at `until`, when `condition` is notified, or spuriously.
  virtual void WaitUntil(const void* condition,
                         std::unique_lock<std::mutex>* lock,
                         MonotonicTime until) = 0;
  virtual void NotifyAll(const void* condition) = 0;
  virtual std::unique_ptr<Thread> Start(std::function<void()> body) = 0;

  // Null: the operating system is the source.
  static TimeSource* Current() {
    return current_.load(std::memory_order_relaxed);
  }
  static void SetForTest(TimeSource* source) { current_ = source; }

 private:
  inline static std::atomic<TimeSource*> current_{nullptr};
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_TIME_SOURCE_H_
