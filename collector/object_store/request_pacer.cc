// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/request_pacer.h"

#include <algorithm>
#include <utility>

namespace rankprobe {

RequestPacer::RequestPacer(Options options, const Clock* clock)
    : options_(std::move(options)),
      clock_(clock),
      limit_(options_.most_at_once) {}

bool RequestPacer::Enter(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto has_room = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return inside_ < static_cast<int>(limit_);
  };
  if (!left_.WaitFor(&mutex_, timeout, has_room)) return false;
  ++inside_;
  return true;
}

void RequestPacer::Leave() {
  {
    absl::MutexLock lock(&mutex_);
    --inside_;
  }
  left_.NotifyAll();
}

void RequestPacer::OnSuccess() {
  {
    absl::MutexLock lock(&mutex_);
    // Adds one concurrent request for each round of answers.
    limit_ = std::min<double>(options_.most_at_once, limit_ + 1 / limit_);
  }
  left_.NotifyAll();
}

void RequestPacer::OnOverload() {
  absl::MutexLock lock(&mutex_);
  const int64_t now = clock_->MonotonicNanos();
  if (overloaded_ &&
      now - overload_ns_ < absl::ToInt64Nanoseconds(options_.overload_window))
    return;
  overloaded_ = true;
  overload_ns_ = now;
  limit_ = std::max(1.0, limit_ / 2);
}

absl::Duration RequestPacer::WaitAfter(int attempt) {
  absl::Duration longest = options_.first_wait;
  for (int i = 1; i < attempt && longest < options_.longest_wait; ++i)
    longest *= 2;
  return std::min(longest, options_.longest_wait) * options_.random();
}

int RequestPacer::at_once() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(limit_);
}

}  // namespace rankprobe
