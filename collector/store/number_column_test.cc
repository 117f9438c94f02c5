// SPDX-License-Identifier: Apache-2.0
#include "collector/store/number_column.h"

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/random/random.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

void ExpectSame(const std::vector<uint64_t>& numbers, size_t width,
                bool packed) {
  std::string bytes = "x";
  ASSERT_EQ(AppendNumbers(numbers, width, &bytes), packed);
  if (packed) EXPECT_LT(bytes.size() - 1, numbers.size() * width);
  bytes += "behind";
  absl::string_view left = absl::string_view(bytes).substr(1);
  const auto column = NumberColumn::Take(numbers.size(), width, packed, &left);
  ASSERT_TRUE(column.has_value());
  EXPECT_EQ(left, "behind");
  EXPECT_TRUE(column->IsSound());
  for (size_t i = 0; i < numbers.size(); ++i)
    EXPECT_EQ(column->At(i), numbers[i]) << i;
}

TEST(NumberColumnTest, WhatIsReadBackIsWhatWasPutIn) {
  absl::BitGen random;
  for (const size_t width : {4, 8}) {
    for (const size_t high_bytes : {1, 2, 3, 4, 5, 8, 9, 16, 17, 64}) {
      std::vector<uint64_t> numbers;
      for (size_t i = 0; i < 64; ++i) {
        const uint64_t low =
            absl::Uniform<uint64_t>(random) >> (64 - 8 * (width - 1));
        const uint64_t high = (i % high_bytes) * 3 + 50;
        numbers.push_back(high << (8 * (width - 1)) | low);
      }
      ExpectSame(numbers, width, /*packed=*/high_bytes <= 16);
    }
    // One or two numbers are not shorter when packed.
    ExpectSame({7}, width, /*packed=*/false);
    ExpectSame({7, 8}, width, /*packed=*/false);
    ExpectSame({7, 8, 9}, width, /*packed=*/true);
    ExpectSame({}, width, /*packed=*/false);
  }
}

TEST(NumberColumnTest, DamageIsNotReadAcross) {
  std::vector<uint64_t> numbers;
  for (uint64_t i = 0; i < 64; ++i)
    numbers.push_back(std::bit_cast<uint32_t>(std::bit_cast<float>(
        static_cast<uint32_t>(0x3c000000 + (i % 9 << 24) + i))));
  std::string bytes;
  ASSERT_TRUE(AppendNumbers(numbers, 4, &bytes));
  for (size_t size = 0; size < bytes.size(); ++size) {
    absl::string_view part = absl::string_view(bytes).substr(0, size);
    EXPECT_FALSE(NumberColumn::Take(64, 4, true, &part).has_value()) << size;
  }
  std::string none = bytes, many = bytes, index = bytes;
  none[0] = 0;
  many[0] = 17;
  for (const std::string& damaged : {none, many}) {
    absl::string_view left = damaged;
    EXPECT_FALSE(NumberColumn::Take(64, 4, true, &left).has_value());
  }
  index[1 + 9] = '\xff';  // the sixteenth of nine high bytes
  absl::string_view left = index;
  const auto column = NumberColumn::Take(64, 4, true, &left);
  ASSERT_TRUE(column.has_value());
  EXPECT_FALSE(column->IsSound());
}

}  // namespace
}  // namespace rankprobe
