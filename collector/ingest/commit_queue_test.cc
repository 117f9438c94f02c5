// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/commit_queue.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "collector/control/control_plane.h"
#include "collector/ingest/payload_scope.h"
#include "collector/ingest/refusal.h"
#include "collector/testing/frames.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::Frames;
using testing::MakeIdentity;

// What an upload received.
class Heard {
 public:
  CommitQueue::Listener Listener() {
    return {[this](const v1::UploadAck& ack) {
              absl::MutexLock lock(&mutex_);
              committed_ = std::max(committed_, ack.committed());
              synced_ = std::max(synced_, ack.synced());
              for (const v1::RefusedFrame& refused : ack.refused_frames())
                refused_[refused.sequence()] = refused.reason();
            },
            [this](const absl::Status& status) {
              absl::MutexLock lock(&mutex_);
              ended_ = status;
            }};
  }
  bool WaitCommitted(uint64_t sequence) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return committed_ >= sequence;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&reached),
                                   absl::Seconds(20));
  }
  uint64_t synced() {
    absl::MutexLock lock(&mutex_);
    return synced_;
  }
  bool WaitSynced(uint64_t sequence) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return synced_ >= sequence;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&reached),
                                   absl::Seconds(20));
  }
  std::map<uint64_t, std::string> refused() {
    absl::MutexLock lock(&mutex_);
    return refused_;
  }
  absl::Status WaitEnded() {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return !ended_.ok();
    };
    mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(20));
    return ended_;
  }

 private:
  absl::Mutex mutex_;
  uint64_t committed_ = 0;
  uint64_t synced_ = 0;
  std::map<uint64_t, std::string> refused_;
  absl::Status ended_;
};

class CommitQueueTest : public testing::TempDirTest {
 protected:
  void SetUp() override {
    TempDirTest::SetUp();
    store_ = OpenStore();
    control_ = std::make_unique<ControlPlane>(
        ControlPlane::Options(), store_.get(), store_.get(), &real_clock_);
    CommitQueue::Options options;
    options.sync_interval = absl::Milliseconds(10);
    queue_ =
        std::make_unique<CommitQueue>(options, store_.get(), &control_->gate(),
                                      &real_clock_, [](const absl::Status&) {});
  }
  void TearDown() override {
    queue_.reset();
    control_.reset();
    store_.reset();
    TempDirTest::TearDown();
  }

  static void AddCall(Frames* frames, int64_t step, uint64_t order) {
    v1::Record* record = frames->AddBatch(step)->add_records();
    record->set_order(order);
    record->mutable_call()->set_entry(absl::StrCat("e", order));
    record->mutable_call()->set_kind(v1::CALL_KIND_API_FORWARD);
  }

  void Submit(uint64_t upload, const v1::UploadFrame& frame) {
    queue_->Submit(upload, ReceivedFrame(frame),
                   SizeOf(frame, frame.ByteSizeLong()));
  }

  void SubmitAll(uint64_t upload, Frames* frames) {
    for (size_t i = 0; i < frames->size(); ++i) {
      Submit(upload, frames->frame(i));
    }
  }

  uint64_t Records(const std::string& run) {
    const auto runs = store_->ListRuns();
    for (const v1::RunInfo& info : *runs) {
      if (info.run() == run) return info.records();
    }
    return 0;
  }

  SystemClock real_clock_;
  std::unique_ptr<Store> store_;
  // Members, because the queue's thread calls them until it ends.
  Heard heard_[8];
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<CommitQueue> queue_;
};

