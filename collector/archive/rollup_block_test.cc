// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/rollup_block.h"

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/base/little_endian.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr double kNoBlockNumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kEndlessBlock = std::numeric_limits<double>::infinity();

// Returns all columns back to back: a row of older archives.
std::string Joined(const RollupBlockWriter& writer) {
  std::vector<RollupColumnRow> rows;
  writer.AppendTo(0, &rows);
  std::string all;
  for (const RollupColumnRow& row : rows) all += row.bytes;
  return all;
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
  const std::string bytes = Joined(writer);
  // Numbers that a float represents take four bytes; these are too different to
  // be packed.
  EXPECT_EQ(bytes.size(), 3 * 9 + 6 * 4 + 4 * 8 + 4u);
  const auto norms = RollupColumn::Find(bytes, kNorm);
  ASSERT_TRUE(norms.ok());
  uint64_t present = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double got = norms->At(static_cast<uint32_t>(i * 9));
    EXPECT_EQ(got, exact[i]);
    EXPECT_EQ(std::signbit(got), std::signbit(exact[i]));
    present |= uint64_t{1} << (i * 9);
  }
  EXPECT_EQ(norms->present(), present);
  const auto largest = RollupColumn::Find(bytes, kMax);
  ASSERT_TRUE(largest.ok());
  for (size_t i = 0; i < wide.size(); ++i)
    EXPECT_EQ(largest->At(static_cast<uint32_t>(63 - i)), wide[i]);
  const auto nans = RollupColumn::Find(bytes, kNanCount);
  ASSERT_TRUE(nans.ok());
  EXPECT_TRUE(std::isnan(nans->At(5)));
  EXPECT_EQ(RollupColumn::Find(bytes, kMin)->present(), 0u);
  EXPECT_TRUE(absl::IsDataLoss(
      RollupColumn::Find(bytes.substr(0, bytes.size() - 1), kStd).status()));
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
  const std::string bytes = Joined(writer);
  EXPECT_LT(bytes.size(), 2 * 9 + 64 * (8 + 4) - 64u);
  const auto norms = RollupColumn::Find(bytes, kNorm);
  const auto smallest = RollupColumn::Find(bytes, kMin);
  ASSERT_TRUE(norms.ok() && smallest.ok());
  for (uint32_t slot = 0; slot < kRollupBlockValues; ++slot) {
    EXPECT_EQ(norms->At(slot), numbers[slot]);
    EXPECT_EQ(smallest->At(slot), -static_cast<float>(numbers[slot]));
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    // It may end after a column.
    const std::string part = bytes.substr(0, size);
    if (const auto cut = RollupColumn::Find(part, kNorm);
        cut.ok() && cut->present() != 0)
      EXPECT_EQ(cut->At(3), numbers[3]);
  }
}

// The layout of archives of version 6.
TEST(RollupBlockTest, ABlockOfOlderArchivesIsRead) {
  std::string bytes = {'\x03', 0x05, 0, 0, 0, 0, 0, 0, 0};  // Norm of 0 and 2
  for (const float number : {1.5f, -2.0f})
    AppendLittleEndian(std::bit_cast<uint32_t>(number), &bytes);
  bytes += std::string{'\x80', 0x02, 0, 0, 0, 0, 0, 0, 0};  // Max of 1
  AppendLittleEndian(std::bit_cast<uint64_t>(0.1), &bytes);
  const auto norms = RollupColumn::Find(bytes, kNorm);
  const auto largest = RollupColumn::Find(bytes, kMax);
  ASSERT_TRUE(norms.ok() && largest.ok());
  EXPECT_EQ(norms->present(), 5u);
  EXPECT_EQ(norms->At(0), 1.5);
  EXPECT_EQ(norms->At(2), -2);
  EXPECT_EQ(largest->present(), 2u);
  EXPECT_EQ(largest->At(1), 0.1);
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
  EXPECT_EQ(RollupColumn::Find(rows[1].bytes, kNorm)->At(3), 3.1);
  EXPECT_EQ(RollupColumn::Find(rows[1].bytes, kMax)->present(), 0u);
}

}  // namespace
}  // namespace rankprobe
