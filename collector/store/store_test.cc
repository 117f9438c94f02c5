// SPDX-License-Identifier: Apache-2.0
#include "collector/store/store.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collector/store/index.h"
#include "collector/store/keys.h"
#include "collector/testing/frames.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::DigestOf;
using testing::Frames;
using ::testing::HasSubstr;
using testing::MakeIdentity;
using testing::ReadBack;

class StoreTest : public testing::TempDirTest {
 protected:
  static void AddCall(Frames* frames, int64_t step, uint64_t order,
                      const std::string& entry) {
    v1::Record* record = frames->AddBatch(step)->add_records();
    record->set_order(order);
    record->mutable_call()->set_entry(entry);
  }

  std::vector<std::string> Entries(Store* store, const v1::Identity& identity,
                                   int64_t step) {
    StepKey key{.run = identity.run(),
                .step = step,
                .incarnation = identity.incarnation()};
    std::vector<std::string> entries;
    EXPECT_TRUE(store
                    ->ForEachRecord(key,
                                    [&](const v1::Record& record) {
                                      entries.push_back(record.call().entry());
                                      return absl::OkStatus();
                                    })
                    .ok());
    return entries;
  }
};

TEST_F(StoreTest, KeepsRecordsInOrderOverAReopen) {
  Frames frames(MakeIdentity("run", 2, 7));
  for (uint64_t i = 0; i < 300; ++i)
    AddCall(&frames, 5, 299 - i, absl::StrCat("e", 299 - i));
  {
    std::unique_ptr<Store> store = OpenStore();
    EXPECT_EQ(*store->OpenIncarnation(frames.identity()), 0u);
    ASSERT_TRUE(store->Commit(frames.All()).ok());
    ASSERT_TRUE(store->Sync().ok());
  }
  std::unique_ptr<Store> store = OpenStore();
  EXPECT_EQ(*store->OpenIncarnation(frames.identity()), 300u);
  const std::vector<std::string> entries =
      Entries(store.get(), frames.identity(), 5);
  ASSERT_EQ(entries.size(), 300u);
  EXPECT_EQ(entries[0], "e0");
  EXPECT_EQ(entries[299], "e299");
  EXPECT_EQ(store->recovery().dangling_payloads, 0u);
}

TEST_F(StoreTest, TheFirstRecordOfAnOrderStays) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (uint64_t i = 0; i < 4; ++i) AddCall(&frames, 0, i, absl::StrCat("e", i));
  AddCall(&frames, 0, 2, "same commit");
  AddCall(&frames, 0, 0, "next commit");
  AddCall(&frames, 0, 4, "e4");
  AddCall(&frames, 0, 3, "after a restart");
  AddCall(&frames, 0, 6, "e6");
  AddCall(&frames, 0, 5, "e5");
  const auto check = [&](Store* store, std::vector<std::string> entries,
                         uint64_t refused) {
    entries.resize(entries.size() + refused);  // the losses
    EXPECT_EQ(Entries(store, frames.identity(), 0), entries);
    const auto steps = store->ListSteps("run");
    ASSERT_TRUE(steps.ok() && steps->size() == 1) << steps.status();
    EXPECT_EQ(steps->at(0).records(), entries.size());
    ASSERT_EQ(steps->at(0).losses_size(), 1);
    EXPECT_EQ(steps->at(0).losses(0).reason(),
              v1::LOSS_REASON_COLLECTOR_REFUSED);
    EXPECT_EQ(steps->at(0).losses(0).records(), refused);
    const auto report =
        store->Verify(v1::VerifyRequest(),
                      [](const v1::VerifyReport&) { return absl::OkStatus(); });
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->faults_size(), 0) << report->DebugString();
  };
  {
    std::unique_ptr<Store> store = OpenStore();
    ASSERT_TRUE(store->Commit(frames.Range(0, 5)).ok());
    ASSERT_TRUE(store->Commit(frames.Range(5, 7)).ok());
    check(store.get(), {"e0", "e1", "e2", "e3", "e4"}, 2);
    // A frame that is sent again does not count.
    ASSERT_TRUE(store->Commit(frames.Range(3, 7)).ok());
    check(store.get(), {"e0", "e1", "e2", "e3", "e4"}, 2);
  }
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.Range(7, 10)).ok());
  check(store.get(), {"e0", "e1", "e2", "e3", "e4", "e5", "e6"}, 3);
}

