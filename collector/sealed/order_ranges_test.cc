// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/order_ranges.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(OrderRanges, HoldWhatWasAddedAndNothingElse) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    OrderRanges ranges;
    std::set<uint64_t> all;
    for (int i = 0; i < 30; ++i) {
      const uint64_t first = random() % 60;
      const uint64_t last = first + random() % 4;
      ranges.Add(first, last);
      for (uint64_t order = first; order <= last; ++order) all.insert(order);
    }
    uint64_t last = 0;
    bool begun = false;
    for (const auto& [begin, end] : ranges.ranges()) {
      // Neither overlapping nor adjacent.
      EXPECT_TRUE(!begun || begin > last + 1);
      begun = true;
      last = end;
    }
    for (uint64_t order = 0; order < 70; ++order)
      EXPECT_EQ(ranges.Contains(order), all.count(order) == 1) << order;
  }
}

TEST(OrderRanges, KnowTheLastOrderThereIs) {
  OrderRanges ranges;
  ranges.Add(UINT64_MAX, UINT64_MAX);
  ranges.Add(0, 0);
  ranges.Add(UINT64_MAX - 1, UINT64_MAX - 1);
  EXPECT_TRUE(ranges.Contains(UINT64_MAX));
  EXPECT_FALSE(ranges.Contains(1));
  EXPECT_EQ(ranges.ranges().size(), 2u);
}

}  // namespace
}  // namespace rankprobe
