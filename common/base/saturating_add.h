// SPDX-License-Identifier: Apache-2.0
// Saturating sums of numbers from outside: a sum that wraps around would be far
// too small.
#ifndef RANKPROBE_COMMON_BASE_SATURATING_ADD_H_
#define RANKPROBE_COMMON_BASE_SATURATING_ADD_H_

#include <cstdint>

namespace rankprobe {

constexpr uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  return b > UINT64_MAX - a ? UINT64_MAX : a + b;
}

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_SATURATING_ADD_H_
