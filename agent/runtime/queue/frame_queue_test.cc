// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/frame_queue.h"

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "agent/runtime/queue/testing/frame_queue_fixture.h"
#include "common/io/crc32c.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::FrameQueueTest;

TEST_F(FrameQueueTest, NumbersFramesSplitsAndKeepsOrder) {
  Make(64 << 20, OverflowPolicy::kDropNewest);
  ASSERT_TRUE(Payload('a', (2 << 20) + 5));
  ASSERT_TRUE(queue_->SubmitRecords(Records(3, 4000, 600)));  // over 1 MiB
  const std::vector<v1::UploadFrame> frames = Drain();
  uint64_t bytes = 0;
  int records = 0;
  for (size_t i = 0; i < frames.size(); ++i) {
    EXPECT_EQ(frames[i].sequence(), i + 1);
    EXPECT_LE(frames[i].ByteSizeLong(), 1u << 20);
    if (frames[i].has_chunk()) {
      EXPECT_EQ(records, 0) << "payloads go before the records";
      EXPECT_EQ(frames[i].chunk().offset_bytes(), bytes);
      EXPECT_EQ(frames[i].chunk().crc32c(), Crc32c(frames[i].chunk().data()));
      bytes += frames[i].chunk().data().size();
    } else {
      for (const v1::Record& r : frames[i].batch().records()) {
        EXPECT_EQ(r.order(), static_cast<uint64_t>(records++));
      }
    }
  }
  EXPECT_EQ(bytes, (2u << 20) + 5);
  EXPECT_EQ(records, 4000);
  Commit(frames.size());
  EXPECT_EQ(Used(), 0u) << "all room is given back";
}

// A collector that has the memory receives offsets; a collector without it
// receives bytes, in the same frames.
TEST_F(FrameQueueTest, TheLaneCarriesPlacesInTheSameFrames) {
  queue_ = std::make_unique<FrameQueue>(
      FrameQueue::Options{.budget_bytes = 64 << 20,
                          .max_payload_bytes = 64 << 20,
                          .policy = OverflowPolicy::kDropNewest,
                          .shared_memory = true},
      &clock_, [] {});
  EXPECT_EQ(queue_->memory()->shared(), nullptr);
  EXPECT_TRUE(queue_->memory()->shared_status().ok())
      << "nothing was large yet";
  ASSERT_TRUE(Payload('a', (2 << 20) + 5));
  ASSERT_TRUE(Payload('b', 100));
  ASSERT_TRUE(queue_->SubmitRecords(Records(3, 5)));
  const SharedMemory* const shared = queue_->memory()->shared();
  ASSERT_NE(shared, nullptr) << queue_->memory()->shared_status();
  queue_->UseLane(true);
  // Credit counts the bytes.
  EXPECT_EQ(Drain(1 << 20).size(), 1u);
  queue_->Resume(0);
  const std::vector<v1::UploadFrame> places = Drain();
  queue_->Resume(0);
  queue_->UseLane(false);
  const std::vector<v1::UploadFrame> bytes = Drain();
  ASSERT_EQ(places.size(), 5u);
  ASSERT_EQ(bytes.size(), 5u);
  for (size_t i = 0; i < 3; ++i) {
    v1::UploadFrame frame = places[i];
    ASSERT_TRUE(frame.chunk().has_lane());
    EXPECT_LT(frame.ByteSizeLong(), 100u);
    const v1::LaneReference lane = frame.chunk().lane();
    ASSERT_LE(lane.offset_bytes() + lane.length_bytes(), shared->size());
    // Like the collector.
    frame.mutable_chunk()->clear_lane();
    frame.mutable_chunk()->set_data(shared->data() + lane.offset_bytes(),
                                    lane.length_bytes());
    frame.mutable_chunk()->set_crc32c(Crc32c(frame.chunk().data()));
    // The checksum of the frame covers the bytes that were received.
    frame.set_crc32c(bytes[i].crc32c());
    EXPECT_EQ(frame.SerializeAsString(), bytes[i].SerializeAsString());
  }
  EXPECT_FALSE(places[3].chunk().has_lane()) << "too small";
  for (size_t i = 3; i < 5; ++i)
    EXPECT_EQ(places[i].SerializeAsString(), bytes[i].SerializeAsString());
  // The memory stays allocated until the frame is committed.
  const uint64_t first = places[0].chunk().lane().offset_bytes();
  const auto place_of_next = [&](char tag) {
    EXPECT_TRUE(Payload(tag, (2 << 20) + 5));
    queue_->UseLane(true);
    return Drain()[0].chunk().lane().offset_bytes();
  };
  EXPECT_NE(place_of_next('c'), first);
  Commit(5);
  EXPECT_EQ(place_of_next('d'), first);
}

