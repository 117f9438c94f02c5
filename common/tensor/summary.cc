// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/summary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "common/tensor/dtype.h"
#include "common/tensor/extra_statistics.h"
#include "common/tensor/float8.h"
#include "common/tensor/kernels/crc32.h"
#include "common/tensor/kernels/kernels.h"
#include "common/tensor/resolved_tensor.h"
#include "common/tensor/statistics_rules.h"
#include "common/tensor/strided_layout.h"

namespace rankprobe {
namespace {

using kernels::FloatStats;
using kernels::IntStats;

constexpr size_t kStreamBlockBytes = 1 << 20;
// From this size on a copy bypasses the caches: it is sent later, by another
// thread or process, and would evict data that the training needs.
constexpr uint64_t kPastCachesBytes = 64 << 10;

template <typename T>
T LoadAs(const char* p) {
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}

float BfloatBitsToFloat(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float f;
  std::memcpy(&f, &wide, 4);
  return f;
}

float HalfBitsToFloat(uint16_t bits) {
  const uint32_t magnitude = uint32_t{bits & 0x7fffu} << 13;
  float f;
  std::memcpy(&f, &magnitude, 4);
  f *= 0x1p112f;
  uint32_t out;
  std::memcpy(&out, &f, 4);
  if ((bits & 0x7c00) == 0x7c00) out |= 0x7f800000;
  out |= uint32_t{bits & 0x8000u} << 16;
  std::memcpy(&f, &out, 4);
  return f;
}

double FloatElement(v1::DType dtype, const char* p) {
  if (const auto* const values = Float8Values(dtype); values != nullptr)
    return (*values)[static_cast<uint8_t>(*p)];
  switch (dtype) {
    case v1::DTYPE_FLOAT32:
      return LoadAs<float>(p);
    case v1::DTYPE_FLOAT64:
      return LoadAs<double>(p);
    case v1::DTYPE_FLOAT16:
      return HalfBitsToFloat(LoadAs<uint16_t>(p));
    default:
      return BfloatBitsToFloat(LoadAs<uint16_t>(p));
  }
}

int64_t IntElement(v1::DType dtype, const char* p) {
  switch (dtype) {
    case v1::DTYPE_UINT8:
      return LoadAs<uint8_t>(p);
    case v1::DTYPE_INT8:
      return LoadAs<int8_t>(p);
    case v1::DTYPE_INT16:
      return LoadAs<int16_t>(p);
    case v1::DTYPE_UINT16:
      return LoadAs<uint16_t>(p);
    case v1::DTYPE_INT32:
      return LoadAs<int32_t>(p);
    case v1::DTYPE_UINT32:
      return LoadAs<uint32_t>(p);
    case v1::DTYPE_UINT64:
      // The wire has 64 signed bits: larger values are clamped to the maximum.
      return static_cast<int64_t>(std::min<uint64_t>(
          LoadAs<uint64_t>(p),
          static_cast<uint64_t>(std::numeric_limits<int64_t>::max())));
    default:
      return LoadAs<int64_t>(p);
  }
}

void AddInts(const kernels::Table& k, v1::DType dtype, size_t size,
             const char* data, size_t count, bool sums, IntStats* stats) {
  switch (dtype) {
    case v1::DTYPE_UINT8:
      k.u8(data, count, stats);
      break;
    case v1::DTYPE_INT8:
      k.i8(data, count, stats);
      break;
    case v1::DTYPE_INT16:
      k.i16(data, count, stats);
      break;
    case v1::DTYPE_UINT16:
      k.u16(data, count, stats);
      break;
    case v1::DTYPE_INT32:
      k.i32(data, count, stats);
      break;
    case v1::DTYPE_UINT32:
      k.u32(data, count, stats);
      break;
    case v1::DTYPE_INT64:
      k.i64(data, count, stats);
      break;
    default:
      for (size_t i = 0; i < count; ++i) {
        const int64_t v = IntElement(dtype, data + 8 * i);
        stats->max = std::max(stats->max, v);
        stats->min = std::min(stats->min, v);
      }
  }
  if (!sums) return;
  for (size_t i = 0; i < count; ++i) {
    const double v = static_cast<float>(IntElement(dtype, data + i * size));
    stats->sum += v;
    stats->sum_squares += v * v;
  }
}

template <typename T>
void AddComplex(const char* data, size_t count, FloatStats* stats) {
  for (size_t i = 0; i < count; ++i) {
    const T re = LoadAs<T>(data + 2 * sizeof(T) * i),
            im = LoadAs<T>(data + 2 * sizeof(T) * i + sizeof(T));
    const double v = std::hypot(re, im);
    stats->max = std::max(stats->max, v);
    stats->min = std::min(stats->min, v);
    stats->sum += v;
    stats->sum_squares += v * v;
  }
}

// Accumulates one tensor block by block.
class Accumulator {
 public:
  Accumulator(const ResolvedTensor& tensor, const SummaryRequest& request)
      : request_(request),
        dtype_(tensor.view.dtype),
        size_(tensor.element_bytes),
        family_(request.statistics ? tensor.family : Family::kNone),
        float8_(Float8Values(dtype_)),
        f32_crc32_(family_ == Family::kFloat && dtype_ == v1::DTYPE_FLOAT32 &&
                   request.checksum == ChecksumMode::kCrc32),
        out_(static_cast<char*>(request.copy_to)),
        past_caches_(PayloadBytes(tensor.view) >= kPastCachesBytes) {
    if (request.digest) kernels_.digest_init(digest_state_);
    if (!request.extra.empty() && tensor.family != Family::kNone)
      extra_.emplace(dtype_, request.extra);
  }

