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
  // All numbers are equal, or there are none.
  EXPECT_EQ(Sparkline({3, 3}, 10), "▅▅");
  EXPECT_EQ(Sparkline({std::nullopt, -kInfinity}, 10), " !");
}

TEST(SparklineTest, NeighboursShareASign) {
  EXPECT_EQ(Sparkline({0, 7, 0, 0, 7, 0}, 3), "█▁█");
  EXPECT_EQ(Sparkline({0, 7, 0, kInfinity, std::nullopt}, 3), "█! ");
  EXPECT_EQ(Sparkline({0, 1, 2, 3}, 1), "█");
}

TEST(HeatRowTest, RowsOfOneScaleAreAlike) {
  const std::vector<std::optional<double>> first = {0, 1, 2, 3, 4},
                                           second = {4, std::nullopt,
                                                     kInfinity};
  PlotScale scale;
  scale.Add(first);
  scale.Add(second);
  EXPECT_FALSE(scale.logarithmic());
  EXPECT_EQ(HeatRow(first, scale, 10), "·░▒▓█");
  EXPECT_EQ(HeatRow(second, scale, 10), "█ !");
  EXPECT_EQ(HeatRow(first, scale, 2), "▒█");
}

TEST(HeatRowTest, ManyDecadesAreShadedByTheirLogarithms) {
  const std::vector<std::optional<double>> row = {0, 1e-4, 1e-2, 1, 1e1};
  PlotScale scale;
  scale.Add(row);
  EXPECT_TRUE(scale.logarithmic());
  EXPECT_EQ(HeatRow(row, scale, 10), "··▒██");
  PlotScale negative;
  negative.Add({-1, 1e-4, 1e4});
  EXPECT_FALSE(negative.logarithmic());
  // The extremes of double, one number, and none.
  PlotScale wide;
  wide.Add({-kLimit, kLimit});
  EXPECT_EQ(HeatRow({-kLimit, 0, kLimit}, wide, 10), "·▒█");
  PlotScale one;
  one.Add({7});
  EXPECT_EQ(HeatRow({7}, one, 10), "▒");
  EXPECT_EQ(HeatRow({std::nullopt, kInfinity}, PlotScale(), 10), " !");
}

}  // namespace
}  // namespace rankprobe
