// SPDX-License-Identifier: Apache-2.0
// Records that are in their rank's file are sent together.
#include <utility>

#include "agent/runtime/queue/testing/frame_queue_fixture.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr absl::Duration kHold = absl::Milliseconds(100);

class FrameQueueHoldTest : public testing::FrameQueueTest {
 protected:
  void SetUp() override {
    queue_ = std::make_unique<FrameQueue>(
        FrameQueue::Options{.budget_bytes = 64 << 20,
                            .max_payload_bytes = 64 << 20,
                            .policy = OverflowPolicy::kDropNewest,
                            .spooled = true,
                            .spools_records_only = true,
                            .hold = kHold},
        &clock_, [this] { ++wakes_; });
  }
  int Wakes() { return std::exchange(wakes_, 0); }
  int Spooled() {
    int frames = 0;
    for (EncodedFrame frame; queue_->NextUnspooled(&frame);) {
      queue_->NoteSpooled(frame.sequence);
      ++frames;
    }
    return frames;
  }

  int wakes_ = 0;
};

TEST_F(FrameQueueHoldTest, StepsLeaveTogetherWithOneWord) {
  EXPECT_EQ(queue_->HeldFor(), absl::InfiniteDuration());
  for (int64_t step = 0; step < 5; ++step) {
    ASSERT_TRUE(queue_->SubmitRecords(Records(step, 3)));
    EXPECT_EQ(Spooled(), 1) << "the file has them at once";
    EXPECT_TRUE(Drain().empty());
    EXPECT_FALSE(queue_->HasWork());
    clock_.Advance(absl::Milliseconds(15));
  }
  EXPECT_EQ(Wakes(), 1) << "to look at the clock";
  EXPECT_EQ(queue_->HeldFor(), kHold - absl::Milliseconds(75));
  clock_.Advance(absl::Milliseconds(24));
  EXPECT_TRUE(Drain().empty());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(queue_->HasWork());
  EXPECT_EQ(queue_->HeldFor(), absl::InfiniteDuration());
  EXPECT_EQ(Drain().size(), 5u);
  EXPECT_EQ(Wakes(), 0);
  // The next ones are held again.
  ASSERT_TRUE(queue_->SubmitRecords(Records(5, 3)));
  EXPECT_EQ(Wakes(), 1);
  EXPECT_TRUE(Drain().empty());
  EXPECT_EQ(queue_->HeldFor(), kHold);
  v1::UploadAck ack;
  ack.set_committed(5);
  EXPECT_FALSE(queue_->Ack(ack)) << "nothing is to leave yet";
  clock_.Advance(kHold);
  EXPECT_EQ(Drain().size(), 1u);
  Commit(6);
  EXPECT_EQ(Used(), 0u);
}

TEST_F(FrameQueueHoldTest, WhatCannotLeaveAtOnceIsNotHeldAgain) {
  for (int64_t step = 0; step < 3; ++step)
    ASSERT_TRUE(queue_->SubmitRecords(Records(step, 3)));
  clock_.Advance(kHold);
  EXPECT_EQ(Drain(1).size(), 1u) << "the credit is for one";
  EXPECT_TRUE(queue_->HasWork());
  Wakes();
  ASSERT_TRUE(queue_->SubmitRecords(Records(3, 3)));
  EXPECT_EQ(Wakes(), 1) << "what comes while others leave goes with them";
  v1::UploadAck ack;
  ack.set_committed(1);
  EXPECT_TRUE(queue_->Ack(ack));
  EXPECT_EQ(Drain().size(), 3u);
}

TEST_F(FrameQueueHoldTest, NobodyWhoWaitsWaitsForIt) {
  ASSERT_TRUE(queue_->SubmitRecords(Records(0, 3)));
  ASSERT_TRUE(Drain().empty());
  EXPECT_FALSE(
      queue_->Flush(v1::DURABILITY_COMMITTED, absl::ZeroDuration()).ok());
  EXPECT_EQ(Wakes(), 2);
  EXPECT_EQ(Drain().size(), 1u);
  // With a payload, stop() waits for the collector.
  ASSERT_TRUE(queue_->SubmitRecords(Records(1, 3)));
  ASSERT_TRUE(Drain().empty());
  ASSERT_TRUE(Payload('a', 100));
  EXPECT_EQ(Drain().size(), 2u);
  // A thread without room gets it by acks, which require frames.
  ASSERT_TRUE(queue_->SubmitRecords(Records(2, 3), /*may_wait=*/false));
  EXPECT_EQ(Drain().size(), 1u);
}

TEST_F(FrameQueueHoldTest, ManyLeaveAtOnce) {
  uint64_t bytes = 0;
  int buffers = 0;
  for (; Drain().empty(); ++buffers) {
    auto records = Records(buffers, 100, 1000);
    bytes += records->ApproxBytes();
    ASSERT_TRUE(queue_->SubmitRecords(std::move(records)));
    ASSERT_LT(bytes, 2u << 20);
  }
  EXPECT_GT(buffers, 5);
  EXPECT_EQ(Wakes(), 2);
}

// Records that another collector had not committed are sent to this one at
// once.
TEST_F(FrameQueueHoldTest, ANewConnectionHoldsNothing) {
  ASSERT_TRUE(queue_->SubmitRecords(Records(0, 3)));
  queue_->Resume(0);
  EXPECT_EQ(Drain().size(), 1u);
  queue_->Resume(0);
  EXPECT_EQ(Drain().size(), 1u) << "again";
}

}  // namespace
}  // namespace rankprobe
