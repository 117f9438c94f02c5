// SPDX-License-Identifier: Apache-2.0
// The disk fills up in the middle of a run: the training side never waits, the
// ledger names what was shed, and ingest goes on by itself once there is room. Under
// policy `block` it waits, for the collector answers.
#include <memory>
#include <thread>

#include "gtest/gtest.h"
#include "tests/crash/steps_fixture.h"

namespace rankprobe::crash {
namespace {

using DiskFullTest = StepsTest;

TEST_F(DiskFullTest, TrainingGoesOnAndIngestResumesByItself) {
  std::unique_ptr<Session> session =
      Connect(0, 1 << 20, OverflowPolicy::kDropNewest);
  int64_t step = 0;
  for (; step < 5; ++step) Step(session.get(), step);
  ASSERT_TRUE(session->Flush(v1::DURABILITY_SYNCED, absl::Seconds(20)).ok())
      << session->GetStats().last_error;
  EXPECT_EQ(shed_, 0u);

  fs_.SetCapacity(fs_.used_bytes() + (200 << 10));
  const int64_t began = clock_.MonotonicNanos();
  for (; step < 400; ++step) Step(session.get(), step);
  const absl::Duration took =
      absl::Nanoseconds(clock_.MonotonicNanos() - began);
  EXPECT_LT(took, absl::Seconds(20)) << "nothing waits for the disk";
  EXPECT_GT(shed_, 0u);
  const SessionStats full = session->GetStats();
  EXPECT_LE(full.queue_peak_bytes, uint64_t{1} << 20);
  EXPECT_TRUE(full.connected) << "a full disk is no reason to part";

  fs_.SetCapacity(UINT64_MAX);
  ASSERT_TRUE(session->Flush(v1::DURABILITY_SYNCED, absl::Seconds(60)).ok());
  for (; step < 405; ++step) Step(session.get(), step);
  ASSERT_TRUE(session->Flush(v1::DURABILITY_SYNCED, absl::Seconds(20)).ok());

  // Every record is stored or a named loss.
  uint64_t stored = 0, lost = 0;
  const auto steps = store_->ListSteps("run");
  ASSERT_TRUE(steps.ok());
  for (const v1::StepInfo& info : *steps) {
    const auto ledger = AccountStep(store_, "run", info, {});
    ASSERT_TRUE(ledger.ok()) << ledger.status();
    stored += ledger->stored_records();
    for (const v1::LedgerGap& gap : ledger->gaps()) {
      EXPECT_NE(gap.reason(), "NOT_STORED") << ledger->DebugString();
      if (gap.reason() != "NOT_RECEIVED") lost += gap.records();
    }
    if (info.step() >= 400) {
      EXPECT_EQ(ledger->state(), v1::StepLedger::STATE_WHOLE)
          << ledger->DebugString();
    }
  }
  EXPECT_EQ(stored, submitted_ - shed_);
  EXPECT_EQ(lost, shed_);
  v1::VerifyRequest request;
  request.set_read_data(true);
  const auto report = store_->Verify(request, {});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->fault_count(), 0u) << report->DebugString();
  EXPECT_EQ(report->missing_payloads(), 0u);
}

// It says so every half second, and answers whoever asks in between.
TEST_F(DiskFullTest, PolicyBlockWaitsUntilThereIsRoomAgain) {
  block_deadline_ = absl::Minutes(10);
  silence_deadline_ = absl::Milliseconds(400);
  std::unique_ptr<Session> session =
      Connect(0, 1 << 20, OverflowPolicy::kBlock);
  int64_t step = 0;
  for (; step < 5; ++step) Step(session.get(), step);
  ASSERT_TRUE(session->Flush(v1::DURABILITY_SYNCED, absl::Seconds(20)).ok());
  fs_.SetCapacity(fs_.used_bytes() + (200 << 10));
  std::thread disk([&] {
    while (session->GetStats().queue_bytes < (800 << 10))
      absl::SleepFor(absl::Milliseconds(10));
    absl::SleepFor(absl::Seconds(3));
    fs_.SetCapacity(UINT64_MAX);
  });
  for (; step < 100; ++step)
    EXPECT_EQ(Step(session.get(), step), v1::LOSS_REASON_UNSPECIFIED) << step;
  disk.join();
  EXPECT_EQ(shed_, 0u);
  EXPECT_GT(session->GetStats().blocked_ns, 1'000'000'000u);
  EXPECT_TRUE(session->Flush(v1::DURABILITY_SYNCED, absl::Seconds(60)).ok());
}

}  // namespace
}  // namespace rankprobe::crash
