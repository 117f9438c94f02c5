// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/escaping.h"
#include "collector/archive/packed_row.h"
#include "collector/archive/testing/summary_fixture.h"

namespace rankprobe {
namespace {

using testing::Frames;
using testing::MakeIdentity;
using testing::SummaryTest;

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kEndless = std::numeric_limits<double>::infinity();

StepSummary OneStep(int64_t step, double norm) {
  StepSummary summary;
  summary.first_step = summary.last_step = step;
  summary.steps = 1;
  summary.made = 3;
  summary.values = 4;
  summary.norm.Add(norm, /*smallest=*/false);
  summary.max.Add(norm * 2, /*smallest=*/false);
  summary.min.Add(-norm, /*smallest=*/true);
  return summary;
}

TEST(PackedRowTest, WhatAFloatCannotHoldStaysADouble) {
  v1::GridRow row;
  for (const double number : {0.1, 3e38, kNoNumber, -kEndless, 0.0, 5.0}) {
    row.add_cells(number);
    row.add_counts(number == 5.0 ? 0 : 1);
  }
  PackRow(&row);
  EXPECT_EQ(row.cells_size(), 0);
  ASSERT_EQ(row.packed().size(), 24u);
  float back[6];
  std::memcpy(back, row.packed().data(), sizeof(back));
  EXPECT_EQ(back[0], 0.1f);
  EXPECT_EQ(back[1], 3e38f);
  EXPECT_TRUE(std::isnan(back[2]));
  EXPECT_EQ(back[3], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(back[4], 0.0f);
  EXPECT_TRUE(std::isnan(back[5]));
  for (const double number : {1e300, -1e39, 1e-300}) {
    v1::GridRow wide;
    wide.add_cells(1);
    wide.add_cells(number);
    wide.add_counts(1);
    wide.add_counts(1);
    PackRow(&wide);
    EXPECT_TRUE(wide.packed().empty());
    ASSERT_EQ(wide.cells_size(), 2);
    EXPECT_EQ(wide.cells(1), number);
  }
}

TEST_F(SummaryTest, SayWhatTheValuesSay) {
  Frames first(MakeIdentity("run", 0, 10)), late(MakeIdentity("run", 1, 30)),
      holes(MakeIdentity("run", 2, 20)), restarted(MakeIdentity("run", 0, 5)),
      unranked(MakeIdentity("run", -1, 40));
  const auto value = [](int64_t step, int rank) {
    return step == 130 && rank == 2 ? kNoNumber
           : step == 131            ? kEndless
           : step % 50 == 7         ? 1e38
           : step % 61 == 3         ? 1e300
                                    : std::sin(0.1 * (step + rank)) * rank;
  };
  for (int64_t step = 0; step < 150; ++step)
    AddStep(&first, step, value(step, 0));
  // It continues before its last step, and is the newer one there.
  for (int64_t step = 140; step < 260; ++step)
    AddStep(&restarted, step, value(step, 5));
  for (int64_t step = 99; step < 260; ++step)
    AddStep(&late, step, value(step, 1));
  for (int64_t step = 0; step < 260; ++step) {
    // Out of order, and with gaps that the other process fills.
    const int64_t other = step ^ 1;
    if (other % 9 != 4) AddStep(&holes, other, value(other, 2));
  }
  AddStep(&unranked, 259, kNoNumber);
  Commit(first);
  Commit(late);
  Commit(holes);
  Commit(unranked);
  clock_.Advance(absl::Seconds(1));
  Commit(restarted);
  ExpectTheSame();  // nothing is rolled up
  RollUp();
  ExpectTheSame();  // only heads
  EXPECT_EQ(Tiles(1, 20), 0u);
  MakeSummaries();
  EXPECT_EQ(Tiles(1, 20), 5u);
  EXPECT_EQ(Tiles(2, 20), 1u);
  EXPECT_EQ(Tiles(3, 20), 1u);
  ExpectTheSame();

  // The deletion of a step also deletes the rows that count it.
  DeleteOptions options{.run = "run", .steps = std::set<int64_t>{64, 65, 131}};
  ASSERT_TRUE(store_->Delete(options).ok());
  EXPECT_EQ(Tiles(1, 20), 3u);
  EXPECT_EQ(Tiles(2, 20), 0u);
  ExpectTheSame();
  EXPECT_GT(Ask({}, false).head.deleted_rank_steps(), 0u);
  MakeSummaries();
  EXPECT_EQ(Tiles(2, 20), 1u);
  ExpectTheSame();
  Reopen();
  ExpectTheSame();
}

TEST_F(SummaryTest, ALateRecordIsSeenAtOnce) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (int64_t step = 0; step < 130; ++step) AddStep(&frames, step, 1);
  Commit(frames);
  MakeSummaries();
  const size_t before = frames.size();
  AddStep(&frames, 70, 500, /*end=*/false, /*order=*/100);
  ASSERT_TRUE(store_->Commit(frames.Range(before, frames.size())).ok());
  v1::QueryGridRequest request;
  request.set_max_cells(2);
  const Answer now = Ask(request, false);
  EXPECT_NE(now.text.find("502"), std::string::npos) << now.text;
  EXPECT_EQ(now.head.rolled_up_rank_steps(), 129u);
  ExpectTheSame();
  // A client that draws an overview may leave it out, and is informed.
  request.set_skip_unrolled(true);
  const Answer skipped = Ask(request, false);
  EXPECT_EQ(skipped.head.skipped_rank_steps(), 1u);
  EXPECT_EQ(skipped.head.rank_steps(), 129u);
  EXPECT_EQ(skipped.text.find("502"), std::string::npos);
  RollUp();
  EXPECT_EQ(Tiles(1, 1), 2u);
  EXPECT_EQ(Tiles(2, 1), 0u);
  ExpectTheSame();
  MakeSummaries();
  EXPECT_EQ(Tiles(1, 1), 3u);
  ExpectTheSame();
}

// A row that is valid, but claims to be of other steps.
TEST_F(SummaryTest, WhereARowIsOfOtherStepsTheRecordsAnswer) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (int64_t step = 0; step < 200; ++step) AddStep(&frames, step, 1);
  Commit(frames);
  MakeSummaries();
  v1::QueryGridRequest request;
  request.set_run("run");
  request.set_rows(v1::GRID_ROWS_RANK);
  request.set_max_cells(4);
  const Answer sound = Ask(request, false);
  EXPECT_GT(sound.head.steps_per_column(), 63u);
  const uint32_t run = *store_->RunNumber("run");
  for (const int64_t elsewhere : {int64_t{1000000}, int64_t{1} << 40}) {
    ASSERT_TRUE(store_
                    ->WriteTile({run, 2, 1, 0},
                                [&](bool) {
                                  SummaryTileWriter writer(2);
                                  writer.Put(0, OneStep(elsewhere, 1));
                                  return writer.Encode(0);
                                })
                    .ok());
    const Answer now = Ask(request);
    EXPECT_EQ(now.text, sound.text);
    EXPECT_FALSE(now.head.from_summaries());
  }
}

// For each table, rows that no reader can parse.
TEST_F(SummaryTest, DamageOfWhatIsDerivedTakesNothingFromAnAnswer) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (int64_t step = 0; step < 200; ++step) AddStep(&frames, step, 1.5);
  Commit(frames);
  MakeSummaries();
  v1::QueryGridRequest ranks, values;
  ranks.set_max_cells(40);
  values.set_match("*");
  values.set_statistic("Max");
  const std::string of_ranks = Ask(ranks).text, of_values = Ask(values).text;
  const uint32_t run = *store_->RunNumber("run");
  EXPECT_EQ(Ask(values).head.rolled_up_rank_steps(), 200u);
  for (const std::string& table :
       {keys::SummaryLevel(run, 2), keys::SummaryLevel(run, 1),
        keys::TableOfRun('a', run), keys::TableOfRun('o', run),
        keys::TableOfRun('n', run)}) {
    size_t damaged = 0;
    EditIndex([&](Index* index, IndexBatch* batch) {
      ASSERT_TRUE(index
                      ->Scan(table,
                             [&](absl::string_view key, absl::string_view) {
                               batch->Put(key, "\xff");
                               ++damaged;
                               return absl::OkStatus();
                             })
                      .ok());
    });
    EXPECT_GT(damaged, 0u) << absl::CEscape(table);
    EXPECT_EQ(Ask(ranks).text, of_ranks) << absl::CEscape(table);
    EXPECT_EQ(Ask(values).text, of_values) << absl::CEscape(table);
  }
  EXPECT_EQ(Ask(values).head.rolled_up_rank_steps(), 0u);
}

