// SPDX-License-Identifier: Apache-2.0
#include "common/base/little_endian.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(LittleEndian, LowestByteFirst) {
  std::string out = "x";
  AppendLittleEndian(uint32_t{0x80a1b2c3}, &out);
  EXPECT_EQ(out, std::string("x\xc3\xb2\xa1\x80"));
  EXPECT_EQ(GetLittleEndian(out.substr(1)), 0x80a1b2c3u);
}

TEST(LittleEndian, EveryWidthComesBack) {
  std::string narrow, wide;
  AppendLittleEndian(uint8_t{0xfe}, &narrow);
  AppendLittleEndian(uint16_t{0xfedc}, &narrow);
  AppendLittleEndian(UINT64_MAX - 1, &wide);
  EXPECT_EQ(GetLittleEndian(narrow), 0xfedcfeu);
  EXPECT_EQ(GetLittleEndian(wide), UINT64_MAX - 1);
  EXPECT_EQ(GetLittleEndian(wide + "more"), UINT64_MAX - 1);
  EXPECT_EQ(GetLittleEndian(""), 0u);
}

}  // namespace
}  // namespace rankprobe
