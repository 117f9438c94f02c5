// SPDX-License-Identifier: Apache-2.0
// Numbers of steps and ranks as people and flags write them. Pure.
#ifndef RANKPROBE_COMMON_TEXT_RANGES_TEXT_H_
#define RANKPROBE_COMMON_TEXT_RANGES_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace rankprobe {

// Formats ascending numbers as "0,4-6".
std::string RangesText(const std::vector<int64_t>& numbers);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TEXT_RANGES_TEXT_H_