TEST_F(FrameQueueTest, WhatIsNotCommittedAtTheEndIsCounted) {
  Make(64 << 20, OverflowPolicy::kDropNewest);
  EXPECT_EQ(queue_->Undelivered().records(), 0u);
  EXPECT_FALSE(queue_->Undelivered().has_first_step());
  ASSERT_TRUE(queue_->SubmitRecords(Records(3, 5)));
  ASSERT_EQ(Drain().size(), 1u);
  Commit(1);
  ASSERT_TRUE(Payload('a', (2 << 20) + 5));  // three frames, one payload
  ASSERT_TRUE(queue_->SubmitRecords(Records(4, 7)));
  ASSERT_EQ(Drain().size(), 4u);                      // in flight
  ASSERT_TRUE(queue_->SubmitRecords(Records(9, 2)));  // not yet
  ASSERT_TRUE(Payload('b', 100));
  v1::Undelivered left = queue_->Undelivered();
  EXPECT_EQ(left.records(), 9u);
  EXPECT_EQ(left.payloads(), 2u);
  EXPECT_EQ(left.payload_bytes(), (2u << 20) + 105);
  EXPECT_EQ(left.first_step(), 4);
  EXPECT_EQ(left.last_step(), 9);
  // Losses that are reported in records are lost with them.
  const auto report = [this](int64_t step) {
    std::unique_ptr<RecordBuffer> records = Records(step, 1);
    v1::LossEvent* const loss = records->Add()->mutable_loss();
    loss->set_records(100);
    loss->set_payloads(20);
    ASSERT_TRUE(queue_->SubmitRecords(std::move(records)));
  };
  report(10);
  report(11);
  left = queue_->Undelivered();
  EXPECT_EQ(left.records(), 9u + 202);
  EXPECT_EQ(left.payloads(), 2u + 40);
  EXPECT_EQ(left.unframed_payloads(), 1u + 40);
  Drain();
  left = queue_->Undelivered();
  EXPECT_EQ(left.records(), 9u + 202) << "in frames";
  EXPECT_EQ(left.payloads(), 2u + 40);
  EXPECT_EQ(left.unframed_payloads(), 0u);
  EXPECT_EQ(left.last_step(), 11);
}

// The part of a payload that one collector has committed is useless to another.
TEST_F(FrameQueueTest, AnotherCollectorGetsPayloadsFromTheirBeginning) {
  Make(64 << 20, OverflowPolicy::kDropNewest);
  ASSERT_TRUE(Payload('a', (2 << 20) + 5));  // frames 1 to 3
  ASSERT_TRUE(queue_->SubmitRecords(Records(3, 5)));
  ASSERT_EQ(Drain().size(), 4u);
  Commit(2);
  queue_->Resume(0);
  EXPECT_EQ(queue_->FirstSequence(), 1u);
  const std::vector<v1::UploadFrame> again = Drain();
  ASSERT_EQ(again.size(), 4u);
  uint64_t bytes = 0;
  for (size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i].sequence(), i + 1);
    if (!again[i].has_chunk()) continue;
    EXPECT_EQ(again[i].chunk().offset_bytes(), bytes);
    bytes += again[i].chunk().data().size();
  }
  EXPECT_EQ(bytes, (2u << 20) + 5);
  // Acks of this collector count, not those of the other.
  Commit(1);
  EXPECT_EQ(queue_->FirstSequence(), 2u);
  Commit(4);
  EXPECT_EQ(Used(), 0u);
}

