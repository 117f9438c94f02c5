// SPDX-License-Identifier: Apache-2.0
// Payloads that are offered before they are sent.
#include <atomic>
#include <string>
#include <thread>

#include "agent/runtime/queue/frame_queue.h"
#include "agent/runtime/queue/testing/frame_queue_fixture.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::FrameQueueTest;

class OffersTest : public FrameQueueTest {
 protected:
  static constexpr uint64_t kSize = 100 << 10;

  void SetUp() override {
    Make(64 << 20, OverflowPolicy::kDropNewest);
    queue_->UseOffers(true);
  }
  std::string Offered() {
    v1::PayloadOffers offers;
    std::string tags;
    if (!queue_->NextOffers(&offers)) return "";
    for (const std::string& digest : offers.digests()) tags += digest[0];
    return tags;
  }
  static std::string Digest(char tag) {
    return std::string(1, tag) + std::string(15, '\0');
  }
  void Answer(const char* have, const char* coming, const char* wanted) {
    v1::UploadAck ack;
    for (; *have; ++have) ack.add_have_digests(Digest(*have));
    for (; *coming; ++coming) ack.add_coming_digests(Digest(*coming));
    for (; *wanted; ++wanted) ack.add_wanted_digests(Digest(*wanted));
    queue_->Ack(ack);
  }
  // The contents of the next frames: a payload's tag, '-' for none, 'R' for
  // records.
  std::string Sent() {
    std::string out;
    for (const v1::UploadFrame& frame : Drain()) {
      EXPECT_EQ(frame.sequence(), ++sequence_);
      out += frame.has_chunk()   ? frame.chunk().digest()[0]
             : frame.has_batch() ? 'R'
                                 : '-';
    }
    return out;
  }
  uint64_t sequence_ = 0;
};

TEST_F(OffersTest, WhatTheCollectorHasIsNotSentAndWhatItWantsIs) {
  ASSERT_TRUE(Payload('a', kSize) && Payload('b', kSize));
  ASSERT_TRUE(Payload('s', 100));
  ASSERT_TRUE(queue_->SubmitRecords(Records(0, 1)));
  EXPECT_EQ(Sent(), "") << "asked first";
  EXPECT_EQ(Offered(), "ab") << "small ones are not worth a question";
  EXPECT_EQ(Offered(), "");
  EXPECT_EQ(Sent(), "") << "not answered yet";
  Answer("a", "", "b");
  EXPECT_EQ(Sent(), "-bsR");
  Commit(sequence_);
  EXPECT_EQ(Used(), 0u);
  SessionStats stats;
  queue_->FillStats(&stats);
  EXPECT_EQ(stats.deduplicated_bytes, kSize);
}

TEST_F(OffersTest, AnotherRanksPayloadIsWaitedForAndTheBarrierWithIt) {
  ASSERT_TRUE(Payload('a', kSize) && Payload('b', kSize));
  ASSERT_TRUE(queue_->SubmitRecords(Records(0, 1)));
  EXPECT_EQ(Offered(), "ab");
  Answer("", "a", "b");
  std::atomic<bool> flushed{false};
  std::thread barrier([&] {
    EXPECT_TRUE(
        queue_->Flush(v1::DURABILITY_COMMITTED, absl::Seconds(30)).ok());
    flushed = true;
  });
  EXPECT_EQ(Sent(), "bR") << "what others wait for goes at once";
  Commit(sequence_);
  EXPECT_EQ(Sent(), "");
  EXPECT_FALSE(flushed);
  Answer("a", "", "");
  while (!flushed) {
    Sent();
    Commit(sequence_);
  }
  barrier.join();
  EXPECT_EQ(sequence_, 3u) << "one empty frame stands for it";
  EXPECT_EQ(Used(), 0u);
}

TEST_F(OffersTest, NothingIsPromisedBehindABarrier) {
  ASSERT_TRUE(Payload('a', kSize));
  std::thread barrier([&] {
    EXPECT_FALSE(
        queue_->Flush(v1::DURABILITY_COMMITTED, absl::Milliseconds(1)).ok());
  });
  barrier.join();
  ASSERT_TRUE(Payload('b', kSize));
  EXPECT_EQ(Offered(), "a");
  Answer("", "a", "");
  EXPECT_EQ(Sent(), "");
  EXPECT_EQ(Offered(), "");
  Answer("", "", "a");  // the other rank disconnected
  EXPECT_EQ(Sent(), "a");
  EXPECT_EQ(Offered(), "b");
  Answer("", "", "b");
  EXPECT_EQ(Sent(), "b");
}

TEST_F(OffersTest, PatienceEnds) {
  ASSERT_TRUE(Payload('a', kSize) && Payload('b', kSize));
  EXPECT_EQ(Offered(), "ab");
  Answer("", "a", "");
  EXPECT_EQ(Sent(), "");
  clock_.Advance(absl::Milliseconds(501));
  EXPECT_EQ(Sent(), "b") << "no answer";
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(Sent(), "a") << "the other does not send it";
}

TEST_F(OffersTest, AFullQueueDoesNotWait) {
  Make(1 << 20, OverflowPolicy::kDropNewest);
  queue_->UseOffers(true);
  ASSERT_TRUE(Payload('a', kSize) && Payload('b', kSize));
  EXPECT_EQ(Offered(), "ab");
  Answer("", "ab", "");
  EXPECT_EQ(Sent(), "");
  v1::LossReason reason;
  const auto held = queue_->Reserve(600 << 10, &reason);
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(Sent(), "ab");
}

TEST_F(OffersTest, AnotherConnectionAsksAgain) {
  ASSERT_TRUE(Payload('a', kSize) && Payload('b', kSize) &&
              Payload('c', kSize));
  EXPECT_EQ(Offered(), "abc");
  Answer("", "a", "b");
  EXPECT_EQ(Sent(), "b");
  queue_->Resume(1);
  EXPECT_EQ(Offered(), "ac") << "in their order";
  Answer("c", "", "a");
  EXPECT_EQ(Sent(), "a-");
  queue_->UseOffers(false);  // an older collector
  ASSERT_TRUE(Payload('d', kSize));
  EXPECT_EQ(Offered(), "");
  EXPECT_EQ(Sent(), "d");
}

}  // namespace
}  // namespace rankprobe
