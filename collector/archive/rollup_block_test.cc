// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/rollup_block.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr double kNoBlockNumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kEndlessBlock = std::numeric_limits<double>::infinity();

// Returns the row of each statistic.
std::map<uint8_t, std::string> RowsOf(const RollupBlockWriter& writer) {
  std::vector<RollupColumnRow> rows;
  writer.AppendTo(0, &rows);
  std::map<uint8_t, std::string> bytes;
  for (const RollupColumnRow& row : rows) bytes[row.statistic] = row.bytes;
  return bytes;
}

TEST(RollupBlockTest, WhatIsReadBackIsWhatWasPutIn) {
  RollupBlockWriter writer;
  const std::vector<double> exact = {
      0.0, -0.0, 1.5, 0x1p-149, -kEndlessBlock, 3.4028234663852886e38};
  const std::vector<double> wide = {1e39, 0.1, -1.7976931348623157e308,
                                    9007199254740991.0};
  for (size_t i = 0; i < exact.size(); ++i)
    writer.Put(static_cast<uint32_t>(i * 9), kNorm, exact[i]);
  for (size_t i = 0; i < wide.size(); ++i)
    writer.Put(static_cast<uint32_t>(63 - i), kMax, wide[i]);
  writer.Put(5, kNanCount, kNoBlockNumber);
  const std::map<uint8_t, std::string> bytes = RowsOf(writer);
  // Numbers that a float represents take four bytes; these are too different to
  // be packed.
  ASSERT_EQ(bytes.size(), 3u);
  EXPECT_EQ(bytes.at(kNorm).size(), 9 + 6 * 4u);
  EXPECT_EQ(bytes.at(kMax).size(), 9 + 4 * 8u);
  EXPECT_EQ(bytes.at(kNanCount).size(), 9 + 4u);
  const auto norms = RollupColumn::Parse(bytes.at(kNorm), kNorm);
  ASSERT_TRUE(norms.ok());
  uint64_t present = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double got = norms->At(static_cast<uint32_t>(i * 9));
    EXPECT_EQ(got, exact[i]);
    EXPECT_EQ(std::signbit(got), std::signbit(exact[i]));
    present |= uint64_t{1} << (i * 9);
  }
  EXPECT_EQ(norms->present(), present);
  const auto largest = RollupColumn::Parse(bytes.at(kMax), kMax);
  ASSERT_TRUE(largest.ok());
  for (size_t i = 0; i < wide.size(); ++i)
    EXPECT_EQ(largest->At(static_cast<uint32_t>(63 - i)), wide[i]);
  const auto nans = RollupColumn::Parse(bytes.at(kNanCount), kNanCount);
  ASSERT_TRUE(nans.ok());
  EXPECT_TRUE(std::isnan(nans->At(5)));
  EXPECT_TRUE(
      absl::IsDataLoss(RollupColumn::Parse(bytes.at(kMax), kMin).status()))
      << "the row of another statistic";
}

TEST(RollupBlockTest, AFullBlockIsShorterAndTheSame) {
  RollupBlockWriter writer;
  std::vector<double> numbers;
  for (uint32_t slot = 0; slot < kRollupBlockValues; ++slot) {
    // Norms from 1e-3 to 1e2.
    numbers.push_back(std::pow(10, slot % 6 - 3.0) / 3);
    writer.Put(slot, kNorm, numbers.back());
    writer.Put(slot, kMin, -static_cast<float>(numbers.back()));
  }
  const std::map<uint8_t, std::string> bytes = RowsOf(writer);
  EXPECT_LT(bytes.at(kNorm).size() + bytes.at(kMin).size(),
            2 * 9 + 64 * (8 + 4) - 64u);
  const auto norms = RollupColumn::Parse(bytes.at(kNorm), kNorm);
  const auto smallest = RollupColumn::Parse(bytes.at(kMin), kMin);
  ASSERT_TRUE(norms.ok() && smallest.ok());
  for (uint32_t slot = 0; slot < kRollupBlockValues; ++slot) {
    EXPECT_EQ(norms->At(slot), numbers[slot]);
    EXPECT_EQ(smallest->At(slot), -static_cast<float>(numbers[slot]));
  }
  for (const auto& [statistic, row] : bytes) {
    for (size_t size = 0; size < row.size(); ++size) {
      EXPECT_TRUE(absl::IsDataLoss(
          RollupColumn::Parse(row.substr(0, size), static_cast<Stat>(statistic))
              .status()));
    }
    EXPECT_TRUE(absl::IsDataLoss(
        RollupColumn::Parse(row + "x", static_cast<Stat>(statistic)).status()));
  }
}

TEST(RollupBlockTest, ARowOfOneStatisticIsItsColumn) {
  RollupBlockWriter writer;
  for (uint32_t slot = 0; slot < 5; ++slot) {
    writer.Put(slot, kNorm, slot + 0.1);
    writer.Put(63 - slot, kMax, slot);
  }
  std::vector<RollupColumnRow> rows;
  writer.AppendTo(7, &rows);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].statistic, kMax);
  EXPECT_EQ(rows[1].statistic, kNorm);
  EXPECT_EQ(rows[0].block, 7u);
  EXPECT_EQ(RollupColumn::Parse(rows[1].bytes, kNorm)->At(3), 3.1);
}

}  // namespace
}  // namespace rankprobe