// The same for payloads of records that it receives.
TEST_F(FrameQueueTest, PayloadsStayUntilRecordsBehindThemAreCommitted) {
  Make(64 << 20, OverflowPolicy::kDropNewest);
  queue_->KeepUntilReferred(true);
  ASSERT_TRUE(Payload('a', 100));
  ASSERT_TRUE(queue_->SubmitRecords(Records(3, 5)));
  ASSERT_TRUE(Payload('b', 100));
  ASSERT_TRUE(Payload('c', (1 << 20) + 5));
  ASSERT_TRUE(queue_->SubmitRecords(Records(4, 5)));
  ASSERT_EQ(Drain().size(), 6u);
  Commit(4);  // c's first piece
  queue_->Resume(0);
  EXPECT_EQ(queue_->FirstSequence(), 3u) << "a went with its records";
  ASSERT_EQ(Drain().size(), 4u);
  // A barrier that was passed stays passed.
  SessionStats stats;
  queue_->FillStats(&stats);
  EXPECT_EQ(stats.committed_sequence, 4u);
  Commit(2);  // frames that it never had
  EXPECT_EQ(queue_->FirstSequence(), 3u);
  Commit(6);
  EXPECT_EQ(Used(), 0u);
}

TEST_F(FrameQueueTest, WhatIsKeptGivesWay) {
  Make(4 << 20, OverflowPolicy::kDropNewest);
  queue_->KeepUntilReferred(true);
  ASSERT_TRUE(Payload('a', 3 << 20));
  Commit(Drain().size());
  EXPECT_GE(Used(), 3u << 20);
  ASSERT_TRUE(Payload('b', 3 << 20)) << "what is kept is in nobody's way";
  Commit(Drain().back().sequence());
  EXPECT_TRUE(queue_->HasRoomFor(3 << 20));
  EXPECT_EQ(Used(), 0u);
}

// stop() is such a barrier if frames outlive a process that is killed.
TEST_F(FrameQueueTest, ABarrierAtTheSpool) {
  FrameQueue::Options options{64 << 20, 64 << 20, OverflowPolicy::kDropNewest};
  options.spooled = true;
  queue_ = std::make_unique<FrameQueue>(options, &clock_, [] {});
  EXPECT_TRUE(queue_->FlushToSpool(absl::ZeroDuration()).ok()) << "nothing yet";
  ASSERT_TRUE(queue_->SubmitRecords(Records(3, 5)));
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(queue_->FlushToSpool(absl::Milliseconds(1))));
  // The writer is stuck: a second call does not wait again.
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(queue_->FlushToSpool(absl::InfiniteDuration())));
  EncodedFrame frame;
  ASSERT_TRUE(queue_->NextUnspooled(&frame));
  queue_->NoteSpooled(frame.sequence);
  EXPECT_FALSE(queue_->NextUnspooled(&frame));
  EXPECT_TRUE(queue_->FlushToSpool(absl::ZeroDuration()).ok());
  ASSERT_TRUE(queue_->SubmitRecords(Records(4, 5)));
  std::atomic<bool> written{false};
  std::thread worker([&] {
    EncodedFrame next;
    while (!queue_->NextUnspooled(&next)) std::this_thread::yield();
    written = true;
    queue_->NoteSpooled(next.sequence);
    while (queue_->NextUnspooled(&next)) queue_->NoteSpooled(next.sequence);
  });
  EXPECT_TRUE(queue_->FlushToSpool(absl::Seconds(30)).ok());
  EXPECT_TRUE(written);
  worker.join();
  // It turns out that there is no spool.
  ASSERT_TRUE(queue_->SubmitRecords(Records(5, 5)));
  queue_->NoteSpooled(UINT64_MAX);
  EXPECT_TRUE(queue_->FlushToSpool(absl::ZeroDuration()).ok());
}

