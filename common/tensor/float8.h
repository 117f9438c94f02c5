// SPDX-License-Identifier: Apache-2.0
// Values of the 8-bit floating-point formats of PyTorch, as a cast to float32
// gives them. Pure functions of constants.
#ifndef RANKPROBE_COMMON_TENSOR_FLOAT8_H_
#define RANKPROBE_COMMON_TENSOR_FLOAT8_H_

#include <array>
#include <cstddef>

#include "common/tensor/kernels/kernels.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// The value of each bit pattern; null for other types.
const std::array<float, 256>* Float8Values(v1::DType dtype);

// Adds `count` elements to `stats`. Counts each bit pattern and multiplies its
// value, so that the sums are as exact as doubles can be.
void AddFloat8(const std::array<float, 256>& values, const char* data,
               size_t count, kernels::FloatStats* stats);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TENSOR_FLOAT8_H_
