// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/rollup.h"

#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/archive/query_grid.h"
#include "collector/archive/rollup_block.h"
#include "collector/store/index.h"
#include "collector/store/keys.h"
#include "collector/testing/frames.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::Frames;
using testing::MakeIdentity;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

class RollupTest : public testing::TempDirTest {
 protected:
  void SetUp() override {
    testing::TempDirTest::SetUp();
    store_ = OpenStore();
  }
  // Closes the store first, because LevelDB would still write while its files
  // are deleted.
  void TearDown() override {
    store_.reset();
    testing::TempDirTest::TearDown();
  }

  struct Call {
    std::string entry;
    // One number determines all statistics of the output; the input has half.
    double value = 0;
  };
  // `end`: with the step's end.
  static void AddStep(Frames* frames, int64_t step,
                      const std::vector<Call>& calls, bool end = true) {
    v1::RecordBatch* const batch = frames->AddBatch(step);
    batch->add_records()->mutable_step_begin();
    uint64_t order = 1;
    const auto fill = [](double value, v1::Value* into) {
      v1::TensorSummary* const tensor = into->mutable_tensor();
      v1::TensorStats* const stats = tensor->mutable_stats();
      stats->set_norm_f(value);
      stats->set_max_f(value * 2);
      stats->set_min_f(-value);
      if (value > 3) stats->set_mean_f(value / 3);
      if (value > 2) {
        v1::ExtraStatistic* const extra = tensor->add_extra();
        extra->set_id(v1::STATISTIC_ID_NAN_COUNT);
        extra->set_i(7);
      }
    };
    for (const Call& call : calls) {
      v1::Record* const record = batch->add_records();
      record->set_order(order++);
      v1::CallPhase* const phase = record->mutable_call();
      phase->set_entry(call.entry);
      phase->set_kind(v1::CALL_KIND_API_FORWARD);
      fill(call.value / 2, phase->mutable_input_args()->add_items());
      fill(call.value, phase->mutable_output()->add_items());
      phase->mutable_output()->add_items()->mutable_tensor();
    }
    if (!end) return;
    v1::Record* const last = batch->add_records();
    last->set_order(order);
    last->mutable_step_end()->set_call_phases(calls.size());
  }
  static std::vector<Call> Calls(size_t count, double scale) {
    std::vector<Call> calls;
    for (size_t i = 0; i < count; ++i)
      calls.push_back({absl::StrCat("Functional.f", i, ".0.forward"),
                       scale * static_cast<double>(i + 1)});
    return calls;
  }
  void Commit(const Frames& frames) {
    ASSERT_TRUE(store_->Commit(frames.All()).ok());
  }
  RollupMaker::Report RollUp() {
    return RollupMaker(store_.get()).RollUpPending([] { return false; });
  }
  size_t Heads(uint64_t incarnation) {
    size_t heads = 0;
    const auto run = store_->RunNumber("run");
    EXPECT_TRUE(run.ok());
    const ProcessRange all{incarnation, 0, INT64_MAX};
    EXPECT_TRUE(
        store_
            ->ForEachHeadIn(*run, {&all, 1},
                            [&](size_t, int64_t, const v1::RollupHead& head) {
                              heads += head.deleted() ? 0 : 1;
                              return absl::OkStatus();
                            })
            .ok());
    return heads;
  }
  // Counts steps and blocks that have rows.
  size_t Blocks(uint32_t run, uint64_t incarnation) {
    std::set<std::pair<uint32_t, int64_t>> blocks;
    for (const uint32_t first : {0u, kFirstGivenValue / kRollupBlockValues}) {
      for (uint32_t block = first; block < first + 4; ++block) {
        for (uint8_t stat = 0; stat < 16; ++stat) {
          EXPECT_TRUE(store_
                          ->ForEachRollupColumn(
                              run, incarnation, block, stat, 0, INT64_MAX,
                              [&](int64_t step, absl::string_view) {
                                blocks.emplace(block, step);
                                return absl::OkStatus();
                              })
                          .ok());
        }
      }
    }
    return blocks.size();
  }
  // Queries every statistic, kind of row, values and reducer; returns the
  // complete answers.
  std::vector<std::string> AskAll(const std::string& match = "") {
    std::vector<std::string> answers;
    for (const StatInfo& stat : kStatInfo) {
      for (int rows = 0; rows < 4; ++rows) {
        for (int kind = 0; kind < 9; ++kind) {
          v1::QueryGridRequest request;
          request.set_run("run");
          request.set_match(match);
          request.set_statistic(std::string(stat.key));
          request.set_rows(static_cast<v1::GridRows>(rows));
          request.set_values(static_cast<v1::GridValues>(kind % 3));
          request.set_reducer(static_cast<v1::GridReducer>(kind / 3));
          std::string& answer = answers.emplace_back();
          const absl::Status status = QueryGrid(
              store_.get(), request, [] { return false; },
              [&](v1::GridReply reply) {
                if (reply.has_head()) {
                  rolled_up_ = reply.head().rolled_up_rank_steps();
                  reply.mutable_head()->clear_rolled_up_rank_steps();
                }
                absl::StrAppend(&answer, reply.ShortDebugString(), "\n");
                return absl::OkStatus();
              });
          EXPECT_TRUE(status.ok()) << status;
        }
      }
    }
    return answers;
  }