TEST_F(SummaryTest, AStepThatNeverEndsIsRolledUpWhenItRests) {
  Frames frames(MakeIdentity("run", 0, 1));
  AddStep(&frames, 0, 1);
  AddStep(&frames, 1, 2, /*end=*/false);
  Commit(frames);
  RollUp();
  EXPECT_EQ(Ask({}, false).head.rolled_up_rank_steps(), 1u);
  ExpectTheSame();
  Rest();
  RollUp();
  const v1::GridHead head = Ask({}, false).head;
  EXPECT_EQ(head.rolled_up_rank_steps(), 2u);
  EXPECT_EQ(head.incomplete_rank_steps(), 1u);
  // The process continues.
  const size_t before = frames.size();
  AddStep(&frames, 1, 9, /*end=*/true, /*order=*/50);
  ASSERT_TRUE(store_->Commit(frames.Range(before, frames.size())).ok());
  ExpectTheSame();
  RollUp();
  EXPECT_EQ(Ask({}, false).head.rolled_up_rank_steps(), 2u);
  ExpectTheSame();
}

TEST_F(SummaryTest, RowsThatACrashLeftUndoneAreMade) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (int64_t step = 0; step < 200; ++step) AddStep(&frames, step, step);
  Commit(frames);
  RollUp();
  Reopen();
  EXPECT_EQ(Tiles(1, 1), 0u);
  MakeSummaries();
  EXPECT_EQ(Tiles(1, 1), 4u);
  EXPECT_EQ(Tiles(2, 1), 1u);
  ExpectTheSame();
}

}  // namespace
}  // namespace rankprobe