  void Block(const char* data, size_t bytes) {
    const size_t count = bytes / size_;
    if (f32_crc32_) {
      crc32_ = kernels::F32Crc32(crc32_, data, count, &floats_);
    } else {
      FirstPasses(data, bytes, count);
    }
    if (extra_.has_value()) extra_->Block(data, count);
    if (request_.digest) kernels_.digest_update(digest_state_, data, bytes);
    if (out_ != nullptr) {
      if (past_caches_) {
        kernels_.copy_past_caches(out_, data, bytes);
      } else {
        std::memcpy(out_, data, bytes);
      }
      out_ += bytes;
    }
  }

  // `has_positive_zero` searches the tensor for a positive zero; it is called
  // only if the sign of a zero extreme is not determined. `count` elements were
  // read, and each counts `repeat` times.
  template <typename HasPositiveZero>
  Summary Finish(int64_t count, int64_t repeat,
                 const HasPositiveZero& has_positive_zero) {
    for (double* sum :
         {&floats_.sum, &floats_.sum_squares, &ints_.sum, &ints_.sum_squares})
      *sum *= static_cast<double>(repeat);
    Summary summary;
    summary.crc32 = crc32_;
    summary.xor64 = xor64_;
    if (request_.digest)
      kernels_.digest_finish(digest_state_, summary.digest.data());
    if (count == 0) return summary;
    if (extra_.has_value())
      summary.extra = extra_->Finish(repeat, request_.precision);
    Statistics& s = summary.statistics;
    const double n = static_cast<double>(count);
    switch (family_) {
      case Family::kFloat: {
        double max = floats_.max, min = floats_.min;
        if (std::isnan(floats_.sum_squares))
          max = min = std::numeric_limits<double>::quiet_NaN();
        // 0 == -0, so the sign of a zero extreme would be arbitrary: it is
        // positive if any zero of the tensor is.
        if (max == 0 || min == 0) {
          const double zero = has_positive_zero() ? 0.0 : -0.0;
          if (max == 0) max = zero;
          if (min == 0) min = zero;
        }
        s = FloatStatistics(dtype_, request_.precision, max, min,
                            floats_.sum / n,
                            NormOfSquares(dtype_, floats_.sum_squares));
        break;
      }
      case Family::kInt:
        if (request_.precision == Precision::kHigh) {
          s.max = StatValue::Float(static_cast<float>(ints_.max));
          s.min = StatValue::Float(static_cast<float>(ints_.min));
          s.mean = StatValue::Float(static_cast<float>(ints_.sum / n));
          s.norm = StatValue::Float(
              static_cast<float>(std::sqrt(ints_.sum_squares)));
        } else {
          s.max = StatValue::Int(ints_.max);
          s.min = StatValue::Int(ints_.min);
        }
        break;
      case Family::kBool:
        s.max = StatValue::Bool(ints_.max != 0);
        s.min = StatValue::Bool(ints_.min != 0);
        break;
      case Family::kComplex: {
        const v1::DType part = dtype_ == v1::DTYPE_COMPLEX64
                                   ? v1::DTYPE_FLOAT32
                                   : v1::DTYPE_FLOAT64;
        const bool nan = std::isnan(floats_.sum_squares);
        constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
        s.max = StatValue::Float(nan ? kNan : RoundTo(part, floats_.max));
        s.min = StatValue::Float(nan ? kNan : RoundTo(part, floats_.min));
        s.mean = StatValue::Float(nan ? kNan : RoundTo(part, floats_.sum / n));
        break;
      }
      case Family::kNone:
        break;
    }
    return summary;
  }

 private:
  void FirstPasses(const char* data, size_t bytes, size_t count) {
    switch (family_) {
      case Family::kFloat:
        AddFloats(data, count);
        break;
      case Family::kInt:
        AddInts(kernels_, dtype_, size_, data, count,
                request_.precision == Precision::kHigh, &ints_);
        break;
      case Family::kBool:
        kernels_.u8(data, count, &ints_);
        break;
      case Family::kComplex:
        if (dtype_ == v1::DTYPE_COMPLEX64) {
          AddComplex<float>(data, count, &floats_);
        } else {
          AddComplex<double>(data, count, &floats_);
        }
        break;
      case Family::kNone:
        break;
    }
    if (request_.checksum == ChecksumMode::kCrc32) {
      crc32_ = kernels::Crc32(crc32_, data, bytes);
    } else if (request_.checksum == ChecksumMode::kXor64) {
      xor64_ ^= kernels_.xor64(data, bytes);
    }
  }

