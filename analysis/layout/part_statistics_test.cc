// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/part_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace rankprobe::analysis {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

PartStatistics Of(const std::vector<double>& values) {
  PartStatistics out;
  out.elements = static_cast<int64_t>(values.size());
  if (values.empty()) return out;
  double high = values[0];
  double low = values[0];
  double sum = 0;
  double squares = 0;
  double zeros = 0;
  for (const double v : values) {
    high = std::isnan(v) || std::isnan(high) ? kNan : std::max(high, v);
    low = std::isnan(v) || std::isnan(low) ? kNan : std::min(low, v);
    sum += v;
    squares += v * v;
    zeros += v == 0 ? 1 : 0;
  }
  const auto count = static_cast<double>(values.size());
  double spread = 0;
  for (const double v : values) spread += (v - sum / count) * (v - sum / count);
  out.stats[kMax] = {high, ""};
  out.stats[kMin] = {low, ""};
  out.stats[kMean] = {sum / count, ""};
  out.stats[kNorm] = {std::sqrt(squares), ""};
  out.stats[kZeroCount] = {zeros, ""};
  out.stats[kStd] = {std::sqrt(spread / count), ""};
  return out;
}

TEST(PartStatisticsTest, ShardsOfAnySizesAreTheWhole) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal(3, 2);
  for (int round = 0; round < 100; ++round) {
    std::vector<double> all;
    std::vector<PartStatistics> parts;
    for (int i = 0; i < 4; ++i) {
      // Parts of different sizes, some of them empty.
      std::vector<double> part(random() % 5);
      for (double& v : part) v = random() % 5 == 0 ? 0 : normal(random);
      all.insert(all.end(), part.begin(), part.end());
      parts.push_back(Of(part));
    }
    if (all.empty()) continue;
    const PartStats joined = OfShards(parts);
    const PartStatistics whole = Of(all);
    for (const Stat stat : {kMax, kMin, kMean, kNorm, kZeroCount, kStd}) {
      ASSERT_TRUE(joined[stat].has_value()) << kStatInfo[stat].key;
      EXPECT_NEAR(joined[stat]->value, whole.stats[stat]->value, 1e-12)
          << kStatInfo[stat].key;
    }
  }
}

TEST(PartStatisticsTest, TheMeanIsWeightedByTheNumberOfElements) {
  const PartStats joined = OfShards({Of({1, 1, 1}), Of({5})});
  EXPECT_DOUBLE_EQ(joined[kMean]->value, 2);
}

TEST(PartStatisticsTest, ANanOfOnePartIsOneOfTheWhole) {
  for (const bool first : {true, false}) {
    std::vector<PartStatistics> parts = {Of({1, 2}), Of({3, kNan})};
    if (first) std::swap(parts[0], parts[1]);
    const PartStats joined = OfShards(parts);
    for (const Stat stat : {kMax, kMin, kMean, kNorm}) {
      EXPECT_TRUE(std::isnan(joined[stat]->value)) << kStatInfo[stat].key;
    }
  }
}

TEST(PartStatisticsTest, ANormWhoseSquareOverflowsIsFinite) {
  PartStatistics part = Of({1});
  part.stats[kNorm] = {1e200, ""};
  EXPECT_DOUBLE_EQ(OfShards({part, part})[kNorm]->value, std::sqrt(2) * 1e200);
}

TEST(PartStatisticsTest, WhatOnePartDoesNotSayIsNotKnown) {
  PartStatistics silent = Of({2, 3});
  silent.stats[kMax].reset();
  const PartStats joined = OfShards({Of({1}), silent});
  EXPECT_FALSE(joined[kMax].has_value());
  EXPECT_DOUBLE_EQ(joined[kMin]->value, 1);
}

TEST(PartStatisticsTest, OfASumOnlyTheMeanIsKnown) {
  const std::vector<PartStatistics> terms = {Of({1, 2}), Of({10, 20})};
  const PartStats sum = OfTerms(terms, false);
  EXPECT_DOUBLE_EQ(sum[kMean]->value, 16.5);
  for (const Stat stat : {kMax, kMin, kNorm, kZeroCount, kStd}) {
    EXPECT_FALSE(sum[stat].has_value()) << kStatInfo[stat].key;
  }
  EXPECT_DOUBLE_EQ(OfTerms(terms, true)[kMean]->value, 8.25);
}

TEST(PartStatisticsTest, LargeIntegersDifferByTheirText) {
  PartStats a;
  a[kMax] = {9007199254740992.0, "9007199254740992"};
  PartStats b;
  b[kMax] = {9007199254740992.0, "9007199254740993"};
  EXPECT_FALSE(SameStatistics(a, b));
  EXPECT_TRUE(SameStatistics(a, a));
}

}  // namespace
}  // namespace rankprobe::analysis