TEST_F(CommitQueueTest, ManyUploadsAreCommittedAndSynced) {
  Heard* const heard = heard_;
  std::vector<Frames> frames;
  for (int r = 0; r < 8; ++r) {
    frames.emplace_back(MakeIdentity("run", r, 10 + r));
    for (uint64_t i = 0; i < 50; ++i) AddCall(&frames.back(), 0, i);
    frames.back().AddPayload(std::string(300000, static_cast<char>(r)));
  }
  for (int r = 0; r < 8; ++r) {
    SubmitAll(
        queue_->Add("s", frames[r].identity(), "", 0, heard[r].Listener()),
        &frames[r]);
  }
  for (int r = 0; r < 8; ++r) {
    EXPECT_TRUE(heard[r].WaitCommitted(51));
    EXPECT_TRUE(heard[r].WaitSynced(51));
  }
  EXPECT_EQ(Records("run"), 400u);
  EXPECT_EQ(queue_->pending_bytes(), 0u);
}

// An hour is longer than a test waits; the end of the queue does not wait for
// it either.
TEST_F(CommitQueueTest, ManyBytesAreSyncedBeforeTheInterval) {
  queue_.reset();
  CommitQueue::Options options;
  options.sync_interval = absl::Hours(1);
  options.sync_bytes = 1 << 20;
  queue_ =
      std::make_unique<CommitQueue>(options, store_.get(), &control_->gate(),
                                    &real_clock_, [](const absl::Status&) {});
  Frames few(MakeIdentity("run", 0, 1)), many(MakeIdentity("run", 1, 2));
  few.AddPayload(std::string(200000, 'f'));
  for (char c = 'a'; c < 'g'; ++c) many.AddPayload(std::string(200000, c));
  SubmitAll(queue_->Add("s", few.identity(), "", 0, heard_[0].Listener()),
            &few);
  EXPECT_TRUE(heard_[0].WaitCommitted(few.size()));
  EXPECT_EQ(heard_[0].synced(), 0u);
  SubmitAll(queue_->Add("s", many.identity(), "", 0, heard_[1].Listener()),
            &many);
  EXPECT_TRUE(heard_[0].WaitSynced(few.size()));
  EXPECT_TRUE(heard_[1].WaitCommitted(many.size()));
}

// Found by tests/sim, seed 10: a rank that returned with nothing to send waited
// for SYNCED until another one sent something.
TEST_F(CommitQueueTest, WhatIsSyncedIsToldToWhoComesBack) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (uint64_t i = 0; i < 5; ++i) AddCall(&frames, 0, i);
  const uint64_t upload =
      queue_->Add("s", frames.identity(), "", 0, heard_[0].Listener());
  SubmitAll(upload, &frames);
  ASSERT_TRUE(heard_[0].WaitSynced(5));
  queue_->Remove(upload);
  queue_->Add("t", frames.identity(), "", 5, heard_[1].Listener());
  EXPECT_TRUE(heard_[1].WaitSynced(5));
}