// The barrier of stop() if it need not wait for the collector.
TEST_F(FrameQueueTest, RecordsAreKeptAndPayloadsAreCommitted) {
  FrameQueue::Options options{64 << 20, 64 << 20, OverflowPolicy::kDropNewest};
  options.spooled = options.spools_records_only = true;
  queue_ = std::make_unique<FrameQueue>(options, &clock_, [] {});
  EXPECT_TRUE(queue_->AllKept()) << "nothing yet";
  ASSERT_TRUE(queue_->SubmitRecords(Records(3, 5)));
  EXPECT_FALSE(queue_->AllKept());
  EncodedFrame frame;
  ASSERT_TRUE(queue_->NextUnspooled(&frame));
  EXPECT_FALSE(frame.head.empty());
  EXPECT_FALSE(queue_->AllKept()) << "it is not written yet";
  queue_->NoteSpooled(frame.sequence);
  EXPECT_TRUE(queue_->AllKept());
  EXPECT_EQ(queue_->Undelivered().records(), 5u);
  EXPECT_EQ(queue_->Undelivered(/*spool_delivers=*/true).records(), 0u);
  ASSERT_TRUE(Payload('a', 100));
  ASSERT_TRUE(queue_->SubmitRecords(Records(3, 2)));
  ASSERT_TRUE(queue_->NextUnspooled(&frame));
  EXPECT_EQ(frame.sequence, 2u);
  EXPECT_TRUE(frame.head.empty()) << "a payload";
  ASSERT_TRUE(queue_->NextUnspooled(&frame));
  EXPECT_EQ(frame.sequence, 3u);
  EXPECT_FALSE(queue_->AllKept());
  EXPECT_EQ(queue_->Undelivered(/*spool_delivers=*/true).payloads(), 1u);
  ASSERT_EQ(Drain().size(), 3u);
  Commit(2);
  EXPECT_FALSE(queue_->AllKept());
  Commit(3);
  EXPECT_TRUE(queue_->AllKept());
}

// The worker and stop() make frames at the same time.
TEST_F(FrameQueueTest, FramesMadeByTwoThreadsAreInTheOrderOfTheRecords) {
  FrameQueue::Options options{64 << 20, 64 << 20, OverflowPolicy::kDropNewest};
  options.spooled = options.spools_records_only = true;
  queue_ = std::make_unique<FrameQueue>(options, &clock_, [] {});
  constexpr int kSteps = 400;
  std::atomic<bool> done{false};
  std::vector<v1::UploadFrame> sent;
  std::thread worker([&] {
    v1::UploadFrame frame;
    while (!done || queue_->HasWork()) {
      if (Next(testing::kUnboundedCredit, &frame)) sent.push_back(frame);
    }
  });
  EncodedFrame kept;
  for (int step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(queue_->SubmitRecords(Records(step, 20)));
    while (queue_->NextUnspooled(&kept)) queue_->NoteSpooled(kept.sequence);
  }
  done = true;
  worker.join();
  int64_t last = -1;
  size_t records = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(sent[i].sequence(), i + 1);
    EXPECT_GE(sent[i].batch().step(), last);
    last = sent[i].batch().step();
    records += static_cast<size_t>(sent[i].batch().records_size());
  }
  EXPECT_EQ(records, 20u * kSteps);
}

TEST_F(FrameQueueTest, CreditBoundsWhatIsInFlight) {
  Make(64 << 20, OverflowPolicy::kDropNewest);
  ASSERT_TRUE(Payload('a', 4 << 20));
  EXPECT_EQ(Drain(2 << 20).size(), 2u);
  Commit(1);
  EXPECT_EQ(Drain(2 << 20).size(), 1u);
  EXPECT_EQ(Drain(0).size(), 0u);
  Commit(3);
  EXPECT_EQ(Drain(0).size(), 1u) << "one frame may always go";
}

