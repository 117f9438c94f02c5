// SPDX-License-Identifier: Apache-2.0
// Waits and deadlines on a clock that never jumps.
//
// The waits of Abseil 20220623 (Debian 12) convert a timeout to a wall time: if
// the clock is set back by an hour, they take an hour longer. So do those of
// the standard library where glibc is older than 2.30, which the wheel runs on:
// it has no pthread_cond_clockwait. The waits here last as long as requested,
// whatever the wall clock does. They are never infinite: a timeout of over a
// year becomes a year. A test may run all of them in virtual time
// (time_source.h).
#ifndef RANKPROBE_COMMON_BASE_MONOTONIC_TIME_H_
#define RANKPROBE_COMMON_BASE_MONOTONIC_TIME_H_

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/time_source.h"

namespace rankprobe {

inline MonotonicTime MonotonicNow() {
  TimeSource* const source = TimeSource::Current();
  return source == nullptr ? std::chrono::steady_clock::now() : source->Now();
}
inline MonotonicTime MonotonicAfter(absl::Duration timeout) {
  return MonotonicNow() +
         absl::ToChronoNanoseconds(
             std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24 * 365)));
}
inline absl::Duration Until(MonotonicTime time) {
  return absl::FromChrono(time - MonotonicNow());
}
inline absl::Duration Since(MonotonicTime time) { return -Until(time); }

// std::condition_variable, with the clock as an attribute. Thread-safe; no
// thread may wait when it is destroyed.
class MonotonicCondition {
 public:
  MonotonicCondition() {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed_, &attributes);
    pthread_condattr_destroy(&attributes);
  }
  ~MonotonicCondition() { pthread_cond_destroy(&changed_); }
  MonotonicCondition(const MonotonicCondition&) = delete;
  MonotonicCondition& operator=(const MonotonicCondition&) = delete;

  void NotifyAll() {
    if (TimeSource* const source = TimeSource::Current(); source != nullptr)
      return source->NotifyAll(this);
    pthread_cond_broadcast(&changed_);
  }

  // Returns after a notification, at `time`, or spuriously. `lock` must be
  // held.
  void WaitUntil(std::unique_lock<std::mutex>* lock, MonotonicTime time) {
    if (TimeSource* const source = TimeSource::Current(); source != nullptr)
      return source->WaitUntil(this, lock, time);
    // libstdc++'s steady_clock has the same epoch as CLOCK_MONOTONIC.
    const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                           time.time_since_epoch())
                           .count();
    constexpr int64_t kSecond = 1'000'000'000;
    const timespec until = {static_cast<time_t>(ns / kSecond),
                            static_cast<long>(ns % kSecond)};  // NOLINT
    pthread_cond_timedwait(&changed_, lock->mutex()->native_handle(), &until);
  }

 private:
  pthread_cond_t changed_;
};

// Like absl::Mutex::AwaitWithTimeout, but on the monotonic clock, and a thread
// that makes a condition true must call NotifyAll. Thread-safe.
class MonotonicCondVar {
 public:
  // May be called with or without the mutex.
  void NotifyAll() {
    const std::lock_guard<std::mutex> lock(told_);
    changed_.NotifyAll();
  }

  // Returns true as soon as `condition` holds, false after `timeout`. The
  // condition is evaluated with the mutex held.
  template <typename Predicate>
  bool WaitFor(absl::Mutex* mutex, absl::Duration timeout, Predicate condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const MonotonicTime end = MonotonicAfter(timeout);
    while (!condition()) {
      if (MonotonicNow() >= end) return false;
      {
        // Locked before the mutex is released, so that no notification between
        // the two is lost.
        std::unique_lock<std::mutex> lock(told_);
        mutex->Unlock();
        changed_.WaitUntil(&lock, end);
      }
      mutex->Lock();
    }
    return true;
  }

  // Returns when `condition` holds.
  template <typename Predicate>
  void Wait(absl::Mutex* mutex, Predicate condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    while (!WaitFor(mutex, absl::InfiniteDuration(), condition)) {
    }
  }

 private:
  std::mutex told_;
  MonotonicCondition changed_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_MONOTONIC_TIME_H_
