// SPDX-License-Identifier: Apache-2.0
#include "cli/output/sparkline.h"

#include <limits>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr double kLimit = std::numeric_limits<double>::max();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(SparklineTest, HeightsGapsAndWhatIsNotFinite) {
  EXPECT_EQ(Sparkline({}, 10), "");
  EXPECT_EQ(Sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 10), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(Sparkline({0, std::nullopt, kInfinity, 7}, 10), "▁ !█");
  EXPECT_EQ(Sparkline({-kLimit, 0, kLimit}, 10), "▁▅█");
  // All the same, or none.
  EXPECT_EQ(Sparkline({3, 3}, 10), "▅▅");
  EXPECT_EQ(Sparkline({std::nullopt, -kInfinity}, 10), " !");
}

TEST(SparklineTest, NeighboursShareASign) {
  EXPECT_EQ(Sparkline({0, 7, 0, 0, 7, 0}, 3), "█▁█");
  EXPECT_EQ(Sparkline({0, 7, 0, kInfinity, std::nullopt}, 3), "█! ");
  EXPECT_EQ(Sparkline({0, 1, 2, 3}, 1), "█");
}

}  // namespace
}  // namespace rankprobe
