// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/statistics_grid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<double> CellsOf(const StatisticsGrid& grid, size_t row) {
  const v1::GridRow out = grid.Row(row);
  return {out.cells().begin(), out.cells().end()};
}

v1::GridHead HeadOf(const StatisticsGrid& grid) {
  v1::GridHead head;
  grid.FillHead(&head);
  return head;
}

TEST(StatisticsGridTest, KeepsTheLargestAndWhoHasIt) {
  StatisticsGrid grid(v1::GRID_REDUCER_MAX, {});
  ASSERT_TRUE(grid.BeginStep(3).ok());
  ASSERT_TRUE(grid.Add("a", 0, -2).ok());
  ASSERT_TRUE(grid.Add("a", 1, -1).ok());
  ASSERT_TRUE(grid.BeginStep(7).ok());
  ASSERT_TRUE(grid.Add("b", 1, 5).ok());
  const v1::GridHead head = HeadOf(grid);
  EXPECT_EQ(head.rows(), 2u);
  EXPECT_EQ(head.steps(), 2u);
  EXPECT_EQ(head.first_steps(1), 7);
  const v1::GridRow a = grid.Row(0), b = grid.Row(1);
  EXPECT_EQ(a.name(), "a");
  EXPECT_EQ(a.cells(0), -1);
  EXPECT_EQ(a.ranks(0), 1);
  EXPECT_EQ(a.counts(0), 2u);
  // A missing value is not 0.
  EXPECT_EQ(a.counts(1), 0u);
  EXPECT_EQ(b.counts(0), 0u);
  EXPECT_EQ(b.cells(1), 5);
}

TEST(StatisticsGridTest, ANaNIsSeenWhateverElseThereIs) {
  for (const auto reducer :
       {v1::GRID_REDUCER_MAX, v1::GRID_REDUCER_MIN, v1::GRID_REDUCER_MEAN}) {
    StatisticsGrid grid(reducer, {});
    ASSERT_TRUE(grid.BeginStep(0).ok());
    for (const double value : {1.0, kInf, kNaN, -kInf, 2.0})
      ASSERT_TRUE(grid.Add("a", 0, value).ok());
    EXPECT_TRUE(std::isnan(grid.Row(0).cells(0))) << reducer;
    EXPECT_EQ(grid.Row(0).non_finite(0), 3u);
    EXPECT_EQ(grid.Row(0).counts(0), 5u);
  }
}

TEST(StatisticsGridTest, NothingIsClipped) {
  StatisticsGrid grid(v1::GRID_REDUCER_MIN, {});
  ASSERT_TRUE(grid.BeginStep(0).ok());
  ASSERT_TRUE(grid.Add("a", 0, 1e38).ok());
  ASSERT_TRUE(grid.BeginStep(1).ok());
  ASSERT_TRUE(grid.Add("a", 0, kInf).ok());
  EXPECT_EQ(CellsOf(grid, 0), (std::vector<double>{1e38, kInf}));
}

// The same numbers with room for all columns and for few.
TEST(StatisticsGridTest, StepsShareColumnsWhereThereIsNoRoom) {
  for (const auto reducer :
       {v1::GRID_REDUCER_MAX, v1::GRID_REDUCER_MIN, v1::GRID_REDUCER_MEAN}) {
    for (const size_t steps : {1, 2, 7, 8, 9, 63, 64, 65}) {
      StatisticsGrid all(reducer, {}), few(reducer, {16});
      for (StatisticsGrid* grid : {&all, &few}) {
        for (size_t step = 0; step < steps; ++step) {
          ASSERT_TRUE(grid->BeginStep(static_cast<int64_t>(7 * step + 5)).ok());
          for (int row = 0; row < 2; ++row) {
            ASSERT_TRUE(grid->Add(row == 0 ? "a" : "b", row,
                                  std::cos(static_cast<double>(step) + row))
                            .ok());
          }
        }
      }
      const v1::GridHead head = HeadOf(few), full = HeadOf(all);
      const auto width = static_cast<int64_t>(head.steps_per_column());
      ASSERT_LE(2 * head.first_steps_size(), 16);
      ASSERT_EQ(head.steps(), steps);
      for (int row = 0; row < 2; ++row) {
        const v1::GridRow joined = few.Row(row), single = all.Row(row);
        // Steps by the column to which their number belongs.
        std::map<int64_t, std::vector<int>> columns;
        for (int i = 0; i < full.first_steps_size(); ++i)
          columns[full.first_steps(i) / width].push_back(i);
        ASSERT_EQ(columns.size(), head.first_steps_size());
        int c = 0;
        for (const auto& [number, of] : columns) {
          double largest = -2, smallest = 2, sum = 0;
          for (const int i : of) {
            const double one = single.cells(i);
            largest = std::max(largest, one);
            smallest = std::min(smallest, one);
            sum += one;
          }
          EXPECT_EQ(head.first_steps(c), full.first_steps(of.front()));
          EXPECT_EQ(head.last_steps(c), full.first_steps(of.back()));
          EXPECT_EQ(joined.counts(c), of.size());
          const double wanted = reducer == v1::GRID_REDUCER_MAX ? largest
                                : reducer == v1::GRID_REDUCER_MIN
                                    ? smallest
                                    : sum / static_cast<double>(of.size());
          EXPECT_NEAR(joined.cells(c), wanted, 1e-12);
          ++c;
        }
      }
    }
  }
}

TEST(StatisticsGridTest, MoreRowsThanCellsAreRefused) {
  StatisticsGrid grid(v1::GRID_REDUCER_MAX, {3});
  for (int step = 0; step < 5; ++step) {
    ASSERT_TRUE(grid.BeginStep(step).ok());
    for (const char* row : {"a", "b", "c"})
      ASSERT_TRUE(grid.Add(row, 0, step).ok());
  }
  EXPECT_EQ(HeadOf(grid).first_steps_size(), 1);
  EXPECT_EQ(grid.Row(2).cells(0), 4);
  const absl::Status fourth = grid.Add("d", 0, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(fourth)) << fourth;
}

TEST(StatisticsGridTest, LongNamesAreRefused) {
  StatisticsGrid::Limits limits;
  limits.name_bytes = 10;
  StatisticsGrid grid(v1::GRID_REDUCER_MAX, limits);
  ASSERT_TRUE(grid.BeginStep(0).ok());
  ASSERT_TRUE(grid.Add("12345678", 0, 1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(grid.Add("abc", 0, 1)));
}

}  // namespace
}  // namespace rankprobe
