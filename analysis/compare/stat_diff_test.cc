// SPDX-License-Identifier: Apache-2.0
// Differences of two statistics.
#include "analysis/compare/stat_diff.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace rankprobe::analysis {
namespace {

JsonValue Number(double value) {
  JsonValue out;
  out.kind = JsonValue::Kind::kFloat;
  out.number = value;
  return out;
}
JsonValue Text(absl::string_view text) {
  JsonValue out;
  out.kind = JsonValue::Kind::kString;
  out.text = text;
  return out;
}

TEST(StatDiffTest, TableOfRules) {
  const auto check = [](const JsonValue& n, const JsonValue& b,
                        const std::string& diff, const std::string& rel) {
    const StatDiff out = CompareStat(n, b);
    EXPECT_EQ(DifferenceText(out), diff);
    EXPECT_EQ(RelativeText(out), rel);
  };
  check(Number(3), Number(2), "1.0", "50.0%");
  check(Number(2), Number(2), "0", "0");
  check(Number(2), Number(0), "2.0", "inf");
  check(Number(NAN), Number(NAN), "0", "0");
  check(Number(NAN), Number(1), "Nan", "Nan");
  check(Number(INFINITY), Number(1), "inf", "inf");
  check(Number(1), Number(INFINITY), "-inf", "-inf");
  check(Number(-INFINITY), Number(INFINITY), "-inf", "-inf");
  check(Number(1), Number(-INFINITY), "inf", "inf");
  check(Text("N/A"), Number(1), "N/A", "N/A");
  check(Text("cpu"), Text("npu:0"), "N/A", "N/A");
  check(Text("cpu"), Number(1), "Diff", "Diff");
  check(Text("abc"), Text("abd"), "Diff", "Diff");
  check(JsonValue(), JsonValue(), "0", "0");
  check(JsonValue(), Number(1), "Diff", "Diff");
  check(Text("0.0"), Number(0), "0", "0");
  check(Text("0"), Number(0), "0.0", "0");
}

TEST(StatDiffTest, Ratios) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(CompareStat(Number(3), Number(2)).Ratio(), 0.5);
  EXPECT_EQ(CompareStat(Number(2), Number(2)).Ratio(), 0);
  EXPECT_EQ(CompareStat(Number(2), Number(0)).Ratio(), kInfinity);
  EXPECT_EQ(CompareStat(Number(INFINITY), Number(1)).Ratio(), kInfinity);
  EXPECT_EQ(CompareStat(Number(NAN), Number(1)).Ratio(), std::nullopt);
  EXPECT_EQ(CompareStat(Text("N/A"), Number(1)).Ratio(), std::nullopt);
  EXPECT_EQ(StatDiff().Ratio(), std::nullopt);
  EXPECT_TRUE(CompareStat(Text("0"), Number(0)).IsZero());
  EXPECT_TRUE(CompareStat(Text("a"), Text("a")).IsZero());
  EXPECT_FALSE(CompareStat(Text("2"), Number(2)).IsZero());
  EXPECT_FALSE(StatDiff().IsZero());
}

}  // namespace
}  // namespace rankprobe::analysis