TEST_F(StoreTest, LossesOfOneOrderAreAllKept) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (int i = 0; i < 3; ++i) {
    v1::Record* const record = frames.AddBatch(0)->add_records();
    record->set_order(i < 2 ? kFirstAddedOrder : uint64_t{1} << 63);
    record->mutable_loss()->set_reason(v1::LOSS_REASON_AGENT_BUDGET);
    record->mutable_loss()->set_records(5);
  }
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  EXPECT_EQ(Entries(store.get(), frames.identity(), 0).size(), 3u);
  const auto steps = store->ListSteps("run");
  ASSERT_TRUE(steps.ok() && steps->size() == 1) << steps.status();
  ASSERT_EQ(steps->at(0).losses_size(), 1);
  EXPECT_EQ(steps->at(0).losses(0).records(), 15u);
}

TEST_F(StoreTest, ManyStepsInOneCommitKeepTheirCounts) {
  constexpr int kSteps = 100005;
  Frames frames(MakeIdentity("run", 0, 1));
  for (int i = 0; i < kSteps; ++i) AddCall(&frames, i, 0, "e");
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  const auto steps = store->ListSteps("run");
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->size(), size_t{kSteps});
  for (const v1::StepInfo& step : *steps) ASSERT_EQ(step.records(), 1u);
}

TEST_F(StoreTest, DuplicatesAreDroppedAndGapsRefused) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (uint64_t i = 0; i < 4; ++i) AddCall(&frames, 0, i, absl::StrCat("e", i));
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.Range(0, 2)).ok());
  ASSERT_TRUE(store->Commit(frames.Range(0, 3)).ok());
  EXPECT_EQ((*store->ListSteps("run"))[0].step(), 0);
  EXPECT_EQ((*store->ListRuns())[0].records(), 3u)
      << "each record is counted once";
  Frames gap(MakeIdentity("run", 0, 1));
  for (uint64_t i = 0; i < 6; ++i) AddCall(&gap, 0, i, "x");
  const absl::Status status = store->Commit(gap.Range(5, 6));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("frames 4 to 5"));
  EXPECT_TRUE(store->Commit(frames.Range(3, 4)).ok())
      << "a refused frame does not break the store";
}

TEST_F(StoreTest, ChosenStepsAreThoseOfTheList) {
  std::unique_ptr<Store> store = OpenStore();
  for (const int rank : {0, 1}) {
    Frames frames(MakeIdentity("run", rank, static_cast<uint64_t>(rank) + 1));
    for (int64_t step = 0; step < 5; ++step)
      AddCall(&frames, step, static_cast<uint64_t>(step), "e");
    ASSERT_TRUE(store->Commit(frames.All()).ok());
  }
  const auto all = *store->ListSteps("run");
  ASSERT_EQ(all.size(), 10u);
  const auto chosen = *store->ListSteps("run", IntSet({3, 1, 3, 77}));
  ASSERT_EQ(chosen.size(), 4u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(chosen[i].SerializeAsString(), all[2 + i].SerializeAsString());
    EXPECT_EQ(chosen[2 + i].SerializeAsString(),
              all[6 + i].SerializeAsString());
  }
  EXPECT_EQ(store->ListSteps("none", IntSet({1})).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(StoreTest, StepsComeInPagesOfWholeSteps) {
  auto store = OpenStore();
  for (int rank = 0; rank < 3; ++rank) {
    Frames frames(MakeIdentity("run", rank, 10 + static_cast<uint64_t>(rank)));
    uint64_t order = 0;
    for (const int64_t step : {0, 1, 300, 70000})
      AddCall(&frames, step, order++, "e");
    ASSERT_TRUE(store->Commit(frames.All()).ok());
  }
  // Steps of another run are not listed.
  Frames other(MakeIdentity("other", 0, 20));
  AddCall(&other, 2, 0, "e");
  ASSERT_TRUE(store->Commit(other.All()).ok());
  for (const size_t most : {1, 2, 3, 4, 6, 12, 100}) {
    std::vector<std::string> seen;
    std::optional<int64_t> after;
    size_t pages = 0;
    for (bool more = true; more; ++pages) {
      const absl::StatusOr<Store::SomeSteps> some =
          store->ListStepsAfter("run", after, most);
      ASSERT_TRUE(some.ok()) << some.status();
      ASSERT_FALSE(some->steps.empty());
      for (const v1::StepInfo& step : some->steps)
        seen.push_back(absl::StrCat(step.step(), "/", step.rank()));
      after = some->steps.back().step();
      more = some->more;
    }
    EXPECT_EQ(absl::StrJoin(seen, " "),
              "0/0 0/1 0/2 1/0 1/1 1/2 300/0 300/1 300/2 70000/0 70000/1 "
              "70000/2");
    EXPECT_EQ(pages, most <= 3 ? 4u : most <= 6 ? 2u : 1u);
  }
  EXPECT_TRUE(
      store->ListStepsAfter("run", std::numeric_limits<int64_t>::max(), 5)
          ->steps.empty());
  EXPECT_EQ(store->ListStepsAfter("run", -7, 1)->steps.size(), 3u);
  EXPECT_TRUE(absl::IsNotFound(store->ListStepsAfter("none", {}, 5).status()));
}

// A run of many steps: ended ones are dropped from memory, late records of them
// are still recognized, and open ones continue.
TEST_F(StoreTest, LatecomersOfLongEndedStepsAreKeptOnce) {
  auto store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 1));
  const auto add = [&](int64_t step, uint64_t order, bool ends) {
    v1::Record* const record = frames.AddBatch(step)->add_records();
    record->set_order(order);
    if (ends) {
      record->mutable_step_end()->set_call_phases(1);
    } else {
      record->mutable_call()->set_entry(absl::StrCat("e", order));
    }
  };
  constexpr int64_t kOpen = 1 << 20;
  add(kOpen, 0, false);
  for (int64_t step = 0; step < 5000; ++step) {
    add(step, 0, false);
    add(step, 1, true);
  }
  // Rows are dropped after a commit.
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  add(7, 0, false);  // again
  add(7, 2, false);  // new
  add(kOpen, 1, false);
  add(kOpen, 0, false);  // again
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  const auto records = [&](int64_t step) {
    return (*store->ListSteps("run", IntSet({step})))[0].records();
  };
  EXPECT_EQ(records(6), 2u);
  const uint64_t late = records(7), open = records(kOpen);
  store.reset();
  store = OpenStore();
  // Repeated records are refused, which a record of its own reports.
  EXPECT_EQ(late, 4u);
  EXPECT_EQ(open, 3u);
  EXPECT_EQ(records(7), late);
  EXPECT_EQ(records(kOpen), open);
}