TEST_F(CommitQueueTest, OneUploadsFaultIsNotTheOthers) {
  Heard &good = heard_[0], &bad = heard_[1];
  Frames good_frames(MakeIdentity("run", 0, 1)),
      bad_frames(MakeIdentity("run", 1, 2));
  for (uint64_t i = 0; i < 20; ++i) {
    AddCall(&good_frames, 0, i);
    AddCall(&bad_frames, 0, i);
  }
  bad_frames.frame(10).set_sequence(15);  // a gap that admission would refuse
  const uint64_t a =
      queue_->Add("a", good_frames.identity(), "", 0, good.Listener());
  const uint64_t b =
      queue_->Add("b", bad_frames.identity(), "", 0, bad.Listener());
  SubmitAll(b, &bad_frames);
  SubmitAll(a, &good_frames);
  EXPECT_TRUE(good.WaitCommitted(20));
  EXPECT_EQ(bad.WaitEnded().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CommitQueueTest, WhatWasReceivedIsWrittenAtTheEnd) {
  Heard& heard = heard_[0];
  Frames frames(MakeIdentity("run", 0, 1));
  for (uint64_t i = 0; i < 200; ++i) AddCall(&frames, 0, i);
  const uint64_t upload =
      queue_->Add("s", frames.identity(), "", 0, heard.Listener());
  SubmitAll(upload, &frames);
  queue_->Remove(upload);
  queue_.reset();
  EXPECT_EQ(Records("run"), 200u);
}

TEST_F(CommitQueueTest, ANewerUploadOfAProcessEndsTheOlder) {
  Heard& old = heard_[0];
  Heard& fresh = heard_[1];
  Frames frames(MakeIdentity("run", 0, 1));
  for (uint64_t i = 0; i < 20; ++i) AddCall(&frames, 0, i);
  const uint64_t first =
      queue_->Add("s", frames.identity(), "", 0, old.Listener());
  SubmitAll(first, &frames);
  const uint64_t second =
      queue_->Add("t", frames.identity(), "", 0, fresh.Listener());
  EXPECT_NE(first, second);
  EXPECT_TRUE(absl::IsAborted(old.WaitEnded()));
  // Frames from before are written; later ones are not.
  Frames late(MakeIdentity("run", 0, 1));
  for (uint64_t i = 0; i < 25; ++i) AddCall(&late, 0, i);
  Submit(first, late.frame(20));
  queue_->Remove(first);
  queue_.reset();
  EXPECT_EQ(Records("run"), 20u);
}

TEST_F(CommitQueueTest, RecordsOutsideThePlanAreRefusedAndCounted) {
  v1::Hello hello;
  *hello.mutable_identity() = MakeIdentity("run", 0, 1);
  hello.set_protocol(1);
  hello.set_config_json(R"({"dump_path": "d", "step": [5]})");
  ASSERT_TRUE(
      control_->agents().Admit(hello, [](const v1::Directive&) {}).ok());
  Heard& heard = heard_[0];
  Frames frames(hello.identity());
  for (const int64_t step : {5, 6}) {
    v1::Record* begin = frames.AddBatch(step)->add_records();
    begin->mutable_step_begin()->set_plan_epoch(1);
    AddCall(&frames, step, 1);
    AddCall(&frames, step, 2);
  }
  SubmitAll(queue_->Add("s", frames.identity(), "", 0, heard.Listener()),
            &frames);
  ASSERT_TRUE(heard.WaitCommitted(frames.size()));
  const auto steps = store_->ListSteps("run");
  ASSERT_EQ(steps->size(), 2u);
  EXPECT_EQ((*steps)[0].lost(), 0u);
  EXPECT_EQ((*steps)[1].lost(), 0u) << "what the plan leaves out is not a loss";
  EXPECT_EQ((*steps)[1].filtered_calls(), 2u);
  uint64_t calls = 0;
  StepKey key;
  key.run = "run";
  key.step = 6;
  key.incarnation = 1;
  ASSERT_TRUE(store_
                  ->ForEachRecord(key,
                                  [&](const v1::Record& record) {
                                    calls += record.has_call() ? 1 : 0;
                                    return absl::OkStatus();
                                  })
                  .ok());
  EXPECT_EQ(calls, 0u);
}

// An agent that sends calls that its plan leaves out, in a plan with a window.
TEST_F(CommitQueueTest, CallsAreCheckedOneByOneAgainstTheTrace) {
  v1::Hello hello;
  *hello.mutable_identity() = MakeIdentity("run", 0, 1);
  hello.set_protocol(1);
  hello.set_config_json(
      R"({"dump_path": "d", "level": "L1", "statistics":
          {"scope": ["Torch.a.0.forward", "Torch.b.0.forward"]}})");
  ASSERT_TRUE(
      control_->agents().Admit(hello, [](const v1::Directive&) {}).ok());
  Frames frames(hello.identity());
  v1::RecordBatch* batch = frames.AddBatch(5);
  uint64_t order = 0;
  const auto add = [&] {
    v1::Record* record = batch->add_records();
    record->set_order(order++);
    return record;
  };
  add()->mutable_step_begin()->set_plan_epoch(1);
  const std::vector<std::string> names = {
      "Torch.x.0.forward", "Torch.a.0.forward", "Torch.x.1.forward",
      "Torch.b.0.forward", "Torch.x.2.forward"};
  v1::CallTrace* trace = add()->mutable_trace();
  for (const std::string& name : names) {
    trace->add_items()->set_entry(name);
    trace->mutable_items()->rbegin()->set_kind(v1::CallTrace::KIND_API);
  }
  for (const std::string& name : names) {
    v1::CallPhase* call = add()->mutable_call();
    call->set_entry(name);
    call->set_kind(v1::CALL_KIND_API_FORWARD);
  }
  Heard& heard = heard_[0];
  SubmitAll(queue_->Add("s", frames.identity(), "", 0, heard.Listener()),
            &frames);
  ASSERT_TRUE(heard.WaitCommitted(frames.size()));
  EXPECT_EQ((*store_->ListSteps("run"))[0].filtered_calls(), 2u);
  std::vector<std::string> stored;
  std::string why;
  StepKey key;
  key.run = "run";
  key.step = 5;
  key.incarnation = 1;
  ASSERT_TRUE(store_
                  ->ForEachRecord(key,
                                  [&](const v1::Record& record) {
                                    if (record.has_call())
                                      stored.push_back(record.call().entry());
                                    if (record.has_loss())
                                      why = record.loss().detail();
                                    return absl::OkStatus();
                                  })
                  .ok());
  EXPECT_EQ(stored,
            std::vector<std::string>(names.begin() + 1, names.begin() + 4));
  EXPECT_EQ(why, "outside the plan: scope");
}

