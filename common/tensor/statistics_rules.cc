// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/statistics_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/tensor/dtype.h"
#include "common/tensor/summary.h"

namespace rankprobe {
namespace {

// Rounds to the nearest value with `digits` significant bits, ties to even.
// Values above `max_finite` become infinite; below the normal range results are
// multiples of `quantum`.
double RoundToFormat(double v, int digits, double max_finite, double quantum) {
  if (!std::isfinite(v) || v == 0) return v;
  int exponent;
  std::frexp(v, &exponent);
  const double step = std::max(std::ldexp(1.0, exponent - digits), quantum);
  const double rounded = std::nearbyint(v / step) * step;
  return std::abs(rounded) > max_finite
             ? std::copysign(std::numeric_limits<double>::infinity(), v)
             : rounded;
}

}  // namespace

double RoundTo(v1::DType dtype, double v) {
  switch (dtype) {
    case v1::DTYPE_FLOAT32:
    case v1::DTYPE_FLOAT8_E5M2:
    case v1::DTYPE_FLOAT8_E4M3FN:
    case v1::DTYPE_FLOAT8_E5M2FNUZ:
    case v1::DTYPE_FLOAT8_E4M3FNUZ:
    case v1::DTYPE_FLOAT8_E8M0FNU:
      // PyTorch does not calculate in 8 bits.
      return static_cast<float>(v);
    case v1::DTYPE_FLOAT16:
      return RoundToFormat(static_cast<float>(v), 11, 65504.0, 0x1p-24);
    case v1::DTYPE_BFLOAT16:
      return RoundToFormat(static_cast<float>(v), 8, 0x1.fep127, 0x1p-133);
    default:
      return v;
  }
}

double NormOfSquares(v1::DType dtype, double sum_squares) {
  return std::sqrt(dtype == v1::DTYPE_FLOAT64
                       ? sum_squares
                       : static_cast<float>(sum_squares));
}

Statistics FloatStatistics(v1::DType dtype, Precision precision, double max,
                           double min, double mean, double norm) {
  Statistics s;
  s.max = StatValue::Float(max);
  s.min = StatValue::Float(min);
  const bool high = precision == Precision::kHigh;
  if (dtype == v1::DTYPE_FLOAT64 && !high) return s;
  const v1::DType result =
      high && dtype != v1::DTYPE_FLOAT64 ? v1::DTYPE_FLOAT32 : dtype;
  s.mean = StatValue::Float(RoundTo(result, mean));
  s.norm = StatValue::Float(RoundTo(result, norm));
  return s;
}

Statistics StatisticsOfReduced(v1::DType dtype, bool zero_dimensional,
                               Precision precision,
                               const ReducedNumbers& numbers) {
  const Family family = FamilyOf(dtype);
  Statistics s;
  switch (family) {
    case Family::kFloat: {
      std::array<double, 4> v;
      std::memcpy(v.data(), numbers.words.data(), sizeof(v));
      // Adding 0.0 makes a negative zero positive.
      s = FloatStatistics(dtype, precision, v[0] + 0.0, v[1] + 0.0, v[2], v[3]);
      break;
    }
    case Family::kInt:
      s.max = StatValue::Int(static_cast<int64_t>(numbers.words[0]));
      s.min = StatValue::Int(static_cast<int64_t>(numbers.words[1]));
      break;
    case Family::kBool:
      s.max = StatValue::Bool(numbers.words[0] != 0);
      s.min = StatValue::Bool(numbers.words[1] != 0);
      return s;
    default:
      return s;
  }
  if (zero_dimensional) s.min = s.mean = s.norm = s.max;
  return s;
}

void StatisticsToProto(const Statistics& statistics, v1::TensorStats* out) {
  using Kind = StatValue::Kind;
  const StatValue& max = statistics.max;
  if (max.kind == Kind::kFloat) out->set_max_f(max.f);
  if (max.kind == Kind::kInt) out->set_max_i(max.i);
  if (max.kind == Kind::kBool) out->set_max_b(max.b);
  const StatValue& min = statistics.min;
  if (min.kind == Kind::kFloat) out->set_min_f(min.f);
  if (min.kind == Kind::kInt) out->set_min_i(min.i);
  if (min.kind == Kind::kBool) out->set_min_b(min.b);
  const StatValue& mean = statistics.mean;
  if (mean.kind == Kind::kFloat) out->set_mean_f(mean.f);
  if (mean.kind == Kind::kInt) out->set_mean_i(mean.i);
  const StatValue& norm = statistics.norm;
  if (norm.kind == Kind::kFloat) out->set_norm_f(norm.f);
  if (norm.kind == Kind::kInt) out->set_norm_i(norm.i);
}

void ExtrasToProto(const std::vector<ExtraValue>& extra,
                   v1::TensorSummary* out) {
  using Kind = StatValue::Kind;
  for (const ExtraValue& one : extra) {
    v1::ExtraStatistic* const item = out->add_extra();
    item->set_id(one.id);
    if (one.value.kind == Kind::kFloat) item->set_f(one.value.f);
    if (one.value.kind == Kind::kInt) item->set_i(one.value.i);
  }
}

}  // namespace rankprobe
