// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/archive/packed_row.h"
#include "collector/archive/query_grid.h"
#include "collector/archive/query_series.h"
#include "collector/archive/rollup.h"
#include "collector/archive/step_summary.h"
#include "collector/archive/summary_reader.h"
#include "collector/store/index.h"
#include "collector/store/keys.h"
#include "collector/testing/frames.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::Frames;
using testing::MakeIdentity;

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

bool Same(const StepExtreme& a, const StepExtreme& b) {
  return a.count == b.count && a.non_finite == b.non_finite &&
         (a.value == b.value || (std::isnan(a.value) && std::isnan(b.value)));
}

TEST(SummaryTileTest, WhatIsReadBackIsWhatWasPutIn) {
  const std::vector<double> numbers = {1,      kNoNumber, 1e300, kEndless, 0.1,
                                       1e-310, 7,         -0.0,  3e38,     2};
  for (const int level : {1, 2}) {
    SummaryTileWriter writer(level);
    std::vector<std::pair<uint32_t, StepSummary>> put;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto slot = static_cast<uint32_t>(i * 7);
      const int64_t step =
          level == 1 ? 3 * 64 + slot : 3 * 4096 + slot * 64 + 9;
      StepSummary summary = OneStep(step, numbers[i]);
      if (i == 4) summary.norm = StepExtreme();
      if (i == 6) summary = StepSummary{.deleted = 1};
      if (i == 7) summary.incomplete = 1;
      writer.Put(slot, summary);
      put.emplace_back(slot, summary);
    }
    const std::string bytes = writer.Encode(3);
    const auto view = SummaryTileView::Parse(bytes, level, 3);
    ASSERT_TRUE(view.ok()) << view.status();
    // Every subset that is a stretch of the slots, single ones among them.
    for (size_t from = 0; from < put.size(); ++from) {
      StepSummary wanted;
      uint64_t slots = 0;
      for (size_t to = from; to < put.size(); ++to) {
        wanted.Join(put[to].second);
        slots |= uint64_t{1} << put[to].first;
        const StepSummary got = view->Reduce(slots, SummaryStat::kAll);
        EXPECT_EQ(got.steps, wanted.steps);
        EXPECT_EQ(got.deleted, wanted.deleted);
        EXPECT_EQ(got.incomplete, wanted.incomplete);
        EXPECT_EQ(got.made, wanted.made);
        EXPECT_EQ(got.values, wanted.values);
        EXPECT_EQ(got.first_step, wanted.first_step);
        EXPECT_EQ(got.last_step, wanted.last_step);
        EXPECT_TRUE(Same(got.norm, wanted.norm)) << from << " " << to;
        EXPECT_TRUE(Same(got.max, wanted.max)) << from << " " << to;
        EXPECT_TRUE(Same(got.min, wanted.min)) << from << " " << to;
      }
    }
    // No cut is taken for a whole row that says something else.
    for (size_t size = 0; size < bytes.size(); ++size) {
      const std::string part = bytes.substr(0, size);  // the view is of it
      const auto cut = SummaryTileView::Parse(part, level, 3);
      if (cut.ok()) cut->Reduce(~uint64_t{0}, SummaryStat::kAll);
    }
    std::string other = bytes;
    other[9] = 15;  // a count that would be a number
    other[10] = static_cast<char>(other[10] | 0x20);
    EXPECT_TRUE(
        absl::IsDataLoss(SummaryTileView::Parse(other, level, 3).status()));
  }
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

class SummaryTest : public testing::TempDirTest {
 protected:
  void SetUp() override {
    testing::TempDirTest::SetUp();
    store_ = OpenStore();
    maker_ = std::make_unique<SummaryMaker>(store_.get());
  }

  // Three calls; `end`: with the step's end.
  static void AddStep(Frames* frames, int64_t step, double value,
                      bool end = true, uint64_t order = 0) {
    v1::RecordBatch* const batch = frames->AddBatch(step);
    v1::Record* const begin = batch->add_records();
    begin->set_order(order++);
    begin->mutable_step_begin();
    for (int call = 0; call < 3; ++call) {
      v1::Record* const record = batch->add_records();
      record->set_order(order++);
      v1::CallPhase* const phase = record->mutable_call();
      phase->set_entry(absl::StrCat("Functional.f", call, ".0.forward"));
      phase->set_kind(v1::CALL_KIND_API_FORWARD);
      const auto fill = [](double number, v1::Value* into) {
        v1::TensorStats* const stats = into->mutable_tensor()->mutable_stats();
        stats->set_norm_f(number);
        stats->set_max_f(number * 2);
        stats->set_min_f(-number);
      };
      fill(value * 3, phase->mutable_input_args()->add_items());
      fill(value + call, phase->mutable_output()->add_items());
      if (call == 1) phase->mutable_output()->add_items()->mutable_tensor();
    }
    if (!end) return;
    v1::Record* const last = batch->add_records();
    last->set_order(order);
    last->mutable_step_end()->set_call_phases(3);
  }

