// SPDX-License-Identifier: Apache-2.0
#include "common/text/counted.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(CountedTest, OneIsNoPlural) {
  EXPECT_EQ(Counted(1, "row"), "1 row");
  EXPECT_EQ(Counted(uint64_t{1}, "rank-step"), "1 rank-step");
  EXPECT_EQ(Counted(size_t{0}, "row"), "0 rows");
  EXPECT_EQ(Counted(int64_t{21}, "row"), "21 rows");
}

}  // namespace
}  // namespace rankprobe