TEST_F(CommitQueueTest, ARefusedFrameIsAnsweredAndTheNextIsCommitted) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (uint64_t i = 0; i < 4; ++i) AddCall(&frames, 0, i);
  const uint64_t upload =
      queue_->Add("s", frames.identity(), "", 0, heard_[0].Listener());
  Submit(upload, frames.frame(0));
  queue_->Refuse(upload, RefusalOf(frames.frame(1), "it is deep"));
  Submit(upload, frames.frame(2));
  // Only the store finds the fault of this frame.
  v1::UploadFrame bad;
  bad.set_sequence(4);
  bad.mutable_batch()->set_step(-1);
  Submit(upload, bad);
  v1::UploadFrame last = frames.frame(3);
  last.set_sequence(5);
  Submit(upload, last);
  ASSERT_TRUE(heard_[0].WaitCommitted(5));
  const std::map<uint64_t, std::string> refused = heard_[0].refused();
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_EQ(refused.at(2), "it is deep");
  EXPECT_NE(refused.at(4), "");
  EXPECT_EQ(Records("run"), 3u);
  const auto opened =
      store_->OpenIncarnation(frames.identity(), IncarnationClaim());
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->committed, 5u);
  // Both are kept, and sent to the next upload, because the ack may have been
  // lost.
  ASSERT_EQ(opened->refusals.size(), 2u);
  EXPECT_EQ(opened->refusals[0].records(), 1u);
  EXPECT_EQ(opened->refusals[1].step(), -1);
  queue_->Add("t", frames.identity(), "", 5, heard_[1].Listener(),
              opened->refusals);
  EXPECT_EQ(heard_[1].refused(), refused);
}

// The reason is listed where the payload is missing: under the payload's name
// in the store.
TEST_F(CommitQueueTest, ARefusedChunkIsNamedAsRecordsNameIt) {
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddPayload("some bytes");
  const uint64_t upload =
      queue_->Add("s", frames.identity(), "somebody", 0, heard_[0].Listener());
  queue_->Refuse(upload, RefusalOf(frames.frame(0), "why"));
  ASSERT_TRUE(heard_[0].WaitCommitted(1));
  const auto opened =
      store_->OpenIncarnation(frames.identity(), IncarnationClaim());
  ASSERT_TRUE(opened.ok());
  ASSERT_EQ(opened->refusals.size(), 1u);
  EXPECT_EQ(opened->refusals[0].payload_digest(),
            StoredDigest("somebody", testing::DigestOf("some bytes")));
}

}  // namespace
}  // namespace rankprobe
