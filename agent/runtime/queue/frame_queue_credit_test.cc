// SPDX-License-Identifier: Apache-2.0
// A collector without room for payloads: they are left out by policy, and the
// record has the reason.
#include <memory>
#include <thread>

#include "agent/runtime/queue/frame_queue.h"
#include "agent/runtime/queue/testing/frame_queue_fixture.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

class FrameQueueCreditTest : public testing::FrameQueueTest {
 protected:
  void Say(v1::PayloadCredit credit) {
    v1::UploadAck ack;
    ack.set_payload_credit(credit);
    queue_->Ack(ack);
  }
  // Why a payload is not accepted; UNSPECIFIED if it is.
  v1::LossReason Refused() {
    v1::LossReason reason;
    return queue_->Reserve(100, &reason) == nullptr
               ? reason
               : v1::LOSS_REASON_UNSPECIFIED;
  }
  SessionStats Stats() {
    SessionStats stats;
    queue_->FillStats(&stats);
    return stats;
  }
};

TEST_F(FrameQueueCreditTest, PayloadsAreLeftOutAndRecordsGoOn) {
  Make(1 << 20, OverflowPolicy::kStatsOnly);
  EXPECT_EQ(Refused(), v1::LOSS_REASON_UNSPECIFIED);
  Say(v1::PAYLOAD_CREDIT_NOT_NOW);
  EXPECT_EQ(Refused(), v1::LOSS_REASON_COLLECTOR_DISK);
  EXPECT_TRUE(queue_->SubmitRecords(Records(1, 3)));
  EXPECT_EQ(Drain().size(), 1u);
  // An ack that does not report the credit.
  Commit(1);
  EXPECT_EQ(Refused(), v1::LOSS_REASON_COLLECTOR_DISK);
  Say(v1::PAYLOAD_CREDIT_NONE);
  EXPECT_EQ(Refused(), v1::LOSS_REASON_COLLECTOR_DISK);
  Say(v1::PAYLOAD_CREDIT_TAKEN);
  EXPECT_EQ(Refused(), v1::LOSS_REASON_UNSPECIFIED);
  EXPECT_EQ(Stats().lost_payloads, 3u);
  EXPECT_EQ(Stats().lost_records, 0u);
  // A payload that is too large gets that reason whatever room there is.
  Say(v1::PAYLOAD_CREDIT_NONE);
  v1::LossReason reason;
  EXPECT_EQ(queue_->Reserve(2 << 20, &reason), nullptr);
  EXPECT_EQ(reason, v1::LOSS_REASON_TOO_LARGE);
}

TEST_F(FrameQueueCreditTest, BlockWaitsOnceForRoom) {
  static const SystemClock clock;  // as the queue waits
  queue_ = std::make_unique<FrameQueue>(
      FrameQueue::Options{1 << 20, 1 << 20, OverflowPolicy::kBlock,
                          absl::Milliseconds(20)},
      &clock, [] {});
  Say(v1::PAYLOAD_CREDIT_NOT_NOW);
  EXPECT_EQ(Refused(), v1::LOSS_REASON_COLLECTOR_DISK);
  const uint64_t waited = Stats().blocked_ns;
  EXPECT_GE(waited, 20'000'000u);
  // A hundred more do not wait at all, however slow the machine is.
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(Refused(), v1::LOSS_REASON_COLLECTOR_DISK);
  EXPECT_EQ(Stats().blocked_ns, waited);
}

TEST_F(FrameQueueCreditTest, AWaitEndsWhenItIsDecided) {
  for (const v1::PayloadCredit decided :
       {v1::PAYLOAD_CREDIT_TAKEN, v1::PAYLOAD_CREDIT_NONE}) {
    Make(1 << 20, OverflowPolicy::kBlock, absl::Minutes(10));
    Say(v1::PAYLOAD_CREDIT_NOT_NOW);
    std::thread collector([&] { Say(decided); });
    EXPECT_EQ(Refused(), decided == v1::PAYLOAD_CREDIT_TAKEN
                             ? v1::LOSS_REASON_UNSPECIFIED
                             : v1::LOSS_REASON_COLLECTOR_DISK);
    collector.join();
    // Without any room for payloads, no call waits.
    Say(v1::PAYLOAD_CREDIT_NONE);
    EXPECT_EQ(Refused(), v1::LOSS_REASON_COLLECTOR_DISK);
  }
}

// The collector refuses what was queued before; a later barrier passes.
TEST_F(FrameQueueCreditTest, WhatWasQueuedIsRefusedAndSentAgainLater) {
  Make(1 << 20, OverflowPolicy::kBlock);
  ASSERT_TRUE(Payload('a', 1000));
  ASSERT_EQ(Drain().size(), 1u);
  v1::UploadAck ack;
  ack.set_payload_credit(v1::PAYLOAD_CREDIT_NOT_NOW);
  ack.set_committed(1);
  ack.add_refused_frames()->set_sequence(1);
  queue_->Ack(ack);
  EXPECT_TRUE(
      queue_->Flush(v1::DURABILITY_COMMITTED, absl::ZeroDuration()).ok());
  EXPECT_EQ(Stats().lost_payloads, 1u);
  EXPECT_EQ(Used(), 0u);
  Say(v1::PAYLOAD_CREDIT_TAKEN);
  ASSERT_TRUE(Payload('a', 1000));
  EXPECT_EQ(Drain().size(), 1u) << "it was not stored: it is no known one";
}

// Another collector reports its own credit; payloads that the first one may
// have refused in a lost ack do not count as known.
TEST_F(FrameQueueCreditTest, AReconnectBeginsAnew) {
  Make(1 << 20, OverflowPolicy::kBlock);
  ASSERT_TRUE(Payload('a', 1000));
  ASSERT_EQ(Drain().size(), 1u);
  Say(v1::PAYLOAD_CREDIT_NONE);
  queue_->Resume(1);
  EXPECT_EQ(Refused(), v1::LOSS_REASON_UNSPECIFIED);
  Commit(1);
  ASSERT_TRUE(Payload('a', 1000));
  EXPECT_EQ(Drain().size(), 1u);
}

}  // namespace
}  // namespace rankprobe