  void Commit(const Frames& frames) {
    ASSERT_TRUE(store_->Commit(frames.All()).ok());
  }
  void Rest() { clock_.Advance(absl::Seconds(11)); }
  void RollUp() {
    RollupMaker(store_.get()).RollUpPending([] { return false; });
  }
  // All levels; rows that are made have the one above rest anew.
  void MakeSummaries() {
    RollUp();
    for (int level = 0; level < kSummaryLevels; ++level) {
      Rest();
      ASSERT_TRUE(maker_->MakePending([] { return false; }).ok());
    }
  }
  void Reopen() {
    maker_.reset();
    store_.reset();
    store_ = OpenStore();
    maker_ = std::make_unique<SummaryMaker>(store_.get());
  }
  // Run "run" with the one process 1 as an older collector left it, without the
  // rows of these prefixes.
  void MakeOlder(const std::vector<std::string>& without) {
    maker_.reset();
    store_.reset();
    {
      IndexOptions index_options;
      index_options.directory = root_ + "/data/index";
      index_options.file_system = file_system_.get();
      auto index = OpenLevelDbIndex(index_options);
      ASSERT_TRUE(index.ok());
      auto batch = (*index)->NewBatch();
      for (const std::string& prefix : without) {
        ASSERT_TRUE((*index)
                        ->Scan(prefix,
                               [&](absl::string_view key, absl::string_view) {
                                 batch->Delete(key);
                                 return absl::OkStatus();
                               })
                        .ok());
      }
      v1::RunRow row;
      ASSERT_TRUE(row.ParseFromString(**(*index)->Get(keys::Run("run"))));
      row.clear_summarised();
      batch->Put(keys::Run("run"), row.SerializeAsString());
      v1::IncarnationRow sender;
      const std::string sender_key = keys::Incarnation(row.id(), 1);
      ASSERT_TRUE(sender.ParseFromString(**(*index)->Get(sender_key)));
      sender.clear_lowest_step();
      sender.clear_highest_step();
      batch->Put(sender_key, sender.SerializeAsString());
      batch->Put(keys::kSchema, "5");
      ASSERT_TRUE((*index)->Write(std::move(batch), /*sync=*/true).ok());
    }
    store_ = OpenStore();
    maker_ = std::make_unique<SummaryMaker>(store_.get());
  }
  size_t Tiles(int level, uint64_t incarnation) {
    size_t tiles = 0;
    const ProcessRange all{incarnation, 0, INT64_MAX};
    EXPECT_TRUE(store_
                    ->ForEachTileIn(*store_->RunNumber("run"), level, {&all, 1},
                                    [&](size_t, uint64_t, absl::string_view) {
                                      ++tiles;
                                      return absl::OkStatus();
                                    })
                    .ok());
    return tiles;
  }

