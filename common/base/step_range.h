// SPDX-License-Identifier: Apache-2.0
// Bounds of the step numbers that come over the wire: the sum of any two stays
// far from overflow and JSON carries each exactly.
#ifndef RANKPROBE_COMMON_BASE_STEP_RANGE_H_
#define RANKPROBE_COMMON_BASE_STEP_RANGE_H_

#include <algorithm>
#include <cstdint>

namespace rankprobe {

inline constexpr int64_t kMaxStep = int64_t{1} << 53;

// For requested steps and numbers of steps.
inline bool IsStep(int64_t step) { return step >= 0 && step <= kMaxStep; }

// For the step that a rank reports; -1 = before the first.
inline int64_t ReportedStep(int64_t step) {
  return std::clamp<int64_t>(step, -1, kMaxStep);
}

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_STEP_RANGE_H_