TEST_F(StoreTest, PayloadsAreStoredOncePerRunAndWhole) {
  std::string data(3 << 20, '\0');
  std::mt19937 random(2);
  for (char& c : data) c = static_cast<char>(random());
  std::unique_ptr<Store> store = OpenStore();
  Frames first(MakeIdentity("run", 0, 1)), second(MakeIdentity("run", 1, 2)),
      other(MakeIdentity("other", 1, 2));
  first.AddPayload(data);
  second.AddPayload(data, 300000);
  other.AddPayload(data);
  ASSERT_TRUE(store->Commit(first.Range(0, 2)).ok());
  EXPECT_FALSE(store->HasPayload("run", DigestOf(data), data.size()));
  EXPECT_EQ(ReadBack(store.get(), data, "run").status().code(),
            absl::StatusCode::kNotFound);
  // Another rank sends the same bytes in other pieces at the same time.
  ASSERT_TRUE(store->Commit(second.Range(0, 5)).ok());
  ASSERT_TRUE(store->Commit(first.Range(2, 3)).ok());
  ASSERT_TRUE(store->Commit(second.Range(5, second.size())).ok());
  EXPECT_TRUE(store->HasPayload("run", DigestOf(data), data.size()));
  EXPECT_EQ(*ReadBack(store.get(), data, "run"), data);
  EXPECT_FALSE(store->HasPayload("other", DigestOf(data), data.size()));
  ASSERT_TRUE(store->Commit(other.All()).ok());
  EXPECT_EQ((*store->ListRuns())[1].stored_payload_bytes(), data.size());
}

TEST_F(StoreTest, AnotherCutOfAPayloadAfterAReopen) {
  const std::string data(2500000, 'q');
  Frames first(MakeIdentity("run", 0, 1)), second(MakeIdentity("run", 1, 2));
  first.AddPayload(data, 400000);
  second.AddPayload(data, 1000000);
  {
    std::unique_ptr<Store> store = OpenStore();
    ASSERT_TRUE(store->Commit(first.Range(0, 3)).ok());
  }
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(second.All()).ok());
  EXPECT_EQ(*ReadBack(store.get(), data, "run"), data);
}

