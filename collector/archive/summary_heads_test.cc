// SPDX-License-Identifier: Apache-2.0
// Heads that move into rows of summaries and out of them.
#include <atomic>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collector/archive/testing/summary_fixture.h"

namespace rankprobe {
namespace {

using testing::Frames;
using testing::MakeIdentity;
using testing::SummaryTest;

std::vector<int64_t> Steps(int64_t first, int64_t last) {
  std::vector<int64_t> steps;
  for (int64_t step = first; step <= last; ++step) steps.push_back(step);
  return steps;
}

class SummaryHeadsTest : public SummaryTest {
 protected:
  // Commits steps 0 to 199 of process 1.
  void Commit200() {
    frames_ = std::make_unique<Frames>(MakeIdentity("run", 0, 1));
    for (int64_t step = 0; step < 200; ++step)
      AddStep(frames_.get(), step, static_cast<double>(step));
    Commit(*frames_);
  }
  void Make200() {
    Commit200();
    MakeSummaries();
  }
  void CommitNew(size_t before) {
    ASSERT_TRUE(store_->Commit(frames_->Range(before, frames_->size())).ok());
  }
  // Returns the steps of process 1 as queries see them, with the contents of
  // their heads.
  std::vector<std::pair<int64_t, std::string>> Heads() {
    std::vector<std::pair<int64_t, std::string>> heads;
    const ProcessRange all{1, 0, std::numeric_limits<int64_t>::max()};
    EXPECT_TRUE(store_
                    ->ForEachHeadIn(
                        *store_->RunNumber("run"), {&all, 1},
                        [&](size_t, int64_t step, const v1::RollupHead& head) {
                          heads.emplace_back(step, head.ShortDebugString());
                          return absl::OkStatus();
                        })
                    .ok());
    return heads;
  }
  void ExpectSound() {
    const auto report = store_->Verify(
        {}, [](const v1::VerifyReport&) { return absl::OkStatus(); });
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->fault_count(), 0u) << report->ShortDebugString();
  }
  v1::RollupHead HeadOf(int64_t step) {
    v1::RollupHead found;
    const auto number = static_cast<uint64_t>(step);
    const ProcessRange one{1, number, number};
    EXPECT_TRUE(store_
                    ->ForEachHeadIn(
                        *store_->RunNumber("run"), {&one, 1},
                        [&](size_t, int64_t at, const v1::RollupHead& head) {
                          EXPECT_EQ(at, step);
                          found = head;
                          return absl::OkStatus();
                        })
                    .ok());
    return found;
  }