// Whatever the collector has when a connection breaks, it ends up with every
// frame once and in order.
TEST_F(FrameQueueTest, ResumesAfterRandomBreaks) {
  std::mt19937 random(4);
  Make(64 << 20, OverflowPolicy::kDropNewest);
  std::vector<v1::UploadFrame> collector;
  for (int round = 0; round < 200; ++round) {
    if (random() % 2) {
      ASSERT_TRUE(queue_->SubmitRecords(Records(round, 3)));
    } else {
      ASSERT_TRUE(Payload(static_cast<char>(round), random() % 3000000 + 1));
    }
    v1::UploadFrame frame;
    for (uint32_t n = random() % 6;
         n > 0 && Next(testing::kUnboundedCredit, &frame); --n) {
      // After a lost frame no later one arrives out of order.
      if (frame.sequence() == collector.size() + 1) collector.push_back(frame);
    }
    if (random() % 3 == 0) Commit(collector.size());
    if (random() % 4 == 0) {
      const size_t kept =
          collector.size() - random() % 3 % (collector.size() + 1);
      SessionStats stats;
      queue_->FillStats(&stats);
      collector.resize(std::max<size_t>(kept, stats.committed_sequence));
      queue_->Resume(collector.size());
    }
  }
  queue_->Resume(collector.size());
  for (const v1::UploadFrame& frame : Drain()) collector.push_back(frame);
  for (size_t i = 0; i < collector.size(); ++i) {
    ASSERT_EQ(collector[i].sequence(), i + 1);
  }
  Commit(collector.size());
  EXPECT_EQ(Used(), 0u);
}

TEST_F(FrameQueueTest, TheBudgetHoldsAndWhatIsShedIsTold) {
  Make(4 << 20, OverflowPolicy::kDropNewest);
  int taken = 0, shed = 0;
  for (int i = 0; i < 10; ++i)
    ++(Payload(static_cast<char>(i), 1 << 20) ? taken : shed);
  EXPECT_EQ(taken, 3) << "an eighth is kept for records";
  EXPECT_LE(Used(), 4u << 20);
  bool refused = false;
  for (int i = 0; i < 100 && !refused; ++i) {
    refused = !queue_->SubmitRecords(Records(7, 100, 200));
  }
  EXPECT_TRUE(refused);
  EXPECT_LE(Used(), 4u << 20);
  uint64_t told = 0;
  for (const v1::UploadFrame& frame : Drain()) {
    for (const v1::Record& record : frame.batch().records()) {
      if (record.has_loss()) {
        EXPECT_EQ(frame.batch().step(), 7);
        told += record.loss().records();
      }
    }
  }
  EXPECT_EQ(told, 100u);
  SessionStats stats;
  queue_->FillStats(&stats);
  EXPECT_EQ(stats.lost_records, 100u);
  EXPECT_EQ(stats.lost_payloads, 7u);
}

TEST_F(FrameQueueTest, BlockWaitsForRoomAndThenStopsWaiting) {
  Make(4 << 20, OverflowPolicy::kBlock, absl::Milliseconds(20));
  ASSERT_TRUE(Payload('a', 3 << 20));
  v1::LossReason reason;
  EXPECT_EQ(queue_->Reserve(1 << 20, &reason), nullptr);
  EXPECT_EQ(reason, v1::LOSS_REASON_AGENT_DEADLINE);
  EXPECT_EQ(queue_->Reserve(1 << 20, &reason), nullptr);
  EXPECT_EQ(reason, v1::LOSS_REASON_AGENT_BUDGET) << "no second wait";
  EXPECT_EQ(queue_->Reserve(100 << 20, &reason), nullptr);
  EXPECT_EQ(reason, v1::LOSS_REASON_TOO_LARGE);
  Commit(Drain().size());
  EXPECT_NE(queue_->Reserve(1 << 20, &reason), nullptr);
  // Room that becomes free during a wait is used.
  Make(4 << 20, OverflowPolicy::kBlock, absl::Seconds(30));
  ASSERT_TRUE(Payload('a', 3 << 20));
  const size_t frames = Drain().size();
  std::thread committer([&] { Commit(frames); });
  EXPECT_NE(queue_->Reserve(2 << 20, &reason), nullptr);
  committer.join();
}

