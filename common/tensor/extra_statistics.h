// SPDX-License-Identifier: Apache-2.0
// Computation of the statistics of kExtraStatistics of one tensor, block by
// block, in the same pass as the others. Requested statistics share one
// conversion of the elements to doubles, and each runs its own kernel over
// these.
// Used on one thread; no allocation before Finish.
#ifndef RANKPROBE_COMMON_TENSOR_EXTRA_STATISTICS_H_
#define RANKPROBE_COMMON_TENSOR_EXTRA_STATISTICS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/tensor/kernels/kernels.h"
#include "common/tensor/statistics.h"

namespace rankprobe {

class ExtraAccumulator {
 public:
  // `dtype` must have statistics (statistics_rules.h).
  ExtraAccumulator(v1::DType dtype, ExtraSet wanted);
  // Adds `count` complete elements.
  void Block(const char* data, size_t count);
  // Returns the results. Each element counts `repeat` times; there must be at
  // least one.
  std::vector<ExtraValue> Finish(int64_t repeat, Precision precision) const;

 private:
  StatValue Value(v1::StatisticId id, int64_t repeat,
                  Precision precision) const;

  const v1::DType dtype_;
  const ExtraSet wanted_;
  const kernels::Table& kernels_;
  // For the real or imaginary parts of an element.
  const kernels::Number number_;
  const std::array<float, 256>* const float8_;  // null: another type
  const size_t number_bytes_;
  const bool complex_;
  const bool counts_wanted_;
  const bool std_wanted_;
  kernels::ElementCounts counts_;
  kernels::Moments real_, imaginary_;
  // Not initialized: written before it is read.
  std::array<double, 2 * kernels::kPiece> wide_;
  std::array<double, 2 * kernels::kPiece> parts_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TENSOR_EXTRA_STATISTICS_H_
