#include "agent/runtime/queue/frame_queue.h"

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/io/crc32c.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr uint64_t kCredit = uint64_t{1} << 40;

class FrameQueueTest : public ::testing::Test {
 protected:
  void Make(uint64_t budget, OverflowPolicy policy,
            absl::Duration deadline = absl::ZeroDuration()) {
    queue_ = std::make_unique<FrameQueue>(
        FrameQueue::Options{budget, budget, policy, deadline}, &clock_, [] {});
  }

  static std::unique_ptr<RecordBuffer> Records(int64_t step, int count,
                                               size_t text = 10) {
    auto buffer = std::make_unique<RecordBuffer>();
    buffer->batch()->set_step(step);
    for (int i = 0; i < count; ++i) {
      v1::Record* record = buffer->Add();
      record->set_order(static_cast<uint64_t>(i));
      record->mutable_call()->set_entry(std::string(text, 'e'));
    }
    return buffer;
  }

  bool Payload(char tag, uint64_t size) {
    v1::LossReason reason;
    auto buffer = queue_->Reserve(size, &reason);
    if (buffer == nullptr) return false;
    for (uint64_t i = 0; i < size; ++i) {
      buffer->data()[i] = static_cast<char>(tag + i % 7);
    }
    FrameQueue::Digest digest{};
    digest[0] = static_cast<uint8_t>(tag);
    queue_->SubmitPayload(digest, std::move(buffer));
    return true;
  }

  // The next frame as the collector reads it.
  bool Next(uint64_t credit, v1::UploadFrame* frame) {
    EncodedFrame encoded;
    if (!queue_->NextFrame(credit, &encoded)) return false;
    std::string bytes = encoded.head;
    bytes.append(encoded.tail.data(), encoded.tail.size());
    EXPECT_TRUE(frame->ParseFromString(bytes));
    EXPECT_EQ(frame->sequence(), encoded.sequence);
    return true;
  }

  std::vector<v1::UploadFrame> Drain(uint64_t credit = kCredit) {
    std::vector<v1::UploadFrame> frames;
    v1::UploadFrame frame;
    while (Next(credit, &frame)) frames.push_back(frame);
    return frames;
  }

  void Commit(uint64_t sequence) {
    v1::UploadAck ack;
    ack.set_committed(sequence);
    queue_->Ack(ack);
  }

  uint64_t Used() {
    SessionStats stats;
    queue_->FillStats(&stats);
    return stats.queue_bytes;
  }

  ManualClock clock_;
  std::unique_ptr<FrameQueue> queue_;
};

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
    for (uint32_t n = random() % 6; n > 0 && Next(kCredit, &frame); --n) {
      // Frames after a loss in flight never arrive out of order.
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
  // Room that comes while somebody waits is taken.
  Make(4 << 20, OverflowPolicy::kBlock, absl::Seconds(30));
  ASSERT_TRUE(Payload('a', 3 << 20));
  const size_t frames = Drain().size();
  std::thread committer([&] { Commit(frames); });
  EXPECT_NE(queue_->Reserve(2 << 20, &reason), nullptr);
  committer.join();
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
  ASSERT_TRUE(Next(kCredit, &first));
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
      while (Next(kCredit, &frame)) Commit(frame.sequence());
      std::this_thread::yield();
    }
  });
  EXPECT_TRUE(queue_->Flush(v1::DURABILITY_COMMITTED, absl::Seconds(30)).ok());
  done = true;
  collector.join();
}

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
  // What the next frames carry: a payload's tag, '-' for nothing, 'R' records.
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
  Answer("", "", "a");  // the other is gone
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
  // Nobody at a barrier goes before that is told.
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
  // A refusal of that says nothing new.
  queue_->Ack(Refusing(3, 3));
  EXPECT_TRUE(Drain().empty());
  EXPECT_EQ(Used(), 0u);
  EXPECT_TRUE(
      queue_->Flush(v1::DURABILITY_COMMITTED, absl::ZeroDuration()).ok());
  SessionStats stats;
  queue_->FillStats(&stats);
  EXPECT_EQ(stats.lost_records, 3u);
  // Of frames that are not there.
  queue_->Ack(Refusing(1, 3));
  queue_->Ack(Refusing(99, 3));
}

// The ack that said so was lost with its connection; the first one of the next
// says it again.
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
  // Once more, after another break: it is known.
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

// Frames that the collector has are not what ended the upload.
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
  ASSERT_TRUE(queue_->NextFrame(kCredit, &first));
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
  queue_->StreamEnded("");  // which of them?
  for (int i = 0; i < 2; ++i) {
    queue_->Resume(0);
    const std::vector<v1::UploadFrame> alone = Drain();
    ASSERT_EQ(alone.size(), 1u) << i;
    EXPECT_TRUE(alone[0].has_batch());
    queue_->StreamEnded("");
  }
  // Its number comes empty, the others as they are, one after the other.
  queue_->Resume(0);
  std::vector<v1::UploadFrame> frames = Drain();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_FALSE(frames[0].has_batch());
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

// Nobody but the agent can say what became of it.
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
  ASSERT_EQ(told.size(), 2u);
  EXPECT_FALSE(told[0].has_chunk()) << "its number only";
  EXPECT_EQ(told[1].batch().step(), 5);
  const v1::LossEvent& loss = told[1].batch().records(0).loss();
  EXPECT_EQ(loss.reason(), v1::LOSS_REASON_COLLECTOR_REFUSED);
  EXPECT_EQ(loss.bytes(), 1000u);
  EXPECT_EQ(loss.records() + loss.payloads(), 0u);
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

}  // namespace
}  // namespace rankprobe
