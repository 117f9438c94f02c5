// SPDX-License-Identifier: Apache-2.0
#include "web/gateway/grid_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

v1::GridReply RowOf(std::vector<double> cells, std::vector<uint32_t> counts,
                    std::vector<uint32_t> bad, std::vector<int64_t> ranks) {
  v1::GridReply reply;
  v1::GridRow* const row = reply.mutable_row();
  row->set_name("rank3");
  row->mutable_cells()->Assign(cells.begin(), cells.end());
  row->mutable_counts()->Assign(counts.begin(), counts.end());
  row->mutable_non_finite()->Assign(bad.begin(), bad.end());
  row->mutable_ranks()->Assign(ranks.begin(), ranks.end());
  return reply;
}

uint32_t WordAt(const std::string& bytes, size_t at) {
  uint32_t word = 0;
  for (size_t i = 4; i-- > 0;)
    word = word << 8 | static_cast<unsigned char>(bytes.at(at + i));
  return word;
}

TEST(GridBytesTest, WideCellsAndNumbersOfTheirOwn) {
  std::string out;
  ASSERT_TRUE(
      AppendGridFrame(RowOf({1e300, 0}, {1, 0}, {0, 1}, {3, -1}), &out).ok());
  EXPECT_EQ(WordAt(out, 0), 1u);
  EXPECT_EQ(WordAt(out, 4), out.size() - 8);
  EXPECT_EQ(WordAt(out, 8), 1u) << "wide, and nothing is one number";
  EXPECT_EQ(WordAt(out, 12), 2u);
  EXPECT_EQ(WordAt(out, 16), 5u);
  EXPECT_EQ(out.substr(20, 5), "rank3");
  double cell = 0;
  std::memcpy(&cell, out.data() + 25, sizeof(cell));
  EXPECT_EQ(cell, 1e300);
  EXPECT_EQ(out.size(), 25u + 2 * 8 + 3 * 2 * 4);
  EXPECT_EQ(WordAt(out, 41), 1u);
  EXPECT_EQ(WordAt(out, 41 + 20), 0xffffffffu) << "no rank is -1";
}

TEST(GridBytesTest, WhatIsTheSameInAllColumnsIsOneNumber) {
  v1::GridReply reply = RowOf({}, {7, 7}, {0, 0}, {3, 3});
  reply.mutable_row()->set_packed(std::string(8, '\1'));
  std::string out = "before";
  ASSERT_TRUE(AppendGridFrame(reply, &out).ok());
  EXPECT_EQ(WordAt(out, 6 + 8), 2u + 4u + 8u);
  EXPECT_EQ(out.size(), 6u + 25 + 8 + 3 * 4);
  EXPECT_EQ(WordAt(out, 6 + 25 + 8), 7u);
  EXPECT_EQ(WordAt(out, 6 + 4), out.size() - 6 - 8);
}

TEST(GridBytesTest, ARowWithoutColumnsIsARow) {
  std::string out;
  ASSERT_TRUE(AppendGridFrame(RowOf({}, {}, {}, {}), &out).ok());
  EXPECT_EQ(WordAt(out, 8), 0u);
  EXPECT_EQ(out.size(), 25u);
}

TEST(GridBytesTest, HeadAndErrorAreJson) {
  v1::GridReply reply;
  reply.mutable_head()->set_rows(2);
  std::string out;
  ASSERT_TRUE(AppendGridFrame(reply, &out).ok());
  EXPECT_EQ(WordAt(out, 0), 0u);
  EXPECT_THAT(out.substr(8), HasSubstr("\"rows\":"));
  std::string error;
  AppendGridError(absl::NotFoundError("no such run"), &error);
  EXPECT_EQ(WordAt(error, 0), 2u);
  EXPECT_THAT(error.substr(8), HasSubstr("no such run"));
}

TEST(GridBytesTest, ARowThatIsNotWholeIsRefused) {
  std::string out;
  EXPECT_FALSE(AppendGridFrame(RowOf({1}, {1, 1}, {0, 0}, {0, 0}), &out).ok());
  EXPECT_FALSE(AppendGridFrame(RowOf({1}, {1}, {}, {0}), &out).ok());
  v1::GridReply odd = RowOf({}, {1}, {0}, {0});
  odd.mutable_row()->set_packed("12345");
  EXPECT_FALSE(AppendGridFrame(odd, &out).ok());
  EXPECT_FALSE(AppendGridFrame(v1::GridReply(), &out).ok());
  EXPECT_EQ(out, "");
}

}  // namespace
}  // namespace rankprobe
