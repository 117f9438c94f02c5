// SPDX-License-Identifier: Apache-2.0
// The commit queue while the disk has no room for payloads.
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "collector/control/control_plane.h"
#include "collector/ingest/commit_queue.h"
#include "collector/testing/frames.h"
#include "common/records/call_values.h"
#include "common/testing/fault_file_system.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::DigestOf;
using testing::Frames;
using testing::MakeIdentity;
using testing::RandomBytes;

constexpr size_t kPressedBytes = 100000;

class HeardOfPressure {
 public:
  CommitQueue::Listener Listener() {
    return {[this](const v1::UploadAck& ack) {
              absl::MutexLock lock(&mutex_);
              committed_ = std::max(committed_, ack.committed());
              for (const v1::RefusedFrame& refused : ack.refused_frames()) {
                refused_.insert(refused.sequence());
                if (committed_ >= refused.sequence())
                  late_.insert(refused.sequence());
              }
              for (const std::string& digest : ack.wanted_digests())
                wanted_.insert(digest);
              for (const std::string& digest : ack.coming_digests())
                coming_.insert(digest);
              if (ack.payload_credit() != v1::PAYLOAD_CREDIT_UNSPECIFIED)
                credit_ = ack.payload_credit();
            },
            [](const absl::Status&) {}};
  }
  bool WaitCommitted(uint64_t sequence) {
    return Wait([this, sequence]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return committed_ >= sequence;
    });
  }
  bool WaitWanted(const std::string& digest) {
    return Wait([this, &digest]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return wanted_.contains(digest);
    });
  }
  bool WaitComing(const std::string& digest) {
    return Wait([this, &digest]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return coming_.contains(digest);
    });
  }
  std::set<uint64_t> refused() {
    absl::MutexLock lock(&mutex_);
    return refused_;
  }
  // Those that were refused in or after the ack that reported them as committed.
  std::set<uint64_t> late() {
    absl::MutexLock lock(&mutex_);
    return late_;
  }
  v1::PayloadCredit credit() {
    absl::MutexLock lock(&mutex_);
    return credit_;
  }

 private:
  template <typename Fn>
  bool Wait(const Fn& reached) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&reached),
                                   absl::Seconds(20));
  }

  absl::Mutex mutex_;
  uint64_t committed_ = 0;
  std::set<uint64_t> refused_, late_;
  std::set<std::string> wanted_, coming_;
  v1::PayloadCredit credit_ = v1::PAYLOAD_CREDIT_UNSPECIFIED;
};

class CommitQueuePressureTest : public testing::TempDirTest {
 protected:
  void SetUp() override {
    TempDirTest::SetUp();
    store_ = OpenStore();
    control_ = std::make_unique<ControlPlane>(
        ControlPlane::Options(), store_.get(), store_.get(), &clock_);
    auto file = fs_.OpenForWrite("/d/f", FileSystem::OpenMode::kTruncate);
    ASSERT_TRUE((*file)->Append(std::string(1000, 'x')).ok());
    pressure_.emplace(DiskPressure::Options{"/d", 70, 90, 0}, &fs_, &clock_);
    CommitQueue::Options options;
    options.sync_interval = absl::Milliseconds(10);
    options.pressure = &*pressure_;
    queue_ =
        std::make_unique<CommitQueue>(options, store_.get(), &control_->gate(),
                                      &clock_, [](const absl::Status&) {});
  }
  void TearDown() override {
    queue_.reset();
    control_.reset();
    store_.reset();
    TempDirTest::TearDown();
  }

