// SPDX-License-Identifier: Apache-2.0
// Durations counted in buckets, for the metrics endpoint. Any thread may add
// and read; a reading is not one snapshot.
#ifndef RANKPROBE_COMMON_BASE_DURATION_HISTOGRAM_H_
#define RANKPROBE_COMMON_BASE_DURATION_HISTOGRAM_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace rankprobe {

// Counts of durations in the buckets of a Prometheus histogram.
class DurationHistogram {
 public:
  // Upper bounds in seconds.
  static constexpr std::array<double, 12> kBounds = {
      0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 60};

  void Add(absl::Duration duration) {
    const double seconds = absl::ToDoubleSeconds(duration);
    size_t bucket = 0;
    while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
    ++buckets_[bucket];
    nanos_ += absl::ToInt64Nanoseconds(duration);
  }
  // Count of one bucket, not cumulative; the last bucket has no upper bound.
  uint64_t bucket(size_t i) const { return buckets_[i]; }
  double sum_seconds() const {
    return static_cast<double>(nanos_.load()) * 1e-9;
  }

 private:
  std::array<std::atomic<uint64_t>, kBounds.size() + 1> buckets_{};
  std::atomic<int64_t> nanos_{0};
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_DURATION_HISTOGRAM_H_
