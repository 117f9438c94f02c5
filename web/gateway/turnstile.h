// SPDX-License-Identifier: Apache-2.0
// Limits the threads that use processor time at once in a process that has more
// important work. Thread-safe.
#ifndef RANKPROBE_WEB_GATEWAY_TURNSTILE_H_
#define RANKPROBE_WEB_GATEWAY_TURNSTILE_H_

#include <cstddef>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rankprobe {

class Turnstile {
 public:
  // `most` is the number of threads that may run; 0 means no limit.
  explicit Turnstile(size_t most) : free_(most), open_(most == 0) {}

  // Waits in its constructor until the thread may run; the destructor lets the
  // next one run. A thread holds at most one.
  class Turn {
   public:
    explicit Turn(Turnstile* turnstile) : turnstile_(turnstile) {
      if (turnstile_->open_) return;
      const auto is_free =
          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(turnstile_->mutex_) {
            return turnstile_->free_ > 0;
          };
      const absl::MutexLock lock(&turnstile_->mutex_,
                                 absl::Condition(&is_free));
      --turnstile_->free_;
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      if (turnstile_->open_) return;
      const absl::MutexLock lock(&turnstile_->mutex_);
      ++turnstile_->free_;
    }

   private:
    Turnstile* const turnstile_;
  };

 private:
  absl::Mutex mutex_;
  size_t free_ ABSL_GUARDED_BY(mutex_);
  const bool open_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GATEWAY_TURNSTILE_H_
