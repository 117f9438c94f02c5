// SPDX-License-Identifier: Apache-2.0
// Tensors of noise and their statistics, for tests of rules.
#ifndef RANKPROBE_ANALYSIS_TESTING_RANK_CELLS_H_
#define RANKPROBE_ANALYSIS_TESTING_RANK_CELLS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis::testing {

// Returns numbers between -1 and 1 that the seed determines.
template <typename T>
std::vector<T> Noise(uint64_t seed, size_t size) {
  // Constants of Knuth's generator. The first numbers are skipped because they
  // are similar for similar seeds.
  uint64_t state = 1 + seed;
  std::vector<T> out;
  out.reserve(size);
  for (size_t i = 0; i < size + 4; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    if (i >= 4) out.push_back(static_cast<T>(state >> 40) / (1 << 23) - 1);
  }
  return out;
}

template <typename T>
RankCell CellOf(const std::vector<T>& values) {
  RankCell cell{true, 0, 0, values[0], values[0]};
  for (const double x : values) {
    cell.norm += x * x;
    cell.mean += x / static_cast<double>(values.size());
    cell.largest = std::max(cell.largest, x);
    cell.smallest = std::min(cell.smallest, x);
  }
  cell.norm = std::sqrt(cell.norm);
  return cell;
}

}  // namespace rankprobe::analysis::testing

#endif  // RANKPROBE_ANALYSIS_TESTING_RANK_CELLS_H_
