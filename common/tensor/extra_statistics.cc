// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/extra_statistics.h"

#include <algorithm>
#include <cmath>

#include "common/tensor/dtype.h"
#include "common/tensor/float8.h"
#include "common/tensor/statistics_rules.h"

namespace rankprobe {
namespace {

using kernels::Number;

Number NumberOf(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_FLOAT64:
    case v1::DTYPE_COMPLEX128:
      return Number::kF64;
    case v1::DTYPE_FLOAT16:
      return Number::kF16;
    case v1::DTYPE_BFLOAT16:
      return Number::kBf16;
    case v1::DTYPE_INT8:
      return Number::kI8;
    case v1::DTYPE_UINT8:
      return Number::kU8;
    case v1::DTYPE_INT16:
      return Number::kI16;
    case v1::DTYPE_UINT16:
      return Number::kU16;
    case v1::DTYPE_INT32:
      return Number::kI32;
    case v1::DTYPE_UINT32:
      return Number::kU32;
    case v1::DTYPE_INT64:
      return Number::kI64;
    case v1::DTYPE_UINT64:
      return Number::kU64;
    case v1::DTYPE_BOOL:
      return Number::kBool;
    default:
      return Number::kF32;  // and complex64
  }
}

// The type of Mean, or double if there is none.
v1::DType ResultType(v1::DType dtype, Precision precision) {
  switch (dtype) {
    case v1::DTYPE_FLOAT16:
    case v1::DTYPE_BFLOAT16:
      return precision == Precision::kHigh ? v1::DTYPE_FLOAT32 : dtype;
    case v1::DTYPE_FLOAT32:
    case v1::DTYPE_COMPLEX64:
      return v1::DTYPE_FLOAT32;
    default:
      return Float8Values(dtype) != nullptr ? v1::DTYPE_FLOAT32
                                            : v1::DTYPE_FLOAT64;
  }
}

bool IsComplex(v1::DType dtype) {
  return dtype == v1::DTYPE_COMPLEX64 || dtype == v1::DTYPE_COMPLEX128;
}

}  // namespace

ExtraAccumulator::ExtraAccumulator(v1::DType dtype, ExtraSet wanted)
    : dtype_(dtype),
      wanted_(wanted),
      kernels_(kernels::BestKernels()),
      number_(NumberOf(dtype)),
      float8_(Float8Values(dtype)),
      number_bytes_(ElementSize(dtype) / (IsComplex(dtype) ? 2 : 1)),
      complex_(IsComplex(dtype)),
      counts_wanted_(wanted.Has(v1::STATISTIC_ID_NAN_COUNT)),
      std_wanted_(wanted.Has(v1::STATISTIC_ID_STD)) {}

void ExtraAccumulator::Block(const char* data, size_t count) {
  const size_t parts = complex_ ? 2 : 1;
  while (count > 0) {
    const size_t now = std::min(count, kernels::kPiece);
    if (float8_ != nullptr) {
      std::transform(data, data + now, wide_.data(), [this](char bits) {
        return (*float8_)[static_cast<uint8_t>(bits)];
      });
    } else {
      kernels_.widen(number_, data, now * parts, wide_.data());
    }
    kernels::Piece piece{wide_.data(), nullptr, now};
    if (complex_) {
      double* const re = parts_.data();
      double* const im = re + kernels::kPiece;
      for (size_t i = 0; i < now; ++i) {
        re[i] = wide_[2 * i];
        im[i] = wide_[2 * i + 1];
      }
      piece = {re, im, now};
    }
    if (counts_wanted_) kernels_.counts(piece, &counts_);
    if (std_wanted_) {
      kernels_.moments(piece.re, now, &real_);
      if (complex_) kernels_.moments(piece.im, now, &imaginary_);
    }
    data += now * parts * number_bytes_;
    count -= now;
  }
}

StatValue ExtraAccumulator::Value(v1::StatisticId id, int64_t repeat,
                                  Precision precision) const {
  const auto all = [repeat](uint64_t count) {
    return StatValue::Int(static_cast<int64_t>(count) * repeat);
  };
  switch (id) {
    case v1::STATISTIC_ID_NAN_COUNT:
      return all(counts_.nan);
    case v1::STATISTIC_ID_INF_COUNT:
      return all(counts_.inf);
    case v1::STATISTIC_ID_ZERO_COUNT:
      return all(counts_.zero);
    case v1::STATISTIC_ID_STD: {
      // For complex numbers: the distance in the plane. The repeat count of
      // elements does not change the result.
      const double std =
          std::sqrt((real_.distances + imaginary_.distances) / real_.count);
      return StatValue::Float(RoundTo(ResultType(dtype_, precision), std));
    }
    default:
      return {};
  }
}

std::vector<ExtraValue> ExtraAccumulator::Finish(int64_t repeat,
                                                 Precision precision) const {
  std::vector<ExtraValue> out;
  for (const v1::StatisticId id : wanted_.Ids())
    out.push_back({id, Value(id, repeat, precision)});
  return out;
}

}  // namespace rankprobe