TEST_F(FrameQueueTest, WhatMayBeLeftOutWaitsForNothingAndIsNoLoss) {
  // A wait would take an hour.
  Make(4 << 20, OverflowPolicy::kBlock, absl::Hours(1));
  ASSERT_TRUE(Payload('a', 3 << 20));
  EXPECT_EQ(queue_->Reserve(1 << 20, nullptr), nullptr);
  EXPECT_EQ(queue_->Reserve(100 << 20, nullptr), nullptr);
  SessionStats stats;
  queue_->FillStats(&stats);
  EXPECT_EQ(stats.lost_payloads, 0u);
  Commit(Drain().size());
  EXPECT_NE(queue_->Reserve(1 << 20, nullptr), nullptr);
}

TEST_F(FrameQueueTest, KnownPayloadsAreNotQueuedAgain) {
  Make(64 << 20, OverflowPolicy::kDropNewest);
  ASSERT_TRUE(Payload('a', 1000));
  ASSERT_TRUE(Payload('a', 1000));
  EXPECT_EQ(Drain().size(), 1u);
  FrameQueue::Digest digest{};
  digest[0] = 'a';
  EXPECT_TRUE(queue_->KnowsPayload(digest, 1000));
}

TEST_F(FrameQueueTest, WhatTheCollectorHasIsSentAsEmptyFrames) {
  Make(64 << 20, OverflowPolicy::kDropNewest);
  ASSERT_TRUE(Payload('a', 3 << 20));
  v1::UploadFrame first;
  ASSERT_TRUE(Next(testing::kUnboundedCredit, &first));
  v1::UploadAck ack;
  ack.add_have_digests(first.chunk().digest());
  queue_->Ack(ack);
  const std::vector<v1::UploadFrame> rest = Drain();
  ASSERT_EQ(rest.size(), 3u);
  for (size_t i = 0; i < rest.size(); ++i) {
    EXPECT_FALSE(rest[i].has_chunk());
    EXPECT_EQ(rest[i].sequence(), i + 2);
  }
  Commit(4);
  EXPECT_EQ(Used(), 0u);
}

TEST_F(FrameQueueTest, FlushIsABarrierWithADeadline) {
  Make(64 << 20, OverflowPolicy::kDropNewest);
  EXPECT_TRUE(queue_->Flush(v1::DURABILITY_COMMITTED, absl::Seconds(30)).ok())
      << "nothing to wait for";
  ASSERT_TRUE(queue_->SubmitRecords(Records(0, 3)));
  EXPECT_EQ(
      queue_->Flush(v1::DURABILITY_COMMITTED, absl::Milliseconds(5)).code(),
      absl::StatusCode::kDeadlineExceeded);
  std::atomic<bool> done{false};
  std::thread collector([&] {
    v1::UploadFrame frame;
    while (!done) {
      while (Next(testing::kUnboundedCredit, &frame)) Commit(frame.sequence());
      std::this_thread::yield();
    }
  });
  EXPECT_TRUE(queue_->Flush(v1::DURABILITY_COMMITTED, absl::Seconds(30)).ok());
  done = true;
  collector.join();
}

TEST_F(FrameQueueTest, BarriersThatWereGivenUpDoNotPileUp) {
  Make(64 << 20, OverflowPolicy::kDropNewest);
  const auto flush = [this] {
    return queue_->Flush(v1::DURABILITY_COMMITTED, absl::ZeroDuration()).code();
  };
  ASSERT_TRUE(queue_->SubmitRecords(Records(0, 1)));
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(flush(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(queue_->Unframed(), 2u) << "the records and one barrier";
  // It does not cover later records.
  ASSERT_TRUE(queue_->SubmitRecords(Records(1, 1)));
  EXPECT_EQ(flush(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(queue_->Unframed(), 4u);
  EXPECT_EQ(Drain().size(), 2u);
  EXPECT_EQ(queue_->Unframed(), 0u);
  Commit(1);
  EXPECT_EQ(flush(), absl::StatusCode::kDeadlineExceeded);
  Drain();
  Commit(2);
  EXPECT_EQ(flush(), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace rankprobe
