// SPDX-License-Identifier: Apache-2.0
// Properties of 8-bit floats. Equality with PyTorch is tested by test_low_precision.py.
#include "common/tensor/float8.h"

#include <cmath>
#include <limits>
#include <vector>

#include "common/tensor/summary.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

Statistics Of(v1::DType dtype, const std::vector<uint8_t>& bytes) {
  const int64_t size = static_cast<int64_t>(bytes.size()), stride = 1;
  SummaryRequest request;
  return Summarize({bytes.data(), dtype, {&size, 1}, {&stride, 1}}, request)
      .statistics;
}

TEST(Float8Test, LargestSmallestAndSpecialValues) {
  const auto at = [](v1::DType dtype, int bits) {
    return (*Float8Values(dtype))[static_cast<size_t>(bits)];
  };
  EXPECT_EQ(at(v1::DTYPE_FLOAT8_E4M3FN, 0x7e), 448);
  EXPECT_EQ(at(v1::DTYPE_FLOAT8_E4M3FN, 0x81), -0x1p-9f);
  EXPECT_EQ(at(v1::DTYPE_FLOAT8_E5M2, 0x7b), 57344);
  EXPECT_EQ(at(v1::DTYPE_FLOAT8_E5M2, 0xfc),
            -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(at(v1::DTYPE_FLOAT8_E5M2, 0x7d)));
  EXPECT_EQ(at(v1::DTYPE_FLOAT8_E4M3FNUZ, 0x7f), 240);
  EXPECT_TRUE(std::isnan(at(v1::DTYPE_FLOAT8_E5M2FNUZ, 0x80)));
  EXPECT_EQ(at(v1::DTYPE_FLOAT8_E8M0FNU, 0), 0x1p-127f);
  EXPECT_EQ(at(v1::DTYPE_FLOAT8_E8M0FNU, 254), 0x1p127f);
  EXPECT_EQ(Float8Values(v1::DTYPE_FLOAT16), nullptr);
}

TEST(Float8Test, StatisticsAreThoseOfTheValues) {
  // 1, -2, 0.5, -0.
  Statistics s = Of(v1::DTYPE_FLOAT8_E4M3FN, {0x38, 0xc0, 0x30, 0x80});
  EXPECT_EQ(s.max.f, 1);
  EXPECT_EQ(s.min.f, -2);
  EXPECT_EQ(s.mean.f, -0.125);
  EXPECT_EQ(s.norm.f, static_cast<double>(std::sqrt(5.25f)));
  s = Of(v1::DTYPE_FLOAT8_E4M3FN, {0x80, 0x80});
  EXPECT_TRUE(std::signbit(s.max.f) && s.max.f == 0);
  s = Of(v1::DTYPE_FLOAT8_E4M3FN, {0x80, 0x00});
  EXPECT_FALSE(std::signbit(s.max.f));
  s = Of(v1::DTYPE_FLOAT8_E4M3FN, {0x38, 0x7f});
  EXPECT_TRUE(std::isnan(s.max.f) && std::isnan(s.mean.f));
  s = Of(v1::DTYPE_FLOAT8_E5M2, {0x7c, 0x3c});
  EXPECT_EQ(s.max.f, std::numeric_limits<double>::infinity());
  EXPECT_EQ(s.min.f, 1);
}

TEST(Float8Test, ManyElementsAreCountedExactly) {
  // Sum of a million times 1 / 512, which float32 could not add one by one.
  std::vector<uint8_t> bytes(1000001, 0x01);
  bytes.back() = 0x7e;
  kernels::FloatStats stats;
  AddFloat8(*Float8Values(v1::DTYPE_FLOAT8_E4M3FN),
            reinterpret_cast<const char*>(bytes.data()), bytes.size(), &stats);
  EXPECT_EQ(stats.sum, 1000000.0 / 512 + 448);
  EXPECT_EQ(stats.sum_squares, 1000000.0 / 262144 + 448.0 * 448);
}

}  // namespace
}  // namespace rankprobe
