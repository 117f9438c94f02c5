// SPDX-License-Identifier: Apache-2.0
#include "collector/store/retention.h"

#include <string>

#include "collector/store/wall_clock_guard.h"
#include "collector/testing/frames.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::Frames;
using testing::MakeIdentity;

class RetentionTest : public testing::TempDirTest {
 protected:
  void SetUp() override {
    TempDirTest::SetUp();
    store_ = OpenStore(Options(/*segment_bytes=*/1 << 20));
  }
  void TearDown() override {
    store_.reset();
    TempDirTest::TearDown();
  }

  // Writes one step of 200,000 new bytes, an hour after the one before.
  void Write(Frames* frames, int64_t step, bool finish = true) {
    clock_.Advance(absl::Hours(1));
    const std::string data =
        testing::RandomBytes(static_cast<uint64_t>(step) + 1, 200000);
    const size_t first = frames->size();
    frames->AddPayload(data);
    v1::RecordBatch* const batch = frames->AddBatch(step);
    v1::Record* const record = batch->add_records();
    record->mutable_call()->set_entry("e");
    testing::AddOutput(data, record);
    if (finish) {
      v1::Record* const end = batch->add_records();
      end->set_order(1);
      end->mutable_step_end();
    }
    ASSERT_TRUE(store_->Commit(frames->Range(first, frames->size())).ok());
  }

  std::vector<int64_t> Steps(const std::string& run) {
    std::vector<int64_t> out;
    const auto steps = store_->ListSteps(run);
    if (!steps.ok()) return out;
    for (const v1::StepInfo& step : *steps) {
      if (!step.deleted()) out.push_back(step.step());
    }
    return out;
  }

  std::unique_ptr<Store> store_;
};

// Rollups count, also if there are no payloads.
TEST_F(RetentionTest, RollupsCount) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (int64_t step = 0; step < 40; ++step) {
    clock_.Advance(absl::Hours(1));
    const size_t first = frames.size();
    v1::RecordBatch* const batch = frames.AddBatch(step);
    batch->add_records()->mutable_step_begin();
    v1::Record* const end = batch->add_records();
    end->set_order(1);
    end->mutable_step_end();
    ASSERT_TRUE(store_->Commit(frames.Range(first, frames.size())).ok());
    PendingRollup pending{
        .run_number = *store_->RunNumber("run"),
        .key = {.run = "run", .step = step, .incarnation = 1}};
    RollupRows rows;
    rows.head.set_records(2);
    v1::RollupLayout layout;
    layout.add_blocks(0);
    layout.add_blocks(0);
    layout.set_statistics(1 << 3);
    rows.layouts.emplace_back(0, layout);
    rows.columns.push_back(
        {0, 3, testing::RandomBytes(static_cast<uint64_t>(step), 100000)});
    ASSERT_TRUE(store_->WriteRollup(pending, rows).ok());
  }
  store_->CompactRollups();
  EXPECT_EQ(store_->SegmentBytes(), 0u);
  EXPECT_NEAR(static_cast<double>(ArchiveBytes(store_.get())), 4e6, 4e5);
  RetentionOptions options;
  options.max_bytes = 2000000;
  const auto report = ApplyRetention(store_.get(), options, clock_.Now(), {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->over_limit);
  EXPECT_LE(ArchiveBytes(store_.get()), options.max_bytes);
  const std::vector<int64_t> left = Steps("run");
  ASSERT_FALSE(left.empty());
  // The newest steps, and as many as there is room for.
  EXPECT_EQ(left.back(), 39);
  EXPECT_GE(left.size(), 10u);
  EXPECT_EQ(left.size(), 40 - static_cast<size_t>(left.front()));
  EXPECT_EQ(report->steps_deleted, 40 - left.size());
}