  void Fill(uint64_t percent) {
    fs_.SetCapacity(1000 * 100 / percent);
    if (pressure_->Look()) queue_->TellPayloadCredit();
  }
  uint64_t Add(int who, const v1::Identity& identity, uint64_t committed = 0,
               const std::string& principal = "") {
    return queue_->Add("s", identity, principal, committed,
                       heard_[who].Listener());
  }
  void Submit(uint64_t upload, const v1::UploadFrame& frame) {
    queue_->Submit(upload, ReceivedFrame(frame),
                   SizeOf(frame, frame.ByteSizeLong()));
  }
  // Sends the frames from `first` on, until they are committed.
  void Send(int who, uint64_t upload, Frames* frames, size_t first = 0) {
    for (size_t i = first; i < frames->size(); ++i)
      Submit(upload, frames->frame(i));
    ASSERT_TRUE(heard_[who].WaitCommitted(frames->size()));
  }
  // Returns the payloads that the records of a step refer to.
  std::vector<v1::PayloadRef> Refs(const Frames& frames, int64_t step) {
    std::vector<v1::PayloadRef> refs;
    StepKey key;
    key.run = "run";
    key.step = step;
    key.incarnation = frames.identity().incarnation();
    const absl::Status status =
        store_->ForEachRecord(key, [&](const v1::Record& record) {
          if (record.has_call()) {
            ForEachTensor(record.call(), [&](const v1::TensorSummary& tensor) {
              refs.push_back(tensor.payload());
            });
          }
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
    return refs;
  }
  // Returns the reason why the single payload of a step is lost.
  v1::LossReason LostOf(const Frames& frames, int64_t step) {
    const std::vector<v1::PayloadRef> refs = Refs(frames, step);
    EXPECT_EQ(refs.size(), 1u);
    if (refs.empty()) return v1::LOSS_REASON_UNSPECIFIED;
    EXPECT_EQ(
        refs[0].lost() == v1::LOSS_REASON_UNSPECIFIED,
        store_->HasPayload("run", refs[0].digest(), refs[0].length_bytes()))
        << "stored, or said to be lost";
    return refs[0].lost();
  }
  bool Has(const std::string& data) {
    return store_->HasPayload("run", DigestOf(data), data.size());
  }

  SystemClock clock_;
  testing::FaultFileSystem fs_;
  std::optional<DiskPressure> pressure_;
  std::unique_ptr<Store> store_;
  HeardOfPressure heard_[4];
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<CommitQueue> queue_;
};

TEST_F(CommitQueuePressureTest, RecordsGoOnAndPayloadsAreCountedByTheirEntry) {
  Frames frames(MakeIdentity("run", 0, 10));
  const uint64_t upload = Add(0, frames.identity());
  EXPECT_EQ(heard_[0].credit(), v1::PAYLOAD_CREDIT_TAKEN);
  uint64_t sent = 0;
  const auto step = [&](int64_t number) {
    const size_t first = frames.size();
    frames.AddStep(number, RandomBytes(sent++, kPressedBytes));
    Send(0, upload, &frames, first);
    return LostOf(frames, number);
  };
  Fill(69);
  EXPECT_EQ(step(0), v1::LOSS_REASON_UNSPECIFIED);
  Fill(70);
  EXPECT_EQ(heard_[0].credit(), v1::PAYLOAD_CREDIT_NOT_NOW);
  EXPECT_EQ(step(1), v1::LOSS_REASON_COLLECTOR_DISK);
  Fill(90);
  EXPECT_EQ(heard_[0].credit(), v1::PAYLOAD_CREDIT_NONE);
  EXPECT_EQ(step(2), v1::LOSS_REASON_COLLECTOR_DISK);
  Fill(60);
  EXPECT_EQ(heard_[0].credit(), v1::PAYLOAD_CREDIT_TAKEN);
  EXPECT_EQ(step(3), v1::LOSS_REASON_UNSPECIFIED);
  EXPECT_EQ(heard_[0].refused(), (std::set<uint64_t>{3, 5}));
  EXPECT_TRUE(heard_[0].late().empty())
      << "a thread that syncs may report it as committed at any moment";
  EXPECT_EQ(pressure_->State().refused_payloads(), 2u);
  EXPECT_EQ(pressure_->State().refused_payload_bytes(), 2 * kPressedBytes);
  const auto steps = store_->ListSteps("run");
  ASSERT_TRUE(steps.ok());
  ASSERT_EQ(steps->size(), 4u);
  for (const v1::StepInfo& info : *steps) {
    const bool lost = info.step() == 1 || info.step() == 2;
    EXPECT_EQ(info.stored_records(), 2u);
    EXPECT_EQ(info.payloads(), 1u);
    ASSERT_EQ(info.losses_size(), lost ? 1 : 0) << info.DebugString();
    if (!lost) continue;
    EXPECT_EQ(info.losses(0).reason(), v1::LOSS_REASON_COLLECTOR_DISK);
    EXPECT_EQ(info.losses(0).referred_payloads(), 1u);
  }
}

// Half of a payload is useless: above 70 % a begun one may be completed, above
// 90 % nothing may be written.
TEST_F(CommitQueuePressureTest, WhatHasBegunEndsAsLongAsThereIsRoom) {
  for (const uint64_t percent : {75u, 95u}) {
    Fill(50);
    Frames frames(MakeIdentity("run", 0, percent));
    const std::string data = RandomBytes(percent, 3 * kPressedBytes);
    frames.AddStep(0, data, kPressedBytes);
    const int who = percent == 75 ? 0 : 1;
    const uint64_t upload = Add(who, frames.identity());
    Submit(upload, frames.frame(0));
    ASSERT_TRUE(heard_[who].WaitCommitted(1));
    Fill(percent);
    Send(who, upload, &frames, 1);
    EXPECT_EQ(LostOf(frames, 0), percent == 75
                                     ? v1::LOSS_REASON_UNSPECIFIED
                                     : v1::LOSS_REASON_COLLECTOR_DISK);
    EXPECT_EQ(Has(data), percent == 75);
  }
}

// The rest of a refused payload, which the rank sent before it received the
// refusal.
TEST_F(CommitQueuePressureTest, TheEndOfWhatWasRefusedIsRefused) {
  Fill(75);
  Frames frames(MakeIdentity("run", 0, 10));
  const std::string data = RandomBytes(1, 3 * kPressedBytes);
  frames.AddStep(0, data, kPressedBytes);
  const uint64_t upload = Add(0, frames.identity());
  Submit(upload, frames.frame(0));
  ASSERT_TRUE(heard_[0].WaitCommitted(1));
  Fill(50);
  Send(0, upload, &frames, 1);
  EXPECT_EQ(heard_[0].refused(), (std::set<uint64_t>{1, 2, 3}));
  EXPECT_EQ(LostOf(frames, 0), v1::LOSS_REASON_COLLECTOR_DISK);
  EXPECT_EQ(pressure_->State().refused_payloads(), 1u);
  // The payload is sent again, from its beginning.
  const size_t sent = frames.size();
  frames.AddStep(1, data, kPressedBytes);
  Send(0, upload, &frames, sent);
  EXPECT_EQ(LostOf(frames, 1), v1::LOSS_REASON_UNSPECIFIED);
}

TEST_F(CommitQueuePressureTest, WhatIsThereTakesNoRoom) {
  Frames first(MakeIdentity("run", 0, 10)), second(MakeIdentity("run", 1, 11));
  const std::string data = RandomBytes(1, kPressedBytes);
  first.AddStep(0, data);
  second.AddStep(0, data);
  Send(0, Add(0, first.identity()), &first);
  Fill(95);
  Send(1, Add(1, second.identity()), &second);
  EXPECT_TRUE(heard_[1].refused().empty());
  EXPECT_EQ(LostOf(second, 0), v1::LOSS_REASON_UNSPECIFIED);
}

// With principals, the names of payloads in the store are different.
TEST_F(CommitQueuePressureTest, AlsoWherePayloadsHaveOtherNames) {
  Fill(75);
  Frames frames(MakeIdentity("run", 0, 10));
  frames.AddStep(0, RandomBytes(1, kPressedBytes));
  Send(0, Add(0, frames.identity(), 0, "alice"), &frames);
  EXPECT_EQ(LostOf(frames, 0), v1::LOSS_REASON_COLLECTOR_DISK);
}

// A rank that waits for another's payload is notified when that is refused.
TEST_F(CommitQueuePressureTest, WhoWaitsForARefusedPayloadIsTold) {
  const std::string data = RandomBytes(1, kPressedBytes),
                    digest = DigestOf(data);
  Frames first(MakeIdentity("run", 0, 10)), second(MakeIdentity("run", 1, 11)),
      third(MakeIdentity("run", 2, 12));
  first.AddStep(0, data);
  second.AddStep(0, data);
  v1::UploadFrame offer;
  offer.mutable_offers()->add_digests(digest);
  offer.mutable_offers()->add_length_bytes(kPressedBytes);
  const uint64_t a = Add(0, first.identity()), b = Add(1, second.identity());
  Submit(a, offer);
  ASSERT_TRUE(heard_[0].WaitWanted(digest));
  Submit(b, offer);
  ASSERT_TRUE(heard_[1].WaitComing(digest));
  Fill(75);
  Send(0, a, &first);
  ASSERT_TRUE(heard_[1].WaitWanted(digest));
  Send(1, b, &second);
  EXPECT_EQ(LostOf(second, 0), v1::LOSS_REASON_COLLECTOR_DISK);
  // From now on no upload has to wait.
  const uint64_t c = Add(2, third.identity()), d = Add(3, second.identity(), 2);
  Submit(c, offer);
  ASSERT_TRUE(heard_[2].WaitWanted(digest));
  Submit(d, offer);
  ASSERT_TRUE(heard_[3].WaitWanted(digest));
}

// The ack with the refusal may have been lost, and records arrive by another
// upload.
TEST_F(CommitQueuePressureTest, IsKnownAfterAReconnect) {
  Fill(75);
  Frames frames(MakeIdentity("run", 0, 10));
  frames.AddStep(0, RandomBytes(1, kPressedBytes));
  Submit(Add(0, frames.identity()), frames.frame(0));
  ASSERT_TRUE(heard_[0].WaitCommitted(1));
  Fill(50);
  const uint64_t again = Add(1, frames.identity(), 1);
  EXPECT_EQ(heard_[1].refused(), (std::set<uint64_t>{1}));
  Submit(again, frames.frame(1));
  ASSERT_TRUE(heard_[1].WaitCommitted(2));
  EXPECT_EQ(LostOf(frames, 0), v1::LOSS_REASON_COLLECTOR_DISK);
}

}  // namespace
}  // namespace rankprobe
