// SPDX-License-Identifier: Apache-2.0
// Frames that the collector refuses, or that end its stream: they are dropped
// and counted, and the others are sent.
#include <string>
#include <vector>

#include "agent/runtime/queue/frame_queue.h"
#include "agent/runtime/queue/testing/frame_queue_fixture.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::FrameQueueTest;

v1::UploadAck Refusing(uint64_t sequence, uint64_t committed) {
  v1::UploadAck ack;
  ack.set_committed(committed);
  v1::RefusedFrame* const refused = ack.add_refused_frames();
  refused->set_sequence(sequence);
  refused->set_reason("it is \x1b[31mbad");
  return ack;
}

TEST_F(FrameQueueTest, ARefusedFrameIsDroppedAndItsRecordsAreCountedAsLost) {
  Make(1 << 20, OverflowPolicy::kBlock);
  queue_->SubmitRecords(Records(4, 3));
  ASSERT_EQ(Drain().size(), 1u);
  queue_->SubmitRecords(Records(5, 2));
  ASSERT_EQ(Drain().size(), 1u);
  EXPECT_TRUE(queue_->Ack(Refusing(1, 2))) << "there is a loss to tell of";
  // No barrier passes before that is reported.
  EXPECT_FALSE(
      queue_->Flush(v1::DURABILITY_COMMITTED, absl::ZeroDuration()).ok());
  const std::vector<v1::UploadFrame> told = Drain();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].sequence(), 3u);
  EXPECT_EQ(told[0].batch().step(), 4);
  const v1::LossEvent& loss = told[0].batch().records(0).loss();
  EXPECT_EQ(loss.reason(), v1::LOSS_REASON_COLLECTOR_REFUSED);
  EXPECT_EQ(loss.records(), 3u);
  EXPECT_EQ(loss.detail().find('\x1b'), std::string::npos);
  // A repeated refusal reports nothing new.
  queue_->Ack(Refusing(3, 3));
  EXPECT_TRUE(Drain().empty());
  EXPECT_EQ(Used(), 0u);
  EXPECT_TRUE(
      queue_->Flush(v1::DURABILITY_COMMITTED, absl::ZeroDuration()).ok());
  SessionStats stats;
  queue_->FillStats(&stats);
  EXPECT_EQ(stats.lost_records, 3u);
  // Refusals of frames that do not exist.
  queue_->Ack(Refusing(1, 3));
  queue_->Ack(Refusing(99, 3));
}

// The ack with the refusal was lost with its connection; the first ack of the
// next connection repeats it.
TEST_F(FrameQueueTest, ARefusalIsHeardAfterAReconnect) {
  Make(1 << 20, OverflowPolicy::kBlock);
  for (int64_t step = 4; step <= 6; ++step) {
    queue_->SubmitRecords(Records(step, 2));
    ASSERT_EQ(Drain().size(), 1u);
  }
  queue_->Resume(2);
  EXPECT_FALSE(
      queue_->Flush(v1::DURABILITY_COMMITTED, absl::ZeroDuration()).ok());
  std::vector<v1::UploadFrame> frames = Drain();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].sequence(), 3u) << "what it holds is not sent again";
  queue_->Ack(Refusing(1, 2));
  frames = Drain();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].batch().step(), 4);
  EXPECT_EQ(frames[0].batch().records(0).loss().records(), 2u);
  // After another break the refusal is known.
  queue_->Resume(3);
  queue_->Ack(Refusing(1, 3));
  frames = Drain();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].sequence(), 4u);
  Commit(4);
  SessionStats stats;
  queue_->FillStats(&stats);
  EXPECT_EQ(stats.lost_records, 2u);
  EXPECT_EQ(Used(), 0u);
}

// Frames that the collector has cannot have ended the upload.
TEST_F(FrameQueueTest, WhatIsHeldIsNotSuspected) {
  Make(1 << 20, OverflowPolicy::kBlock);
  queue_->SubmitRecords(Records(1, 2));
  ASSERT_EQ(Drain().size(), 1u);
  for (int i = 0; i < 3; ++i) {
    queue_->Resume(1);
    queue_->StreamEnded("before its first ack");
  }
  Commit(1);
  SessionStats stats;
  queue_->FillStats(&stats);
  EXPECT_EQ(stats.lost_records, 0u);
}

TEST_F(FrameQueueTest, ARefusedChunkEndsItsPayload) {
  Make(64 << 20, OverflowPolicy::kBlock);
  ASSERT_TRUE(Payload('p', 3 << 20));
  EncodedFrame first;
  ASSERT_TRUE(queue_->NextFrame(testing::kUnboundedCredit, &first));
  first = EncodedFrame();
  queue_->Ack(Refusing(1, 1));
  for (const v1::UploadFrame& frame : Drain())
    EXPECT_FALSE(frame.has_chunk()) << "its number only";
  Commit(4);
  EXPECT_EQ(Used(), 0u);
  SessionStats stats;
  queue_->FillStats(&stats);
  EXPECT_EQ(stats.lost_payloads, 1u);
}