  std::unique_ptr<Store> store_;
  // Rank-steps that the last query read from rollups.
  uint64_t rolled_up_ = 0;
};

TEST_F(RollupTest, AnswersAreThoseOfTheRecords) {
  Frames first(MakeIdentity("run", 0, 1)), late(MakeIdentity("run", 1, 2)),
      restarted(MakeIdentity("run", 0, 3)),
      unranked(MakeIdentity("run", -1, 4));
  // Steps out of order, a hole at 3, call sets that change and names twice.
  for (const int step : {0, 2, 1, 4})
    AddStep(&first, step, Calls(70 + 5 * static_cast<size_t>(step), step + 1));
  std::vector<Call> wild = Calls(80, 1e38);
  wild[3].value = kNotANumber;
  wild[4].value = kInfinite;
  wild[5].value = 1e300;
  wild[79].entry = wild[78].entry + "x";
  std::swap(wild[0], wild[70]);
  AddStep(&late, 4, wild);
  AddStep(&late, 5, {{"a", kNotANumber}, {"b", kNotANumber}});
  clock_.Advance(absl::Seconds(1));
  AddStep(&restarted, 4, Calls(3, 0.1));
  AddStep(&unranked, 2, Calls(2, 5));
  AddStep(&restarted, 6, Calls(3, 9), /*end=*/false);
  Commit(first);
  Commit(late);
  clock_.Advance(absl::Seconds(1));
  Commit(restarted);
  Commit(unranked);
  const std::vector<std::string> of_records = AskAll();
  const std::vector<std::string> some = AskAll("*f7*.output.0");
  EXPECT_EQ(rolled_up_, 0u);
  const RollupMaker::Report report = RollUp();
  EXPECT_EQ(report.steps, 8u);
  EXPECT_EQ(report.aside, 0u) << report.why;
  EXPECT_EQ(Heads(1), 4u);
  EXPECT_EQ(Heads(2), 2u);
  // A step without its end waits for it.
  EXPECT_EQ(Heads(3), 1u);
  EXPECT_EQ(AskAll(), of_records);
  // For rank 0 at step 4 one incarnation counts; step 6 has not ended.
  EXPECT_EQ(rolled_up_, 7u);
  EXPECT_EQ(AskAll("*f7*.output.0"), some);
}

TEST_F(RollupTest, QuestionsReadTheRollupAndNotTheRecords) {
  Frames frames(MakeIdentity("run", 0, 1));
  AddStep(&frames, 0, Calls(2, 1));
  Commit(frames);
  RollUp();
  // A rollup with another number shows where an answer comes from.
  const uint32_t run = *store_->RunNumber("run");
  RollupRows rows;
  const ProcessRange first{1, 0, 0};
  ASSERT_TRUE(
      store_
          ->ForEachHeadIn(run, {&first, 1},
                          [&](size_t, int64_t, const v1::RollupHead& head) {
                            rows.head = head;
                            return absl::OkStatus();
                          })
          .ok());
  RollupBlockWriter writer;
  writer.Put(0, kNorm, 4711);
  writer.AppendTo(0, &rows.columns);
  PendingRollup step{.run_number = run,
                     .key = {.run = "run", .incarnation = 1}};
  ASSERT_TRUE(store_->WriteRollup(step, rows).ok());
  const std::string from_rollup = AskAll()[kNorm * 36];
  EXPECT_NE(from_rollup.find("4711"), std::string::npos) << from_rollup;
  // A rollup of other records is not valid.
  rows.head.set_records(rows.head.records() - 1);
  ASSERT_TRUE(store_->WriteRollup(step, rows).ok());
  EXPECT_EQ(AskAll()[kNorm * 36].find("4711"), std::string::npos);
}