  void AddFloats(const char* data, size_t count) {
    if (float8_ != nullptr) return AddFloat8(*float8_, data, count, &floats_);
    switch (dtype_) {
      case v1::DTYPE_FLOAT32:
        kernels_.f32(data, count, &floats_);
        break;
      case v1::DTYPE_FLOAT64:
        kernels_.f64(data, count, &floats_);
        break;
      case v1::DTYPE_FLOAT16:
        kernels_.f16(data, count, &floats_);
        break;
      default:
        kernels_.bf16(data, count, &floats_);
    }
  }

  const kernels::Table& kernels_ = kernels::BestKernels();
  const SummaryRequest& request_;
  const v1::DType dtype_;
  const size_t size_;
  const Family family_;
  const std::array<float, 256>* const float8_;  // null: another type
  const bool f32_crc32_;
  char* out_;
  const bool past_caches_;
  FloatStats floats_;
  IntStats ints_;
  uint32_t crc32_ = 0;
  uint64_t xor64_ = 0;
  std::optional<ExtraAccumulator> extra_;
  alignas(64) char digest_state_[kernels::kDigestStateBytes];
};

// The value itself for all four statistics (docs/formats.md, "Statistics").
Statistics ScalarStatistics(const ResolvedTensor& tensor) {
  const char* p = static_cast<const char*>(tensor.view.data);
  StatValue v;
  switch (tensor.family) {
    case Family::kFloat:
      v = StatValue::Float(FloatElement(tensor.view.dtype, p));
      break;
    case Family::kInt:
      v = StatValue::Int(IntElement(tensor.view.dtype, p));
      break;
    default:
      return {};
  }
  return {v, v, v, v};
}

bool IsPositiveZero(v1::DType dtype, const char* p) {
  switch (dtype) {
    case v1::DTYPE_FLOAT32:
      return LoadAs<uint32_t>(p) == 0;
    case v1::DTYPE_FLOAT64:
      return LoadAs<uint64_t>(p) == 0;
    case v1::DTYPE_FLOAT16:
    case v1::DTYPE_BFLOAT16:
      return LoadAs<uint16_t>(p) == 0;
    default:
      return *p == 0;
  }
}

}  // namespace

int64_t NumElements(const TensorView& view) {
  int64_t n = 1;
  for (const int64_t size : view.sizes) n *= size;
  return n;
}

uint64_t PayloadBytes(const TensorView& view) {
  return static_cast<uint64_t>(NumElements(view)) * ElementSize(view.dtype);
}

bool SummaryNeedsOrder(const SummaryRequest& request) {
  return request.checksum != ChecksumMode::kNone || request.digest ||
         request.copy_to != nullptr;
}

Summary Summarize(const TensorView& view, const SummaryRequest& request) {
  const ResolvedTensor tensor(view);
  return Summarize(tensor,
                   tensor.has_memory()
                       ? LayoutOf(tensor, SummaryNeedsOrder(request))
                       : StridedLayout(),
                   request);
}

Summary Summarize(const ResolvedTensor& tensor, const StridedLayout& layout,
                  const SummaryRequest& request) {
  const bool scalar_statistics =
      request.statistics && tensor.view.sizes.empty() &&
      tensor.view.data != nullptr &&
      (tensor.family == Family::kFloat || tensor.family == Family::kInt);
  SummaryRequest rest = request;
  if (scalar_statistics) rest.statistics = false;
  Accumulator accumulator(tensor, rest);
  const size_t size = tensor.element_bytes;
  if (tensor.has_memory()) {
    // With one pass, a block need not stay in the cache for the next pass.
    const bool one_pass = !SummaryNeedsOrder(request) && request.extra.empty();
    ForEachBlock(
        layout, size,
        [&](const char* data, size_t bytes) {
          accumulator.Block(data, bytes);
          return true;
        },
        one_pass ? kStreamBlockBytes : kCacheBlockBytes);
  }
  Summary summary = accumulator.Finish(
      tensor.has_memory() ? tensor.elements : 0, layout.repeat, [&] {
        bool found = false;
        ForEachBlock(layout, size, [&](const char* data, size_t bytes) {
          for (size_t i = 0; i < bytes && !found; i += size)
            found = IsPositiveZero(tensor.view.dtype, data + i);
          return !found;
        });
        return found;
      });
  if (scalar_statistics) summary.statistics = ScalarStatistics(tensor);
  return summary;
}

}  // namespace rankprobe