TEST_F(RetentionTest, ByAge) {
  Frames old_run(MakeIdentity("old", 0, 1)), frames(MakeIdentity("run", 0, 2));
  Write(&old_run, 0);
  for (int64_t step = 0; step < 4; ++step) Write(&frames, step);
  clock_.Advance(absl::Minutes(30));
  RetentionOptions options;
  options.max_age = absl::Hours(3);
  const auto report = ApplyRetention(store_.get(), options, clock_.Now(), {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->steps_deleted, 2u);
  EXPECT_EQ(report->runs_deleted, 1u);
  EXPECT_EQ(Steps("run"), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(store_->ListRuns()->size(), 1u);
  const auto again = ApplyRetention(store_.get(), options, clock_.Now(), {});
  EXPECT_EQ(again->steps_deleted, 0u);
}

TEST_F(RetentionTest, ByBytesTheOldestGoFirst) {
  Frames frames(MakeIdentity("run", 0, 2));
  for (int64_t step = 0; step < 60; ++step) Write(&frames, step);
  clock_.Advance(absl::Hours(1));
  RetentionOptions options;
  options.max_bytes = 6000000;
  const auto report = ApplyRetention(store_.get(), options, clock_.Now(), {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->over_limit);
  EXPECT_LE(store_->SegmentBytes(), options.max_bytes);
  const std::vector<int64_t> steps = Steps("run");
  EXPECT_GE(steps.size(), 20u) << "no more than needed goes";
  EXPECT_LE(steps.size(), 30u);
  EXPECT_EQ(steps.front(), 60 - static_cast<int64_t>(steps.size()));
  EXPECT_EQ(steps.back(), 59);
}

// The limit holds at every moment while a rank writes, to within a tenth and a
// segment.
TEST_F(RetentionTest, TheLimitHoldsUnderLoad) {
  Frames frames(MakeIdentity("run", 0, 2));
  RetentionOptions options;
  options.max_bytes = 20000000;
  uint64_t most = 0;
  for (int64_t step = 0; step < 300; ++step) {
    Write(&frames, step);
    most = std::max(most, store_->SegmentBytes());
    if (store_->SegmentBytes() <= options.max_bytes) continue;
    const auto report =
        ApplyRetention(store_.get(), options, clock_.Now(), {2});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_FALSE(report->over_limit);
  }
  EXPECT_LE(most, options.max_bytes * 11 / 10 + (1 << 20));
  EXPECT_GE(Steps("run").size(), 60u);
}

// Payloads that a connected rank may refer to stay while other steps suffice,
// and are deleted otherwise.
TEST_F(RetentionTest, TheLimitIsWorthMoreThanTheStepsOfAConnectedRank) {
  Frames frames(MakeIdentity("run", 0, 2));
  for (int64_t step = 0; step < 40; ++step) Write(&frames, step);
  RetentionOptions options;
  options.max_bytes = 7800000;
  auto report = ApplyRetention(store_.get(), options, clock_.Now(), {2});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(Steps("run").front(), 7) << "32 steps behind the newest all stay";
  options.max_bytes = 3000000;
  report = ApplyRetention(store_.get(), options, clock_.Now(), {2});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_LE(store_->SegmentBytes(), options.max_bytes * 11 / 10 + (1 << 20));
  EXPECT_LE(Steps("run").size(), 15u);
  EXPECT_EQ(Steps("run").back(), 39);
  options.max_bytes = 1000;
  report = ApplyRetention(store_.get(), options, clock_.Now(), {2});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->over_limit);
  EXPECT_EQ(Steps("run"), (std::vector<int64_t>{37, 38, 39}))
      << "the newest stay";
}

// A wall clock that moves independently.
class JumpingClock : public ManualClock {
 public:
  absl::Time Now() const override { return ManualClock::Now() + jump; }
  absl::Duration jump;
};

// T09: ten days ahead for a moment.
TEST(WallClockGuardTest, AJumpIsWaitedOut) {
  JumpingClock clock;
  WallClockGuard guard(&clock, clock.Now() - absl::Minutes(5), absl::Hours(24));
  EXPECT_TRUE(guard.Trusts());
  clock.Advance(absl::Hours(7));
  EXPECT_TRUE(guard.Trusts());
  clock.jump = absl::Hours(240);
  EXPECT_FALSE(guard.Trusts());
  clock.Advance(absl::Seconds(3));
  EXPECT_FALSE(guard.Trusts());
  clock.jump = absl::ZeroDuration();
  EXPECT_TRUE(guard.Trusts()) << "it is back where it was";
  // A corrected clock stays trusted.
  clock.jump = -absl::Hours(1);
  EXPECT_FALSE(guard.Trusts());
  clock.Advance(absl::Minutes(59));
  EXPECT_FALSE(guard.Trusts());
  clock.Advance(absl::Minutes(2));
  EXPECT_TRUE(guard.Trusts());
  // Small corrections of a time server are not jumps, however many.
  for (int i = 0; i < 100; ++i) {
    clock.Advance(absl::Minutes(1));
    clock.jump += absl::Seconds(20);
    EXPECT_TRUE(guard.Trusts());
  }
}

TEST(WallClockGuardTest, AtStartTheArchiveStandsForTheClock) {
  ManualClock clock;
  const auto trusts = [&](std::optional<absl::Duration> age) {
    std::optional<absl::Time> newest;
    if (age.has_value()) newest = clock.Now() - *age;
    return WallClockGuard(&clock, newest, absl::Hours(24)).Trusts();
  };
  EXPECT_TRUE(trusts(std::nullopt));
  EXPECT_TRUE(trusts(absl::Hours(23)));
  EXPECT_FALSE(trusts(absl::Hours(25))) << "all of it would go";
  EXPECT_FALSE(trusts(-absl::Hours(1))) << "written in the future";
  WallClockGuard guard(&clock, clock.Now() - absl::Hours(100), absl::Hours(24));
  EXPECT_FALSE(guard.Trusts());
  clock.Advance(absl::Minutes(61));
  EXPECT_TRUE(guard.Trusts());
}

TEST_F(RetentionTest, AnUnfinishedStepOfAConnectedRankStays) {
  Frames frames(MakeIdentity("run", 0, 2));
  Write(&frames, 0);
  Write(&frames, 1, /*finish=*/false);
  clock_.Advance(absl::Hours(100));
  RetentionOptions options;
  options.max_age = absl::Hours(3);
  ASSERT_TRUE(ApplyRetention(store_.get(), options, clock_.Now(), {2}).ok());
  EXPECT_EQ(Steps("run"), (std::vector<int64_t>{1}));
  ASSERT_TRUE(ApplyRetention(store_.get(), options, clock_.Now(), {}).ok());
  EXPECT_TRUE(store_->ListRuns()->empty());
}

}  // namespace
}  // namespace rankprobe