  std::unique_ptr<Frames> frames_;
};

TEST_F(SummaryHeadsTest, RowsThatAreLeftBehindHoldTheHeads) {
  Commit200();
  RollUp();
  const auto before = Heads();
  EXPECT_EQ(before.size(), 200u);
  EXPECT_EQ(WhereHeadsAre().heads, Steps(0, 199));
  MakeSummaries();
  Kept kept = WhereHeadsAre();
  EXPECT_EQ(kept.heads, Steps(192, 199));
  EXPECT_EQ(kept.rows, (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(Heads(), before);
  // Ranges: a part of a row, one step, and the border between both places.
  const uint32_t run = *store_->RunNumber("run");
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>{70, 75},
                                    {63, 64},
                                    {190, 193},
                                    {199, 500}}) {
    const ProcessRange some{1, static_cast<uint64_t>(first),
                            static_cast<uint64_t>(last)};
    std::vector<int64_t> steps;
    ASSERT_TRUE(
        store_
            ->ForEachHeadIn(run, {&some, 1},
                            [&](size_t, int64_t step, const v1::RollupHead&) {
                              steps.push_back(step);
                              return absl::OkStatus();
                            })
            .ok());
    EXPECT_EQ(steps, Steps(first, std::min<int64_t>(last, 199)));
  }
  ExpectTheSame();
  ExpectSound();
  // When the process continues, its last row is complete too.
  const size_t size = frames_->size();
  for (int64_t step = 200; step <= 256; ++step) AddStep(frames_.get(), step, 3);
  CommitNew(size);
  MakeSummaries();
  kept = WhereHeadsAre();
  EXPECT_EQ(kept.heads, Steps(256, 256));
  EXPECT_EQ(kept.rows, (std::vector<uint64_t>{0, 1, 2, 3}));
  ExpectTheSame();
  ExpectSound();
}

// Also if the newest row was written while the process was still in it.
TEST_F(SummaryHeadsTest, ARowThatWasWrittenEarlyIsClosedLater) {
  Make200();
  for (const int64_t step : {int64_t{200}, int64_t{500}, int64_t{501}}) {
    const size_t size = frames_->size();
    AddStep(frames_.get(), step, 3);
    CommitNew(size);
    RollUp();
    const auto before = Heads();
    MakeSummaries();
    EXPECT_EQ(Heads(), before);
  }
  EXPECT_EQ(WhereHeadsAre().heads, Steps(500, 501));
  ExpectSound();
}

TEST_F(SummaryHeadsTest, ALateRecordBringsTheHeadsBack) {
  Make200();
  const auto before = Heads();
  const size_t size = frames_->size();
  AddStep(frames_.get(), 70, 500, /*end=*/false, /*order=*/100);
  CommitNew(size);
  ExpectTheSame();
  ExpectSound();
  RollUp();
  Kept kept = WhereHeadsAre();
  std::vector<int64_t> wanted = Steps(64, 127);
  for (const int64_t step : Steps(192, 199)) wanted.push_back(step);
  EXPECT_EQ(kept.heads, wanted);
  EXPECT_EQ(kept.rows, (std::vector<uint64_t>{0, 2}));
  auto now = Heads();
  ASSERT_EQ(now.size(), 200u);
  for (size_t step = 0; step < 200; ++step)
    EXPECT_EQ(now[step] == before[step], step != 70) << now[step].second;
  ExpectTheSame();
  ExpectSound();
  MakeSummaries();
  EXPECT_EQ(WhereHeadsAre().heads, Steps(192, 199));
  EXPECT_EQ(Heads(), now);
  ExpectTheSame();
}

TEST_F(SummaryHeadsTest, StepsThatAreDeletedLeaveTheOthers) {
  Make200();
  DeleteOptions options{.run = "run",
                        .steps = std::set<int64_t>{0, 5, 6, 127, 199}};
  ASSERT_TRUE(store_->Delete(options).ok());
  const Kept kept = WhereHeadsAre();
  EXPECT_EQ(kept.heads.size(), 128u + 8);
  EXPECT_EQ(kept.rows, (std::vector<uint64_t>{2}));
  for (int64_t step = 0; step < 200; ++step)
    EXPECT_EQ(HeadOf(step).deleted(), options.steps->contains(step)) << step;
  ExpectTheSame();
  ExpectSound();
  MakeSummaries();
  EXPECT_EQ(WhereHeadsAre().heads, Steps(192, 199));
  for (int64_t step = 0; step < 200; ++step)
    EXPECT_EQ(HeadOf(step).deleted(), options.steps->contains(step)) << step;
  EXPECT_EQ(Ask({}, false).head.deleted_rank_steps(), 5u);
  ExpectTheSame();
  ExpectSound();
}

// A deletion is written in parts; a crash between two of them leaves both.
TEST_F(SummaryHeadsTest, AHeadThatIsInBothPlacesIsSeenOnce) {
  Make200();
  const auto before = Heads();
  const uint32_t run = *store_->RunNumber("run");
  EditIndex([&](Index*, IndexBatch* batch) {
    const std::string prefix = keys::RollupHeads(run, 1);
    for (int64_t step = 60; step < 70; ++step) {
      // It would be visible if it were read.
      v1::RollupHead head;
      head.set_records(4711);
      batch->Put(keys::AtStep(prefix, step), head.SerializeAsString());
    }
  });
  EXPECT_EQ(Heads(), before);
  DeleteOptions options{.run = "run", .steps = std::set<int64_t>{64}};
  ASSERT_TRUE(store_->Delete(options).ok());
  EXPECT_EQ(HeadOf(65).records(), 5u);
  EXPECT_EQ(HeadOf(64).deleted(), true);
}

TEST_F(SummaryHeadsTest, WhoReadsMeanwhileSeesEachHeadOnce) {
  Make200();
  std::atomic<bool> done = false, failed = false;
  std::atomic<int> reads = 0;
  std::string wrong;
  std::thread reader([&] {
    while (!done && !failed) {
      std::vector<int64_t> steps;
      for (const auto& [step, head] : Heads()) steps.push_back(step);
      if (steps != Steps(0, 199)) {
        wrong = absl::StrCat(steps.size(), " heads");
        failed = true;
      }
      ++reads;
    }
  });
  const uint32_t run = *store_->RunNumber("run");
  for (int round = 0; (round < 300 || reads < 20) && !failed; ++round) {
    PendingRollup step{
        .run_number = run,
        .key = {.run = "run", .step = round % 190, .incarnation = 1}};
    // The head moves out of its row, and back into it.
    EXPECT_TRUE(RollupMaker(store_.get()).RollUp(step).ok());
    Rest();
    EXPECT_TRUE(maker_->MakePending([] { return false; }).ok());
  }
  done = true;
  reader.join();
  EXPECT_EQ(wrong, "");
}

TEST_F(SummaryHeadsTest, ARowThatSaysSomethingElseOfAStepIsAFault) {
  Make200();
  ExpectSound();
  const uint32_t run = *store_->RunNumber("run");
  const auto faults = [&](const std::string& bytes) {
    EditIndex([&](Index*, IndexBatch* batch) {
      batch->Put(keys::SummaryTile(run, 1, 1, 1), bytes);
    });
    const auto report = store_->Verify(
        {}, [](const v1::VerifyReport&) { return absl::OkStatus(); });
    EXPECT_TRUE(report.ok());
    std::string all;
    for (const std::string& fault : report->faults()) all += fault + "\n";
    return all;
  };
  v1::RollupHead head;
  head.set_records(4);
  SummaryTileWriter writer(1, /*with_heads=*/true);
  writer.PutHead(6, 70, head);
  EXPECT_EQ(faults(writer.Encode(1)),
            "run run, step 70: the rollup is of 4 records, 5 are here\n");
  EXPECT_EQ(faults(writer.Encode(1).substr(0, 11)),
            "run run: a row of summaries cannot be read\n");
}

// An overview of the complete run reads the rows of the level above to their
// end, although the last of their slots is not full; if an end is given, single
// steps are read.
TEST_F(SummaryHeadsTest, TheLastSlotOfAnOverviewIsReadAsAWhole) {
  Make200();
  ASSERT_TRUE(store_
                  ->WriteTile({*store_->RunNumber("run"), 1, 1, 3},
                              [&](bool) {
                                SummaryTileWriter writer(1);
                                for (int64_t step = 192; step < 200; ++step) {
                                  v1::RollupHead head = HeadOf(step);
                                  head.mutable_norm()->set_value_f(4711);
                                  writer.Put(static_cast<uint32_t>(step - 192),
                                             SummaryOf(step, head));
                                }
                                return writer.Encode(3);
                              })
                  .ok());
  v1::QueryGridRequest request;
  request.set_max_cells(4);
  EXPECT_EQ(Ask(request, false).text.find("4711"), std::string::npos);
  EXPECT_NE(Ask(request, false).text.find("201"), std::string::npos);
  request.set_last_step(199);
  EXPECT_NE(Ask(request, false).text.find("4711"), std::string::npos);
}

}  // namespace
}  // namespace rankprobe
