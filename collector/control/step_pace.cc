// SPDX-License-Identifier: Apache-2.0
#include "collector/control/step_pace.h"

#include <algorithm>

namespace rankprobe {
namespace {

constexpr absl::Duration kSpan = absl::Milliseconds(100);
// Interval of the samples; ranks report their steps about as often.
constexpr absl::Duration kInterval = absl::Milliseconds(10);
constexpr size_t kLastSteps = 8;
constexpr absl::Duration kIdleAfter = absl::Seconds(2);

}  // namespace

void StepPace::Note(int64_t step, int64_t last_step_ns, absl::Time now) {
  if (last_step_ns > 0) {
    last_step_ns_ = last_step_ns;
    lasted_ns_.push_back(last_step_ns);
    if (lasted_ns_.size() > kLastSteps) lasted_ns_.pop_front();
  }
  // The rank counts from the beginning.
  if (step < step_) samples_.clear();
  step_ = step;
  if (samples_.empty() || now - samples_.back().at >= kInterval)
    samples_.push_back({now, step});
  while (samples_.size() > 1 && now - samples_[1].at >= kSpan)
    samples_.pop_front();
}

absl::Duration StepPace::IdleAfter() const {
  if (lasted_ns_.empty()) return kIdleAfter;
  return std::max(kIdleAfter, 3 * absl::Nanoseconds(*std::min_element(
                                      lasted_ns_.begin(), lasted_ns_.end())));
}

int64_t StepPace::StepNanos(absl::Time now) const {
  if (samples_.empty()) return last_step_ns_;
  const Sample* from = &samples_.front();
  for (const Sample& sample : samples_) {
    if (now - sample.at >= kSpan) from = &sample;
  }
  // Counts at least the current step.
  const int64_t steps = std::max<int64_t>(step_ - from->step, 1);
  return std::max(last_step_ns_,
                  absl::ToInt64Nanoseconds((now - from->at) / steps));
}

}  // namespace rankprobe
