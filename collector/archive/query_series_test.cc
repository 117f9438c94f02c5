// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/query_series.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "collector/archive/rollup.h"
#include "collector/testing/frames.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::Frames;
using testing::MakeIdentity;

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();
constexpr double kUnbounded = std::numeric_limits<double>::infinity();

class QuerySeriesTest : public testing::TempDirTest {
 protected:
  void SetUp() override {
    testing::TempDirTest::SetUp();
    store_ = OpenStore();
  }

  struct Number {
    std::string entry;
    double norm = 0;
  };
  void AddStep(int64_t rank, int64_t step, const std::vector<Number>& numbers) {
    Frames frames(MakeIdentity(
        "run", rank, static_cast<uint64_t>(1000 * (rank + 1) + step)));
    v1::RecordBatch* const batch = frames.AddBatch(step);
    batch->add_records()->mutable_step_begin();
    uint64_t order = 1;
    for (const Number& number : numbers) {
      v1::Record* const record = batch->add_records();
      record->set_order(order++);
      v1::CallPhase* const phase = record->mutable_call();
      phase->set_entry(number.entry);
      phase->set_kind(v1::CALL_KIND_MODULE_FORWARD);
      phase->mutable_output()
          ->add_items()
          ->mutable_tensor()
          ->mutable_stats()
          ->set_norm_f(number.norm);
    }
    v1::Record* const last = batch->add_records();
    last->set_order(order);
    last->mutable_step_end()->set_call_phases(numbers.size());
    ASSERT_TRUE(store_->Commit(frames.All()).ok());
  }

  absl::Status Ask(const v1::QuerySeriesRequest& request) {
    rows_.clear();
    return QuerySeries(
        store_.get(), request, [] { return false; },
        [&](const v1::SeriesReply& reply) {
          if (reply.has_head()) head_ = reply.head();
          if (reply.has_row()) rows_.push_back(reply.row());
          return absl::OkStatus();
        });
  }
  static v1::QuerySeriesRequest Request() {
    v1::QuerySeriesRequest request;
    request.mutable_grid()->set_run("run");
    return request;
  }
  static std::vector<double> Cells(const v1::GridRow& row) {
    std::vector<double> cells(row.cells().begin(), row.cells().end());
    for (size_t i = 0; i < cells.size(); ++i) {
      if (row.counts(static_cast<int>(i)) == 0) cells[i] = -1e99;
    }
    return cells;
  }
  static std::vector<int64_t> Ranks(const v1::GridRow& row) {
    return {row.ranks().begin(), row.ranks().end()};
  }

  std::unique_ptr<Store> store_;
  v1::GridHead head_;
  std::vector<v1::SeriesRow> rows_;
};

constexpr double kNothing = -1e99;

TEST_F(QuerySeriesTest, SaysWhoIsSmallestLargestAndAstray) {
  const std::vector<std::vector<double>> norms = {
      {1, 2, 3, 10}, {5, 4}, {1, kMissing, 3}, {0, 0, 1e300}, {kUnbounded}};
  for (size_t step = 0; step < norms.size(); ++step) {
    for (size_t rank = 0; rank < norms[step].size(); ++rank) {
      AddStep(static_cast<int64_t>(rank), static_cast<int64_t>(step),
              {{"Module.a.A.forward.0", norms[step][rank]}});
    }
  }
  for (const bool rolled_up : {false, true}) {
    if (rolled_up)
      RollupMaker(store_.get()).RollUpPending([] { return false; });
    v1::QuerySeriesRequest request = Request();
    request.add_lines(1);
    request.add_lines(7);
    ASSERT_TRUE(Ask(request).ok());
    ASSERT_EQ(rows_.size(), 1u);
    EXPECT_EQ(head_.rolled_up_rank_steps(), rolled_up ? 13u : 0u);
    const v1::SeriesRow& row = rows_[0];
    EXPECT_EQ(row.name(), "Module.a.A.forward.0.output.0");
    const std::vector<double> smallest = Cells(row.smallest());
    EXPECT_EQ(smallest[0], 1);
    EXPECT_EQ(smallest[1], 4);
    EXPECT_TRUE(std::isnan(smallest[2]));
    EXPECT_EQ(smallest[4], kUnbounded);
    EXPECT_EQ(Ranks(row.smallest()), (std::vector<int64_t>{0, 1, 1, 0, 0}));
    const std::vector<double> largest = Cells(row.largest());
    EXPECT_EQ(largest[0], 10);
    EXPECT_EQ(largest[3], 1e300);
    EXPECT_EQ(Ranks(row.largest()), (std::vector<int64_t>{3, 0, 1, 2, 0}));
    EXPECT_EQ(Cells(row.median()),
              (std::vector<double>{2.5, 4.5, 2, 0, kNothing}));
    const std::vector<double> deviation = Cells(row.deviation());
    EXPECT_DOUBLE_EQ(deviation[0], 3);
    EXPECT_NEAR(deviation[1], 1.0 / 9, 1e-15);
    EXPECT_EQ(deviation[2], kUnbounded);
    EXPECT_EQ(deviation[3], kUnbounded);
    EXPECT_EQ(deviation[4], kNothing);
    EXPECT_EQ(row.deviation().ranks(0), 3);
    EXPECT_EQ(row.deviation().ranks(2), 1);
    EXPECT_EQ(row.deviation().ranks(3), 2);
    ASSERT_EQ(row.lines_size(), 2);
    EXPECT_EQ(row.lines(0).name(), "rank1");
    EXPECT_EQ(Cells(row.lines(0))[0], 2);
    EXPECT_EQ(Cells(row.lines(0))[4], kNothing);
    EXPECT_EQ(row.lines(1).name(), "rank7");
    EXPECT_EQ(Cells(row.lines(1)), std::vector<double>(5, kNothing));
  }
}

