// SPDX-License-Identifier: Apache-2.0
#include "common/io/crc32c.h"

#include <random>
#include <string>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

// RFC 3720, B.4.
TEST(Crc32cTest, KnownVectors) {
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(Crc32cTest, HardwareEqualsPortableAtAllSizesAndOffsets) {
  std::mt19937 random(7);
  std::string data(20000, '\0');
  for (char& c : data) c = static_cast<char>(random());
  for (size_t size : {0u, 1u, 7u, 8u, 9u, 3071u, 3072u, 3073u, 6145u, 19990u}) {
    for (size_t offset = 0; offset < 9; ++offset) {
      const absl::string_view piece =
          absl::string_view(data).substr(offset, size);
      EXPECT_EQ(Crc32c(piece), Crc32cPortable(piece))
          << size << " at " << offset;
    }
  }
}

TEST(Crc32cTest, Continues) {
  const std::string data(10000, 'x');
  EXPECT_EQ(Crc32c(data), Crc32c(absl::string_view(data).substr(4000),
                                 Crc32c(data.substr(0, 4000))));
}

TEST(Crc32cTest, TwoPiecesGiveThatOfTheWhole) {
  std::string data(70000, '\0');
  std::mt19937 random(3);
  for (char& c : data) c = static_cast<char>(random());
  for (const size_t cut : {0u, 1u, 2u, 255u, 256u, 4096u, 69999u, 70000u}) {
    const absl::string_view a = absl::string_view(data).substr(0, cut);
    const absl::string_view b = absl::string_view(data).substr(cut);
    EXPECT_EQ(Crc32cCombine(Crc32c(a), Crc32c(b), b.size()), Crc32c(data))
        << cut;
  }
}

}  // namespace
}  // namespace rankprobe