// Bytes that do not match their digest do not affect a rank that has the
// correct ones.
TEST_F(StoreTest, WrongBytesMakeWayForTheRightOnes) {
  const std::string data(900000, 'q');
  Frames liar(MakeIdentity("run", 0, 1)), honest(MakeIdentity("run", 1, 2));
  liar.AddPayload(std::string(900000, 'x'), 300000);
  for (size_t i = 0; i < liar.size(); ++i)
    liar.frame(i).mutable_chunk()->set_digest(DigestOf(data));
  honest.AddPayload(data, 400000);
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(liar.All()).ok());
  EXPECT_FALSE(store->HasPayload("run", DigestOf(data), data.size()));
  ASSERT_TRUE(store->Commit(honest.All()).ok());
  EXPECT_EQ(*ReadBack(store.get(), data, "run"), data);
  // The same within one commit.
  Frames other_liar(MakeIdentity("other", 0, 3));
  Frames other_honest(MakeIdentity("other", 1, 4));
  other_liar.AddPayload(std::string(900000, 'x'), 300000);
  for (size_t i = 0; i < other_liar.size(); ++i)
    other_liar.frame(i).mutable_chunk()->set_digest(DigestOf(data));
  other_honest.AddPayload(data, 400000);
  std::vector<FrameToStore> both = other_liar.All();
  for (const FrameToStore& frame : other_honest.All()) both.push_back(frame);
  ASSERT_TRUE(store->Commit(both).ok());
  EXPECT_EQ(*ReadBack(store.get(), data, "other"), data);
}

TEST_F(StoreTest, APayloadGoesOnAfterAReopen) {
  const std::string data(2500000, 'q');
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddPayload(data);
  {
    std::unique_ptr<Store> store = OpenStore();
    ASSERT_TRUE(store->Commit(frames.Range(0, 1)).ok());
  }
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.Range(1, frames.size())).ok());
  EXPECT_EQ(*ReadBack(store.get(), data, "run"), data);
}

TEST_F(StoreTest, WrongBytesAreNotShown) {
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddPayload("what it says it is");
  v1::PayloadChunk& chunk = *frames.frame(0).mutable_chunk();
  chunk.set_data("something else!!!!");
  EXPECT_EQ(OpenStore()->Commit(frames.All()).code(),
            absl::StatusCode::kInvalidArgument)
      << "the chunk's own checksum";
  chunk.set_crc32c(Crc32c(chunk.data()));
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  EXPECT_FALSE(store->HasPayload("run", chunk.digest(), chunk.length_bytes()));
}

TEST_F(StoreTest, ImpossibleChunksAreRefused) {
  std::unique_ptr<Store> store = OpenStore();
  const auto refused =
      [&](const std::function<void(v1::PayloadChunk*)>& change) {
        Frames frames(MakeIdentity("run", 0, 1));
        frames.AddPayload("0123456789");
        change(frames.frame(0).mutable_chunk());
        return store->Commit(frames.All()).code() ==
               absl::StatusCode::kInvalidArgument;
      };
  EXPECT_TRUE(refused([](v1::PayloadChunk* c) { c->set_digest("short"); }));
  EXPECT_TRUE(
      refused([](v1::PayloadChunk* c) { c->set_length_bytes(UINT64_MAX); }));
  EXPECT_TRUE(
      refused([](v1::PayloadChunk* c) { c->set_offset_bytes(UINT64_MAX); }));
  EXPECT_TRUE(refused([](v1::PayloadChunk* c) { c->set_offset_bytes(5); }));
  EXPECT_TRUE(refused([](v1::PayloadChunk* c) { c->set_data(""); }));
  EXPECT_TRUE(refused([](v1::PayloadChunk* c) { c->set_length_bytes(9); }));
  EXPECT_TRUE(refused([](v1::PayloadChunk* c) { c->set_crc32c(1); }));
}

TEST_F(StoreTest, WhatPointsAtATornTailIsForgotten) {
  const std::string kept(100000, 'k'), torn(100000, 't');
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddPayload(kept);
  frames.AddPayload(torn);
  {
    std::unique_ptr<Store> store = OpenStore();
    ASSERT_TRUE(store->Commit(frames.All()).ok());
  }
  // The state after a machine crash: the index is ahead of the segment, and
  // neither a clean end nor a sync is recorded.
  const std::string segment = root_ + "/data/segments/0000000001.seg";
  const uint64_t size = *file_system_->FileSize(segment);
  ASSERT_TRUE(file_system_->Truncate(segment, size - 10).ok());
  {
    const std::unique_ptr<Index> index = *OpenLevelDbIndex(
        {root_ + "/data/index", 1 << 20, 1 << 20, file_system_.get()});
    std::unique_ptr<IndexBatch> batch = index->NewBatch();
    batch->Delete(keys::kClean);
    batch->Delete(keys::kSynced);
    ASSERT_TRUE(index->Write(std::move(batch), true).ok());
  }
  std::unique_ptr<Store> store = OpenStore();
  EXPECT_EQ(store->recovery().dangling_payloads, 1u);
  EXPECT_EQ(store->recovery().damaged_payloads, 0u);
  EXPECT_EQ(*ReadBack(store.get(), kept, "run"), kept);
  EXPECT_FALSE(ReadBack(store.get(), torn, "run").ok());
}

