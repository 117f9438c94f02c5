// SPDX-License-Identifier: Apache-2.0
#include "common/text/ranges_text.h"

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(RangesTextTest, WritesListsAndRanges) {
  EXPECT_EQ(RangesText({0, 4, 5, 6, 8}), "0,4-6,8");
  EXPECT_EQ(RangesText({}), "");
}

}  // namespace
}  // namespace rankprobe
