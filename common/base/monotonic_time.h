// Waits and deadlines on a clock that never jumps.
//
// The waits of Abseil 20220623 (Debian 12) turn a timeout into a point of wall
// time: a clock set back by an hour makes them an hour longer. What is here is
// as long as it says, whatever the wall clock does. Never infinite: a timeout
// of over a year is a year.
#ifndef RANKPROBE_COMMON_BASE_MONOTONIC_TIME_H_
#define RANKPROBE_COMMON_BASE_MONOTONIC_TIME_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rankprobe {

using MonotonicTime = std::chrono::steady_clock::time_point;

inline MonotonicTime MonotonicNow() { return std::chrono::steady_clock::now(); }
inline MonotonicTime MonotonicAfter(absl::Duration timeout) {
  return MonotonicNow() +
         absl::ToChronoNanoseconds(
             std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24 * 365)));
}
inline absl::Duration Until(MonotonicTime time) {
  return absl::FromChrono(time - MonotonicNow());
}
inline absl::Duration Since(MonotonicTime time) { return -Until(time); }

// What absl::Mutex::AwaitWithTimeout is, but for the clock, and but that those
// who make a condition true must say so. Thread-safe.
class MonotonicCondVar {
 public:
  // With or without the mutex.
  void NotifyAll() { changed_.notify_all(); }

  // True as soon as `condition` holds, false when the time is over. It is
  // looked at under the mutex.
  template <typename Predicate>
  bool WaitFor(absl::Mutex* mutex, absl::Duration timeout, Predicate condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Lockable lockable{mutex};
    return changed_.wait_until(lockable, MonotonicAfter(timeout),
                               std::move(condition));
  }

 private:
  // An absl::Mutex under the names of the standard library.
  struct Lockable {
    absl::Mutex* mutex;
    // NOLINTBEGIN(readability-identifier-naming)
    void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex->Lock(); }
    void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex->Unlock(); }
    // NOLINTEND(readability-identifier-naming)
  };

  std::condition_variable_any changed_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_MONOTONIC_TIME_H_