TEST_F(StoreTest, DamagedBytesAreDataLossNotData) {
  const std::string data(100000, 'k');
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddPayload(data);
  frames.AddPayload("behind it");
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  FILE* f = fopen((root_ + "/data/segments/0000000001.seg").c_str(), "r+b");
  fseek(f, 5000, SEEK_SET);
  fputc('x', f);
  fclose(f);
  EXPECT_EQ(ReadBack(store.get(), data, "run").status().code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(StoreTest, SecondOpenNamesTheHolder) {
  std::unique_ptr<Store> store = OpenStore();
  StoreOptions options;
  options.data_dir = root_ + "/data";
  const auto second = Store::Open(options, file_system_.get(), &clock_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat(getpid())));
}

TEST_F(StoreTest, LittleSpaceIsRefusedAndNotForever) {
  StoreOptions options{.data_dir = root_ + "/data",
                       .min_free_bytes = UINT64_MAX / 2};
  Frames frames(MakeIdentity("run", 0, 1));
  AddCall(&frames, 0, 0, "e");
  {
    auto store = Store::Open(options, file_system_.get(), &clock_);
    ASSERT_TRUE(store.ok());
    EXPECT_EQ((*store)->Commit(frames.All()).code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ((*store)->Commit(frames.All()).code(),
              absl::StatusCode::kResourceExhausted);
  }
  EXPECT_TRUE(OpenStore()->Commit(frames.All()).ok());
}

TEST_F(StoreTest, PlansSurviveAReopen) {
  v1::PlanSpec plan;
  plan.set_epoch(4);
  plan.set_config_json("{}");
  EXPECT_FALSE(OpenStore()->LoadPlan("run")->has_value());
  ASSERT_TRUE(OpenStore()->SavePlan("run", plan).ok());
  EXPECT_EQ((*OpenStore()->LoadPlan("run"))->epoch(), 4u);
}

// A child commits frames and reports each commit through a pipe; it is killed
// at some point. Everything that it reported exists, and nothing is incomplete.
TEST_F(StoreTest, WhatWasCommittedSurvivesKill9) {
  std::mt19937 random(static_cast<unsigned>(getpid()));
  RecordProperty("seed", getpid());
  for (int round = 0; round < 6; ++round) {
    Frames frames(MakeIdentity("run", 0, 100 + static_cast<uint64_t>(round)));
    for (uint64_t i = 0; i < 400; ++i) {
      if (i % 4 == 3) {
        frames.AddPayload(absl::StrCat(round, "payload", i,
                                       std::string(random() % 30000, 'p')),
                          10000);
      }
      AddCall(&frames, 0, i, absl::StrCat("e", i));
    }
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    const pid_t child = fork();
    if (child == 0) {
      std::unique_ptr<Store> store = OpenStore();
      for (size_t i = 0; i < frames.size();) {
        const size_t end = std::min(frames.size(), i + 3);
        if (!store->Commit(frames.Range(i, end)).ok()) _exit(1);
        i = end;
        if (write(fds[1], &i, sizeof(i)) < 0) _exit(1);
      }
      pause();
    }
    close(fds[1]);
    const size_t until = random() % frames.size();
    size_t told = 0, value = 0;
    while (told < until && read(fds[0], &value, sizeof(value)) == sizeof(value))
      told = value;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    while (read(fds[0], &value, sizeof(value)) == sizeof(value)) told = value;
    close(fds[0]);

    std::unique_ptr<Store> store = OpenStore();
    const uint64_t committed = *store->OpenIncarnation(frames.identity());
    EXPECT_GE(committed, told);
    size_t calls = 0;
    for (size_t i = 0; i < committed; ++i)
      calls += frames.frame(i).has_batch() ? 1 : 0;
    EXPECT_EQ(Entries(store.get(), frames.identity(), 0).size(), calls);
    for (size_t i = 0; i < frames.size(); ++i) {
      if (!frames.frame(i).has_chunk()) continue;
      const v1::PayloadChunk& chunk = frames.frame(i).chunk();
      if (chunk.offset_bytes() + chunk.data().size() != chunk.length_bytes())
        continue;
      EXPECT_EQ(store->HasPayload("run", chunk.digest(), chunk.length_bytes()),
                i < committed);
    }
    // The rest can be committed afterwards.
    ASSERT_TRUE(store->Commit(frames.All()).ok());
    EXPECT_EQ(Entries(store.get(), frames.identity(), 0).size(), 400u);
  }
}

}  // namespace
}  // namespace rankprobe
