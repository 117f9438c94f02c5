// SPDX-License-Identifier: Apache-2.0
// Waits for each kind of collector, on a clock that only the
// questions advance.
#include "agent/runtime/queue/byte_budget.h"

#include <functional>
#include <memory>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr uint64_t kBytes = 1000;

class ByteBudgetTest : public ::testing::Test {
 protected:
  // Each question takes 20 ms; then `answer` is called.
  void Make(absl::Duration block_deadline) {
    asked_ = 0;
    budget_ = std::make_unique<ByteBudget>(
        ByteBudget::Options{kBytes, OverflowPolicy::kBlock, block_deadline,
                            absl::Milliseconds(45)},
        &clock_, &mutex_, [this] {
          ++asked_;
          clock_.Advance(absl::Milliseconds(20));
          if (budget_->TakeQuestion() && answer_) answer_();
        });
    ASSERT_EQ(Acquire(kBytes), v1::LOSS_REASON_UNSPECIFIED);
  }
  v1::LossReason Acquire(uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    return budget_->Acquire(bytes, kBytes, /*may_wait=*/true);
  }
  absl::Duration Blocked() const {
    SessionStats stats;
    budget_->FillStats(&stats);
    return absl::Nanoseconds(stats.blocked_ns);
  }

  ManualClock clock_;
  absl::Mutex mutex_;
  int asked_ = 0;
  std::function<void()> answer_;
  std::unique_ptr<ByteBudget> budget_;
};

TEST_F(ByteBudgetTest, ACollectorThatSaysNothingIsNotWaitedFor) {
  Make(absl::Hours(10));
  budget_->NoteConnected();
  EXPECT_EQ(Acquire(1), v1::LOSS_REASON_COLLECTOR_SILENT);
  EXPECT_EQ(asked_, 4) << "looks, in more than 45 ms";
  EXPECT_EQ(Blocked(), absl::Milliseconds(80));
  EXPECT_EQ(Acquire(1), v1::LOSS_REASON_AGENT_BUDGET) << "no second wait";
  // Room became free in the meantime.
  const auto full_again = [this] {
    budget_->Release(kBytes);
    EXPECT_EQ(Acquire(kBytes), v1::LOSS_REASON_UNSPECIFIED);
    return Acquire(1);
  };
  EXPECT_EQ(full_again(), v1::LOSS_REASON_COLLECTOR_SILENT);
  EXPECT_TRUE(budget_->silent());
  EXPECT_EQ(asked_, 4) << "it is known to say nothing";
  // The collector continues, and hangs again.
  budget_->NoteHeard();
  EXPECT_FALSE(budget_->silent());
  EXPECT_EQ(full_again(), v1::LOSS_REASON_COLLECTOR_SILENT);
  EXPECT_EQ(asked_, 8);
  // Its connection is given up, and established again.
  clock_.Advance(absl::Seconds(2));
  budget_->NoteEnded(/*silent=*/true);
  EXPECT_EQ(full_again(), v1::LOSS_REASON_COLLECTOR_SILENT);
  EXPECT_EQ(asked_, 8);
  budget_->NoteConnected();
  EXPECT_EQ(full_again(), v1::LOSS_REASON_COLLECTOR_SILENT);
  EXPECT_EQ(asked_, 12);
  EXPECT_EQ(Blocked(), absl::Milliseconds(240));
}

TEST_F(ByteBudgetTest, ACollectorThatAnswersIsWaitedForUntilThereIsRoom) {
  Make(absl::Hours(10));
  budget_->NoteConnected();
  answer_ = [this] {
    budget_->NoteHeard();
    if (asked_ == 50) budget_->Release(kBytes);
  };
  EXPECT_EQ(Acquire(1), v1::LOSS_REASON_UNSPECIFIED);
  EXPECT_EQ(Blocked(), absl::Seconds(1));
  EXPECT_FALSE(budget_->shedding());
}

TEST_F(ByteBudgetTest, ACollectorThatStopsAnsweringIsNotWaitedForAnyLonger) {
  Make(absl::Hours(10));
  budget_->NoteConnected();
  answer_ = [this] {
    if (asked_ <= 50) budget_->NoteHeard();
  };
  EXPECT_EQ(Acquire(1), v1::LOSS_REASON_COLLECTOR_SILENT);
  EXPECT_EQ(asked_, 54);
}

TEST_F(ByteBudgetTest, ACollectorThatAnswersAndMakesNoRoomHasADeadline) {
  Make(absl::Milliseconds(30));
  budget_->NoteConnected();
  answer_ = [this] { budget_->NoteHeard(); };
  EXPECT_EQ(Acquire(1), v1::LOSS_REASON_AGENT_DEADLINE);
}

// The wait is for a collector that was killed and returns, for another one, and
// for one that was connected but acknowledged nothing for long.
TEST_F(ByteBudgetTest, ACollectorThatHasGoneIsWaitedFor) {
  Make(absl::Hours(10));
  clock_.Advance(absl::Seconds(5));
  budget_->NoteHeard();
  budget_->NoteEnded(/*silent=*/true);
  answer_ = [this] {
    if (asked_ == 10) budget_->NoteConnected();
    if (asked_ > 10) budget_->NoteHeard();
    if (asked_ == 20) budget_->Release(kBytes);
  };
  EXPECT_EQ(Acquire(1), v1::LOSS_REASON_UNSPECIFIED);
  EXPECT_EQ(asked_, 20);
}

TEST_F(ByteBudgetTest, RoomInASilentCollectorIsNotWaitedForEither) {
  Make(absl::Hours(10));
  budget_->NoteConnected();
  budget_->SetPayloadCredit(v1::PAYLOAD_CREDIT_NOT_NOW);
  const auto may = [this] {
    absl::MutexLock lock(&mutex_);
    return budget_->MayReservePayload();
  };
  EXPECT_FALSE(may());
  EXPECT_EQ(asked_, 4);
  EXPECT_FALSE(may());
  EXPECT_EQ(asked_, 4) << "once";
  budget_->NoteHeard();
  budget_->SetPayloadCredit(v1::PAYLOAD_CREDIT_TAKEN);
  budget_->SetPayloadCredit(v1::PAYLOAD_CREDIT_NOT_NOW);
  answer_ = [this] {
    budget_->NoteHeard();
    if (asked_ == 50) budget_->SetPayloadCredit(v1::PAYLOAD_CREDIT_TAKEN);
  };
  EXPECT_TRUE(may());
}

}  // namespace
}  // namespace rankprobe
