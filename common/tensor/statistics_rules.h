// SPDX-License-Identifier: Apache-2.0
// Statistics that a dtype has, and their types (docs/formats.md, "Statistics").
// Shared by code that reduces tensors here and code that accepts numbers
// reduced elsewhere. Pure functions.
#ifndef RANKPROBE_COMMON_TENSOR_STATISTICS_RULES_H_
#define RANKPROBE_COMMON_TENSOR_STATISTICS_RULES_H_

#include "common/tensor/statistics.h"

namespace rankprobe {

// Rounds a result that was computed in a wider type to the tensor's own type.
double RoundTo(v1::DType dtype, double v);

// The norm of elements with this sum of squares. PyTorch sums squares of types
// narrower than double as floats: beyond the range of a float the norm is
// infinite there, and so it is here.
double NormOfSquares(v1::DType dtype, double sum_squares);

// Mean and norm in the type that the precision requires; double has none at low
// precision.
Statistics FloatStatistics(v1::DType dtype, Precision precision, double max,
                           double min, double mean, double norm);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_TENSOR_STATISTICS_RULES_H_
