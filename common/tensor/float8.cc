// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/float8.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace rankprobe {
namespace {

using Values = std::array<float, 256>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr float TimesPowerOfTwo(float value, int exponent) {
  for (; exponent > 0; --exponent) value *= 2;
  for (; exponent < 0; ++exponent) value /= 2;
  return value;
}

enum class Special {
  kAsIeee,  // the largest exponent is infinity or NaN
  kFn,      // no infinity; all bits but the sign set: NaN
  kFnuz     // no infinity, no negative zero; the sign alone: NaN
};

constexpr Values Make(int exponent_bits, int bias, Special special) {
  Values out{};
  const int mantissa_bits = 7 - exponent_bits;
  const int top = (1 << exponent_bits) - 1;
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = (bits & 0x7f) >> mantissa_bits;
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    float value = 0;
    if (special == Special::kAsIeee && exponent == top) {
      value = mantissa == 0 ? kInfinity : kNaN;
    } else if ((special == Special::kFn && (bits & 0x7f) == 0x7f) ||
               (special == Special::kFnuz && bits == 0x80)) {
      value = kNaN;
    } else if (exponent == 0) {
      value = TimesPowerOfTwo(static_cast<float>(mantissa),
                              1 - bias - mantissa_bits);
    } else {
      value =
          TimesPowerOfTwo(static_cast<float>((1 << mantissa_bits) + mantissa),
                          exponent - bias - mantissa_bits);
    }
    out[static_cast<size_t>(bits)] = (bits & 0x80) != 0 ? -value : value;
  }
  return out;
}

// Scales of MX formats: an exponent without a sign.
constexpr Values MakeScales() {
  Values out{};
  for (int bits = 0; bits < 255; ++bits)
    out[static_cast<size_t>(bits)] = TimesPowerOfTwo(1, bits - 127);
  out[255] = kNaN;
  return out;
}

constexpr Values kE5M2 = Make(5, 15, Special::kAsIeee);
constexpr Values kE4M3Fn = Make(4, 7, Special::kFn);
constexpr Values kE5M2Fnuz = Make(5, 16, Special::kFnuz);
constexpr Values kE4M3Fnuz = Make(4, 8, Special::kFnuz);
constexpr Values kE8M0Fnu = MakeScales();

}  // namespace

const Values* Float8Values(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_FLOAT8_E5M2:
      return &kE5M2;
    case v1::DTYPE_FLOAT8_E4M3FN:
      return &kE4M3Fn;
    case v1::DTYPE_FLOAT8_E5M2FNUZ:
      return &kE5M2Fnuz;
    case v1::DTYPE_FLOAT8_E4M3FNUZ:
      return &kE4M3Fnuz;
    case v1::DTYPE_FLOAT8_E8M0FNU:
      return &kE8M0Fnu;
    default:
      return nullptr;
  }
}

void AddFloat8(const Values& values, const char* data, size_t count,
               kernels::FloatStats* stats) {
  // Several counters, because equal neighbours would wait for a single one.
  constexpr size_t kCounters = 4;
  uint32_t counters[kCounters][256] = {};
  constexpr size_t kMostAtOnce = size_t{1} << 31;
  while (count > 0) {
    const size_t now = std::min(count, kMostAtOnce);
    for (size_t i = 0; i < now; ++i)
      ++counters[i % kCounters][static_cast<uint8_t>(data[i])];
    for (size_t bits = 0; bits < 256; ++bits) {
      uint64_t times = 0;
      for (auto& counter : counters) {
        times += counter[bits];
        counter[bits] = 0;
      }
      if (times == 0) continue;
      const double value = values[bits];
      stats->max = std::max(stats->max, value);
      stats->min = std::min(stats->min, value);
      stats->sum += static_cast<double>(times) * value;
      stats->sum_squares += static_cast<double>(times) * value * value;
    }
    data += now;
    count -= now;
  }
}

}  // namespace rankprobe