TEST_F(RollupTest, RecordsThatComeLateAreRolledUpToo) {
  Frames frames(MakeIdentity("run", 0, 1));
  AddStep(&frames, 0, Calls(2, 1));
  Commit(frames);
  ASSERT_EQ(RollUp().steps, 1u);
  EXPECT_EQ(RollUp().steps, 0u);
  v1::Record* const record = frames.AddBatch(0)->add_records();
  record->set_order(9);
  record->mutable_call()->set_entry("late");
  record->mutable_call()
      ->mutable_output()
      ->add_items()
      ->mutable_tensor()
      ->mutable_stats()
      ->set_norm_f(1e38);
  ASSERT_TRUE(store_->Commit(frames.Range(1, 2)).ok());
  const std::vector<std::string> of_records = AskAll();
  EXPECT_NE(of_records[kNorm * 36].find("late"), std::string::npos);
  EXPECT_EQ(RollUp().steps, 1u);
  EXPECT_EQ(AskAll(), of_records);
}

TEST_F(RollupTest, WhatWaitedAtACrashIsRolledUpAfterwards) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (int step = 0; step < 3; ++step) AddStep(&frames, step, Calls(70, 1));
  Commit(frames);
  bool cancelled = false;
  RollupMaker maker(store_.get());
  maker.RollUpPending([&] { return std::exchange(cancelled, true); });
  EXPECT_EQ(Heads(1), 1u);
  const std::vector<std::string> before = AskAll();
  store_.reset();
  store_ = OpenStore();
  EXPECT_EQ(AskAll(), before);
  EXPECT_EQ(RollUp().steps, 2u);
  EXPECT_EQ(Heads(1), 3u);
  EXPECT_EQ(AskAll(), before);
  // Ids of names continue where they ended.
  AddStep(&frames, 3, Calls(140, 1));
  ASSERT_TRUE(store_->Commit(frames.Range(3, 4)).ok());
  const std::vector<std::string> of_records = AskAll();
  store_.reset();
  store_ = OpenStore();
  EXPECT_EQ(RollUp().steps, 1u);
  EXPECT_EQ(AskAll(), of_records);
}

TEST_F(RollupTest, GoesWithItsStepAndItsRun) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (int step = 0; step < 3; ++step) AddStep(&frames, step, Calls(70, 1));
  Commit(frames);
  RollUp();
  const uint32_t run = *store_->RunNumber("run");
  // 140 outputs and 70 inputs in blocks of 64.
  EXPECT_EQ(Blocks(run, 1), 3u * (3 + 2));
  DeleteOptions options{.run = "run", .steps = std::set<int64_t>{1}};
  ASSERT_TRUE(store_->Delete(options).ok());
  EXPECT_EQ(Heads(1), 2u);
  EXPECT_EQ(Blocks(run, 1), 2u * (3 + 2));
  // A maker that is late does not restore it.
  PendingRollup late{.run_number = run,
                     .key = {.run = "run", .step = 1, .incarnation = 1}};
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->WriteRollup(late, {})));
  options.steps.reset();
  ASSERT_TRUE(store_->Delete(options).ok());
  EXPECT_EQ(Blocks(run, 1), 0u);
  size_t names = 0;
  ASSERT_TRUE(store_
                  ->ForEachRollupName(run,
                                      [&](uint32_t, const v1::RollupName&) {
                                        ++names;
                                        return absl::OkStatus();
                                      })
                  .ok());
  EXPECT_EQ(names, 0u);
  late.key.step = 0;
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->WriteRollup(late, {})));
  // A new run of the same name is independent.
  Frames again(MakeIdentity("run", 0, 1));
  AddStep(&again, 0, Calls(2, 3));
  Commit(again);
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->WriteRollup(late, {})));
  const std::vector<std::string> of_records = AskAll();
  EXPECT_EQ(RollUp().steps, 1u);
  EXPECT_EQ(AskAll(), of_records);
}

}  // namespace
}  // namespace rankprobe