TEST_F(FrameQueueTest, AFrameThatEndsTheUploadAgainAndAgainIsDropped) {
  Make(1 << 20, OverflowPolicy::kBlock);
  for (int64_t step = 1; step <= 3; ++step)
    queue_->SubmitRecords(Records(step, 1));
  ASSERT_EQ(Drain().size(), 3u);
  queue_->StreamEnded("");  // any of them may be the cause
  for (int i = 0; i < 2; ++i) {
    queue_->Resume(0);
    const std::vector<v1::UploadFrame> alone = Drain();
    ASSERT_EQ(alone.size(), 1u) << i;
    EXPECT_TRUE(alone[0].has_batch());
    queue_->StreamEnded("");
  }
  // The frame is given up, and the others are sent one after the other.
  queue_->Resume(0);
  std::vector<v1::UploadFrame> frames = Drain();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_TRUE(frames[0].has_undeliverable());
  queue_->Ack(Refusing(1, 1));
  uint64_t last = 1;
  std::vector<int64_t> steps;
  for (;;) {
    Commit(last);
    frames = Drain();
    if (frames.empty()) break;
    last = frames.back().sequence();
    for (const v1::UploadFrame& frame : frames) {
      steps.push_back(frame.batch().records(0).has_loss()
                          ? -frame.batch().step()
                          : frame.batch().step());
    }
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 3, -1}));
}

// Only the agent knows what the frame held.
TEST_F(FrameQueueTest, AChunkThatEndsTheUploadIsToldOf) {
  Make(64 << 20, OverflowPolicy::kBlock);
  queue_->SubmitRecords(Records(5, 1));
  ASSERT_EQ(Drain().size(), 1u);
  Commit(1);
  ASSERT_TRUE(Payload('p', 1000));
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(Drain().size(), 1u);
    queue_->StreamEnded("no");
    queue_->Resume(1);
    Commit(1);
  }
  const std::vector<v1::UploadFrame> told = Drain();
  ASSERT_EQ(told.size(), 1u);
  ASSERT_TRUE(told[0].has_undeliverable());
  EXPECT_EQ(told[0].undeliverable().payload_digest().size(), 16u);
  EXPECT_EQ(told[0].undeliverable().payload_bytes(), 1000u);
  EXPECT_EQ(told[0].undeliverable().reason(),
            "it ends the upload each time: no");
}

TEST_F(FrameQueueTest, AnUploadThatGetsOnIsNotSuspected) {
  Make(1 << 20, OverflowPolicy::kBlock);
  for (int64_t step = 1; step <= 4; ++step) {
    queue_->SubmitRecords(Records(step, 1));
    const std::vector<v1::UploadFrame> frames = Drain();
    ASSERT_EQ(frames.size(), 1u);
    EXPECT_TRUE(frames[0].has_batch());
    queue_->StreamEnded("");
    queue_->Resume(0);
    ASSERT_EQ(Drain().size(), 1u);
    Commit(static_cast<uint64_t>(step));
  }
  SessionStats stats;
  queue_->FillStats(&stats);
  EXPECT_EQ(stats.lost_records, 0u);
}

// F7: an error of the network costs nothing if the frame arrives once.
TEST_F(FrameQueueTest, ADamagedFrameIsSentAgainAndGivenUpAfterFiveTimes) {
  Make(1 << 20, OverflowPolicy::kBlock);
  queue_->SubmitRecords(Records(4, 3));
  ASSERT_EQ(Drain().size(), 1u);
  for (int time = 1; time < 5; ++time) {
    queue_->StreamEnded("damaged", FrameQueue::End::kDamaged);
    queue_->Resume(0);
    const std::vector<v1::UploadFrame> again = Drain();
    ASSERT_EQ(again.size(), 1u) << time;
    EXPECT_EQ(again[0].batch().records_size(), 3) << time;
  }
  queue_->StreamEnded("damaged", FrameQueue::End::kDamaged);
  queue_->Resume(0);
  v1::UploadFrame frame;
  ASSERT_TRUE(Next(testing::kUnboundedCredit, &frame));
  EXPECT_EQ(frame.sequence(), 1u);
  ASSERT_TRUE(frame.has_undeliverable()) << "its number must come all the same";
  EXPECT_EQ(frame.undeliverable().step(), 4);
  EXPECT_EQ(frame.undeliverable().records(), 3u);
  EXPECT_EQ(frame.undeliverable().reason(),
            "it was damaged in transit 5 times");
}

// F8
TEST_F(FrameQueueTest, AnAckOfWhatWasNeverSentIsNotBelieved) {
  Make(1 << 20, OverflowPolicy::kBlock);
  queue_->SubmitRecords(Records(4, 3));
  ASSERT_EQ(Drain().size(), 1u);
  queue_->SubmitRecords(Records(5, 3));
  v1::UploadAck ack;
  ack.set_committed(1'048'577);
  queue_->Ack(ack);
  EXPECT_EQ(
      queue_->AckFault().message(),
      "the collector acks frame 1048577 of this process, which has sent 1");
  EXPECT_FALSE(
      queue_->Flush(v1::DURABILITY_COMMITTED, absl::ZeroDuration()).ok());
  // The next connection begins at the collector's actual position.
  queue_->Resume(0);
  EXPECT_TRUE(queue_->AckFault().ok());
  const std::vector<v1::UploadFrame> frames = Drain();
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[1].batch().step(), 5);
  Commit(2);
  EXPECT_TRUE(
      queue_->Flush(v1::DURABILITY_COMMITTED, absl::ZeroDuration()).ok());
}

}  // namespace
}  // namespace rankprobe