  struct Answer {
    v1::GridHead head;
    std::string text;
  };
  // `each`: from the values of each step.
  Answer Ask(v1::QueryGridRequest request, bool each) {
    request.set_run("run");
    request.set_rows(v1::GRID_ROWS_RANK);
    if (each) request.set_match("*");
    Answer answer;
    const absl::Status status = QueryGrid(
        store_.get(), request, [] { return false; },
        [&](v1::GridReply reply) {
          if (reply.has_head()) {
            answer.head = reply.head();
            reply.mutable_head()->clear_from_summaries();
            reply.mutable_head()->clear_rolled_up_rank_steps();
          }
          absl::StrAppend(&answer.text, reply.ShortDebugString(), "\n");
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(answer.head.from_summaries(), !each);
    return answer;
  }

  // What summaries say is what the values say, in each of the three questions,
  // with much and with little room, of all and of some.
  void ExpectTheSame() {
    for (int kind = 0; kind < 3; ++kind) {
      for (const uint32_t cells : {8u, 40u, 333u, 100000u}) {
        for (int part = 0; part < 4; ++part) {
          v1::QueryGridRequest request;
          request.set_max_cells(cells);
          if (kind > 0) {
            request.set_statistic(kind == 1 ? "Max" : "Min");
            request.set_values(v1::GRID_VALUES_ALL);
            if (kind == 2) request.set_reducer(v1::GRID_REDUCER_MIN);
          }
          if (part % 2 == 1) {
            request.set_first_step(5);
            request.set_last_step(203);
          }
          if (part >= 2) {
            request.add_ranks(0);
            request.add_ranks(2);
          }
          EXPECT_EQ(Ask(request, false).text, Ask(request, true).text)
              << request.ShortDebugString();
        }
      }
    }
  }

  std::unique_ptr<Store> store_;
  std::unique_ptr<SummaryMaker> maker_;
};

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
  // It goes on before where it had come to, and is the newer one there.
  for (int64_t step = 140; step < 260; ++step)
    AddStep(&restarted, step, value(step, 5));
  for (int64_t step = 99; step < 260; ++step)
    AddStep(&late, step, value(step, 1));
  for (int64_t step = 0; step < 260; ++step) {
    // Out of order, and with holes that the others fill.
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
  ExpectTheSame();  // heads alone
  EXPECT_EQ(Tiles(1, 20), 0u);
  MakeSummaries();
  EXPECT_EQ(Tiles(1, 20), 5u);
  EXPECT_EQ(Tiles(2, 20), 1u);
  EXPECT_EQ(Tiles(3, 20), 1u);
  ExpectTheSame();

  // A step that is deleted takes the rows with it that count it.
  DeleteOptions options;
  options.run = "run";
  options.steps = {64, 65, 131};
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
  // Whoever draws a picture may leave it out, and is told.
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

// A row that passes for one, and says that its steps are elsewhere.
TEST_F(SummaryTest, ARowOfOtherStepsIsDamage) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (int64_t step = 0; step < 200; ++step) AddStep(&frames, step, 1);
  Commit(frames);
  MakeSummaries();
  v1::QueryGridRequest request;
  request.set_run("run");
  request.set_rows(v1::GRID_ROWS_RANK);
  request.set_max_cells(4);
  EXPECT_GT(Ask(request, false).head.steps_per_column(), 63u);
  const uint32_t run = *store_->RunNumber("run");
  for (const int64_t elsewhere : {int64_t{1000000}, int64_t{1} << 40}) {
    ASSERT_TRUE(store_
                    ->WriteTile({run, 2, 1, 0},
                                [&] {
                                  SummaryTileWriter writer(2);
                                  writer.Put(0, OneStep(elsewhere, 1));
                                  return writer.Encode(0);
                                })
                    .ok());
    EXPECT_TRUE(absl::IsDataLoss(QueryGrid(
        store_.get(), request, [] { return false; },
        [](const v1::GridReply&) { return absl::OkStatus(); })));
  }
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
  // It goes on after all.
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

// Of the processes of "run", as the store knows it, as its index has it, and as
// another process of the collector reads it.
TEST_F(SummaryTest, WhatIsNotRolledUpIsKnownWithoutALookAtTheIndex) {
  using Steps = std::vector<std::pair<int64_t, uint64_t>>;
  const auto known = [&] {
    Steps steps;
    EXPECT_TRUE(store_
                    ->ForEachUnrolled(*store_->RunNumber("run"),
                                      [&](int64_t step, uint64_t incarnation) {
                                        steps.emplace_back(step, incarnation);
                                        return absl::OkStatus();
                                      })
                    .ok());
    return steps;
  };
  const auto expect = [&](const Steps& wanted) {
    EXPECT_EQ(known(), wanted);
    const uint32_t run = *store_->RunNumber("run");
    maker_.reset();
    store_.reset();
    Steps stored;
    {
      IndexOptions options;
      options.directory = root_ + "/data/index";
      options.file_system = file_system_.get();
      auto index = OpenLevelDbIndex(options);
      ASSERT_TRUE(index.ok());
      ASSERT_TRUE((*index)
                      ->Scan(keys::TableOfRun('u', run),
                             [&](absl::string_view key, absl::string_view) {
                               const auto step = keys::ParseStep(key);
                               stored.emplace_back(step->step,
                                                   step->incarnation);
                               return absl::OkStatus();
                             })
                      .ok());
    }
    EXPECT_EQ(stored, wanted);
    store_ = OpenStore();
    maker_ = std::make_unique<SummaryMaker>(store_.get());
    EXPECT_EQ(known(), wanted);
  };
  Frames other(MakeIdentity("other", 0, 3)), one(MakeIdentity("run", 0, 1)),
      two(MakeIdentity("run", 1, 2));
  AddStep(&other, 0, 1);
  Commit(other);
  for (int64_t step = 0; step < 4; ++step) {
    AddStep(&one, step, 1);
    AddStep(&two, step, 1, /*end=*/step != 2);
  }
  two.AddBatch(9);  // nothing comes of it
  Commit(one);
  Commit(two);
  expect(
      {{0, 1}, {0, 2}, {1, 1}, {1, 2}, {2, 1}, {2, 2}, {3, 1}, {3, 2}, {9, 2}});
  RollUp();
  expect({{9, 2}});
  RollUp();
  expect({{9, 2}});
  // More of two steps, one of them with an end, and a new one.
  size_t before = one.size();
  AddStep(&one, 1, 5, /*end=*/false, /*order=*/50);
  AddStep(&one, 5, 5, /*end=*/false);
  ASSERT_TRUE(store_->Commit(one.Range(before, one.size())).ok());
  before = two.size();
  AddStep(&two, 2, 5, /*end=*/true, /*order=*/50);
  AddStep(&two, 9, 5, /*end=*/true);
  ASSERT_TRUE(store_->Commit(two.Range(before, two.size())).ok());
  RollUp();
  EXPECT_EQ(known(), (Steps{{5, 1}}));
  Rest();
  RollUp();
  expect({});
  before = one.size();
  AddStep(&one, 6, 5);
  AddStep(&one, 7, 5, /*end=*/false);
  AddStep(&one, 8, 5);
  ASSERT_TRUE(store_->Commit(one.Range(before, one.size())).ok());
  const auto pending = store_->PendingRollups(10);
  ASSERT_EQ(pending.size(), 2u);
  store_->SetRollupAside(pending[0]);
  expect({{6, 1}, {7, 1}, {8, 1}});
  store_->SetRollupAside(store_->PendingRollups(1)[0]);
  DeleteOptions options;
  options.run = "run";
  options.steps = {6, 7};
  ASSERT_TRUE(store_->Delete(options).ok());
  expect({{8, 1}});
  RollUp();
  expect({});
}

// A run of a collector that knew of no summaries is read as before until it is
// reindexed.
TEST_F(SummaryTest, OlderRunsAreReindexed) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (int64_t step = 0; step < 70; ++step) AddStep(&frames, step, step);
  AddStep(&frames, 70, 70, /*end=*/false);
  Commit(frames);
  DeleteOptions options;
  options.run = "run";
  options.steps = {3};
  ASSERT_TRUE(store_->Delete(options).ok());
  MakeOlder({"u", "h", "j"});
  v1::ListModulesRequest names;
  names.set_run("run");
  names.set_rows(v1::GRID_ROWS_MODULE);
  EXPECT_EQ(ListModules(store_.get(), names)->unrolled_rank_steps(), 70u);
  v1::QueryGridRequest request;
  request.set_run("run");
  request.set_rows(v1::GRID_ROWS_RANK);
  bool from_summaries = true;
  ASSERT_TRUE(QueryGrid(
                  store_.get(), request, [] { return false; },
                  [&](const v1::GridReply& reply) {
                    if (reply.has_head()) {
                      from_summaries = reply.head().from_summaries();
                      EXPECT_EQ(reply.head().rank_steps(), 70u);
                    }
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_FALSE(from_summaries);
  const auto report = store_->QueueRollups("run");
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->queued(), 70u);
  ExpectTheSame();
  MakeSummaries();
  ExpectTheSame();
  const v1::GridHead head = Ask({}, false).head;
  EXPECT_EQ(head.rolled_up_rank_steps(), 70u);
  EXPECT_EQ(head.deleted_rank_steps(), 1u);
  EXPECT_EQ(store_->QueueRollups("run")->queued(), 0u);
}

// Its deleted steps have no heads, so that rows that are made before would not
// count them.
TEST_F(SummaryTest, DeletedStepsOfOlderRunsAreCounted) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (int64_t step = 0; step < 70; ++step) AddStep(&frames, step, step);
  Commit(frames);
  RollUp();
  DeleteOptions options;
  options.run = "run";
  options.steps = {3, 66};
  ASSERT_TRUE(store_->Delete(options).ok());
  const std::string heads = keys::RollupHeads(*store_->RunNumber("run"), 1);
  MakeOlder({"u", "j", keys::AtStep(heads, 3), keys::AtStep(heads, 66)});
  MakeSummaries();
  EXPECT_EQ(Tiles(1, 1), 0u);
  EXPECT_EQ(Tiles(2, 1), 0u);
  // It goes on; what is rolled up now has rows.
  const size_t before = frames.size();
  AddStep(&frames, 70, 70);
  ASSERT_TRUE(store_->Commit(frames.Range(before, frames.size())).ok());
  v1::ListModulesRequest names;
  names.set_run("run");
  names.set_rows(v1::GRID_ROWS_MODULE);
  EXPECT_EQ(ListModules(store_.get(), names)->unrolled_rank_steps(), 1u);
  MakeSummaries();
  EXPECT_EQ(ListModules(store_.get(), names)->unrolled_rank_steps(), 0u);
  EXPECT_EQ(Tiles(1, 1), 1u);
  EXPECT_EQ(store_->QueueRollups("run")->queued(), 0u);
  EXPECT_EQ(Tiles(1, 1), 0u);
  EXPECT_EQ(Ask({}, false).head.deleted_rank_steps(), 2u);
  ExpectTheSame();
  MakeSummaries();
  EXPECT_EQ(Tiles(1, 1), 2u);
  EXPECT_EQ(Tiles(2, 1), 1u);
  EXPECT_EQ(Ask({}, false).head.deleted_rank_steps(), 2u);
  ExpectTheSame();
}

}  // namespace
}  // namespace rankprobe
