// SPDX-License-Identifier: Apache-2.0
#include "common/tensor/kernels/crc32.h"

#include <libdeflate.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace rankprobe::kernels {
namespace {

TEST(Crc32Test, KnownValue) { EXPECT_EQ(Crc32(0, "123456789", 9), 0xcbf43926); }

TEST(Crc32Test, EqualsTheLibraryAtEveryLengthAndOffset) {
  std::mt19937 random(1);
  std::string data(20000, '\0');
  for (char& c : data) c = static_cast<char>(random());
  for (size_t length = 0; length < 1200; ++length) {
    const size_t offset = length % 67;
    const uint32_t crc = static_cast<uint32_t>(random());
    ASSERT_EQ(Crc32(crc, data.data() + offset, length),
              libdeflate_crc32(crc, data.data() + offset, length))
        << length;
  }
  for (int i = 0; i < 200; ++i) {
    const size_t length = random() % data.size();
    ASSERT_EQ(Crc32(0, data.data(), length),
              libdeflate_crc32(0, data.data(), length))
        << length;
  }
}

TEST(Crc32Test, PiecesEqualTheWhole) {
  const std::string data(5000, 'x');
  uint32_t crc = 0;
  for (size_t at = 0; at < data.size(); at += 1250)
    crc = Crc32(crc, data.data() + at, 1250);
  EXPECT_EQ(crc, Crc32(0, data.data(), data.size()));
}

// One value at a time.
FloatStats Reference(const float* data, size_t count) {
  FloatStats stats;
  for (size_t i = 0; i < count; ++i) {
    const double v = data[i];
    if (v > stats.max) stats.max = v;
    if (v < stats.min) stats.min = v;
    stats.sum += v;
    stats.sum_squares += v * v;
  }
  return stats;
}

using F32Crc32Fn = uint32_t (*)(uint32_t, const void*, size_t, FloatStats*);

class F32Crc32Test : public testing::TestWithParam<F32Crc32Fn> {};

TEST_P(F32Crc32Test, EqualsBothPassesAtEveryLengthAndOffset) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0.5f, 3.0f);
  std::string data(4 * 9000 + 64, '\0');
  for (size_t count = 0; count < 700; ++count) {
    const size_t n = count < 600 ? count : random() % 9000;
    char* const at = data.data() + count % 61;
    std::vector<float> values(n);
    for (float& v : values) v = normal(random);
    if (n > 0) std::memcpy(at, values.data(), 4 * n);
    const uint32_t before = static_cast<uint32_t>(random());
    FloatStats stats;
    ASSERT_EQ(GetParam()(before, at, n, &stats),
              libdeflate_crc32(before, at, 4 * n))
        << n;
    const FloatStats wanted = Reference(values.data(), n);
    ASSERT_EQ(stats.max, wanted.max) << n;
    ASSERT_EQ(stats.min, wanted.min) << n;
    ASSERT_NEAR(stats.sum, wanted.sum, 1e-6 * (1 + std::abs(wanted.sum))) << n;
    ASSERT_NEAR(stats.sum_squares, wanted.sum_squares,
                1e-6 * (1 + wanted.sum_squares))
        << n;
  }
}

TEST_P(F32Crc32Test, SeesSpecialValuesEverywhereAndAddsToWhatIsThere) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (size_t at = 0; at < 211; ++at) {
    std::vector<float> values(211, 1.0f);
    FloatStats stats = Reference(values.data(), 1);
    values[at] = std::numeric_limits<float>::quiet_NaN();
    GetParam()(0, values.data(), values.size(), &stats);
    ASSERT_TRUE(std::isnan(stats.sum_squares)) << at;
    ASSERT_EQ(stats.max, 1) << at;
    ASSERT_EQ(stats.min, 1) << at;
    for (const float special : {kInf, -kInf, -2.0f, 3.0f}) {
      values[at] = special;
      FloatStats found = Reference(values.data(), 0);
      GetParam()(0, values.data(), values.size(), &found);
      const FloatStats wanted = Reference(values.data(), values.size());
      ASSERT_EQ(found.max, wanted.max) << at;
      ASSERT_EQ(found.min, wanted.min) << at;
      ASSERT_EQ(found.sum, wanted.sum) << at;
      ASSERT_EQ(found.sum_squares, wanted.sum_squares) << at;
    }
  }
}

// On a CPU without the wide instructions both are the narrow one.
INSTANTIATE_TEST_SUITE_P(Kernels, F32Crc32Test,
                         testing::Values(&F32Crc32,
                                         HasWideCrc32() ? &WideF32Crc32
                                                        : &F32Crc32,
                                         &NarrowF32Crc32));

}  // namespace
}  // namespace rankprobe::kernels