TEST_F(QuerySeriesTest, ARankHasOneNumberForARow) {
  for (int64_t rank = 0; rank < 3; ++rank) {
    AddStep(rank, 0,
            {{"Module.a.A.forward.0", 1.0 + static_cast<double>(rank)},
             {"Module.a.A.forward.1", 5}});
  }
  v1::QuerySeriesRequest request = Request();
  request.mutable_grid()->set_rows(v1::GRID_ROWS_MODULE);
  request.mutable_grid()->set_reducer(v1::GRID_REDUCER_MIN);
  request.mutable_grid()->set_packed(true);
  ASSERT_TRUE(Ask(request).ok());
  ASSERT_EQ(rows_.size(), 1u);
  EXPECT_EQ(rows_[0].name(), "Module.a.A");
  EXPECT_EQ(rows_[0].median().packed(), std::string("\0\0\0\x40", 4));
  EXPECT_EQ(rows_[0].smallest().counts(0), 3u);
}

TEST_F(QuerySeriesTest, ManyStepsShareColumns) {
  for (int64_t step = 0; step < 64; ++step) {
    for (int64_t rank = 0; rank < 2; ++rank)
      AddStep(rank, step, {{"a", static_cast<double>(step)}});
  }
  v1::QuerySeriesRequest request = Request();
  request.mutable_grid()->set_max_cells(4);
  ASSERT_TRUE(Ask(request).ok());
  EXPECT_EQ(head_.steps_per_column(), 16u);
  EXPECT_EQ(Cells(rows_[0].smallest()), (std::vector<double>{0, 16, 32, 48}));
  EXPECT_EQ(Cells(rows_[0].largest()), (std::vector<double>{15, 31, 47, 63}));
  EXPECT_EQ(Cells(rows_[0].median()),
            (std::vector<double>{7.5, 23.5, 39.5, 55.5}));
}

TEST_F(QuerySeriesTest, WhatCannotBeAskedIsRefused) {
  AddStep(0, 0, {{"a", 1}});
  v1::QuerySeriesRequest request = Request();
  request.mutable_grid()->set_rows(v1::GRID_ROWS_RANK);
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(request)));
  request = Request();
  for (int i = 0; i < 17; ++i) request.add_lines(i);
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(request)));
  request = Request();
  request.mutable_grid()->set_statistic("Nrom");
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(request)));
  request = Request();
  request.mutable_grid()->set_run("other");
  EXPECT_TRUE(absl::IsNotFound(Ask(request)));
}

TEST_F(QuerySeriesTest, NamesAreListedWithoutALookAtTheSteps) {
  AddStep(0, 0,
          {{"Module.b.B.forward.0", 1},
           {"Functional.relu.0.forward", 1},
           {"Functional.relu.1.forward", 1},
           {"Module.a.A.forward.0", 1}});
  v1::ListModulesRequest request;
  request.set_run("run");
  request.set_rows(v1::GRID_ROWS_MODULE);
  auto names = ListModules(store_.get(), request);
  ASSERT_TRUE(names.ok());
  EXPECT_EQ(names->modules_size(), 0);
  EXPECT_EQ(names->unrolled_rank_steps(), 1u);
  RollupMaker(store_.get()).RollUpPending([] { return false; });
  names = ListModules(store_.get(), request);
  ASSERT_TRUE(names.ok());
  ASSERT_EQ(names->modules_size(), 3);
  EXPECT_EQ(names->modules(0).name(), "Module.b.B");
  EXPECT_EQ(names->modules(1).name(), "Functional.relu");
  EXPECT_EQ(names->modules(1).values(), 2u);
  EXPECT_EQ(names->unrolled_rank_steps(), 0u);
  EXPECT_FALSE(names->truncated());
  request.set_skip(1);
  request.set_limit(1);
  names = ListModules(store_.get(), request);
  ASSERT_EQ(names->modules_size(), 1);
  EXPECT_EQ(names->modules(0).name(), "Functional.relu");
  EXPECT_TRUE(names->truncated());
  request.set_skip(100);
  EXPECT_EQ(ListModules(store_.get(), request)->modules_size(), 0);
  request.set_rows(v1::GRID_ROWS_RANK);
  EXPECT_TRUE(
      absl::IsInvalidArgument(ListModules(store_.get(), request).status()));
}

}  // namespace
}  // namespace rankprobe
