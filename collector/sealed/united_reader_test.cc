// SPDX-License-Identifier: Apache-2.0
// Data that leaves have not stored yet appears together with stored data, once.
#include "collector/sealed/united_reader.h"

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collector/sealed/store_deletion.h"
#include "collector/sealed/testing/fake_leaves.h"
#include "collector/sealed/testing/sealer_fixture.h"
#include "collector/sealed/testing/whole_steps.h"

namespace rankprobe {
namespace {

using testing::AddStepInFrames;
using testing::FakeLeaves;
using testing::FaultObjectStore;
using testing::Frames;
using testing::MakeIdentity;
using testing::RandomBytes;
using testing::SealerTest;

class UnitedReaderTest : public SealerTest {
 protected:
  struct Leaf {
    std::unique_ptr<Store> store;
    std::unique_ptr<Sealer> sealer;
  };
  std::unique_ptr<Store> OpenStore(const std::string& name) {
    return TempDirTest::OpenStore(testing::OptionsAt(root_ + "/" + name));
  }
  Leaf OpenLeaf(const std::string& name, SealerOptions options = {}) {
    Leaf leaf{OpenStore(name), nullptr};
    options.directory = root_ + "/" + name + "/sealing";
    options.quiet_time = absl::ZeroDuration();
    leaf.sealer = OpenSealer(leaf.store.get(), &objects_, options);
    leaves_.Add(leaf.store.get(), leaf.sealer.get());
    return leaf;
  }
  void Close(Leaf* leaf) {
    leaves_.Remove(*leaf->sealer);
    leaf->sealer = nullptr;
    leaf->store = nullptr;
  }
  static void Send(Store* leaf, const Frames& frames, size_t first,
                   size_t last) {
    ASSERT_TRUE(leaf->OpenIncarnation(frames.identity()).ok());
    if (first > 0)
      ASSERT_TRUE(leaf->NoteLostFrames(frames.identity(), first).ok());
    ASSERT_TRUE(leaf->Commit(frames.Range(first, last)).ok());
  }
  static std::vector<std::string> Infos(ArchiveReader* archive) {
    std::vector<std::string> out;
    const auto steps = archive->ListSteps("run");
    if (absl::IsNotFound(steps.status())) return out;
    EXPECT_TRUE(steps.ok()) << steps.status();
    if (!steps.ok()) return out;
    for (v1::StepInfo info : *steps) {
      info.clear_updated_unix_ns();
      out.push_back(info.ShortDebugString());
    }
    return out;
  }
  static std::vector<std::string> Accounts(ArchiveReader* archive) {
    std::vector<std::string> out;
    EXPECT_TRUE(archive
                    ->ForEachIncarnation("run",
                                         [&](v1::IncarnationRow row) {
                                           row.clear_updated_unix_ns();
                                           out.push_back(
                                               row.ShortDebugString());
                                         })
                    .ok());
    return out;
  }

  FaultObjectStore objects_;
  FakeLeaves leaves_;
};

// One leaf, which seals after some frames and has more afterwards.
TEST_F(UnitedReaderTest, WhatIsSealedAndWhatIsNotIsWhatTheLeafHas) {
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 1; step <= 3; ++step) AddStepInFrames(step, &frames);
  for (size_t sealed = 0; sealed <= frames.size(); ++sealed) {
    SCOPED_TRACE(absl::StrCat("sealed after ", sealed));
    objects_ = FaultObjectStore();
    Leaf leaf = OpenLeaf(absl::StrCat("leaf", sealed));
    Send(leaf.store.get(), frames, 0, sealed);
    ASSERT_EQ(SealAll(leaf.sealer.get()), absl::OkStatus());
    ASSERT_TRUE(leaf.store->Commit(frames.Range(sealed, frames.size())).ok());
    SealedReader stored(&objects_);
    UnitedReader united(&stored, &leaves_);
    EXPECT_EQ(Infos(&united), Infos(leaf.store.get()));
    EXPECT_EQ(See(&united, "run"), See(leaf.store.get(), "run"));
    EXPECT_EQ(Accounts(&united), Accounts(leaf.store.get()));
    EXPECT_TRUE(united.Unavailable("run", {}).empty());
    // Page by page, too.
    std::vector<int64_t> steps;
    std::optional<int64_t> after;
    while (true) {
      const auto some = united.ListStepsAfter("run", after, 1);
      ASSERT_TRUE(some.ok()) << some.status();
      for (const v1::StepInfo& info : some->steps) steps.push_back(info.step());
      if (!some->more) break;
      after = steps.back();
    }
    EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3}));
    const auto runs = united.ListRuns();
    ASSERT_TRUE(runs.ok()) << runs.status();
    ASSERT_EQ(runs->size(), 1u);
    EXPECT_EQ(runs->front().steps(), 3u);
    EXPECT_EQ(runs->front().records(), 12u);
    Close(&leaf);
  }
}

// At each question in turn, before or after it is answered, everything is
// stored, and freed if requested: nothing is missing, nothing appears twice.
TEST_F(UnitedReaderTest, WhatMovesToTheStoreMeanwhileIsThereOnce) {
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 1; step <= 3; ++step) AddStepInFrames(step, &frames);
  const std::unique_ptr<Store> alone = OpenStore("alone");
  Send(alone.get(), frames, 0, frames.size());
  const Seen expected = See(alone.get(), "run");
  const std::vector<std::string> infos = Infos(alone.get());
  int number = 0;
  for (const bool frees : {false, true}) {
    for (const size_t sealed : {0, 7}) {
      for (const bool is_before : {true, false}) {
        for (size_t at = 0;; ++at) {
          SCOPED_TRACE(absl::StrCat("frees ", frees, ", ", sealed, " sealed, ",
                                    is_before ? "before" : "after", " answer ",
                                    at));
          objects_ = FaultObjectStore();
          SealerOptions options;
          options.free_stored = frees;
          options.keep_steps = 0;
          Leaf leaf = OpenLeaf(absl::StrCat("leaf", ++number), options);
          Send(leaf.store.get(), frames, 0, sealed);
          if (sealed > 0)
            ASSERT_EQ(SealAll(leaf.sealer.get()), absl::OkStatus());
          ASSERT_TRUE(
              leaf.store->Commit(frames.Range(sealed, frames.size())).ok());
          size_t question = 0;
          const auto move = [&](const v1::LiveQuestion&) {
            if (question++ != at) return;
            ASSERT_EQ(SealAll(leaf.sealer.get()), absl::OkStatus());
          };
          (is_before ? leaves_.before : leaves_.after) = move;
          SealedReader stored(&objects_);
          UnitedReader united(&stored, &leaves_);
          EXPECT_EQ(Infos(&united), infos);
          EXPECT_EQ(See(&united, "run"), expected);
          leaves_.before = leaves_.after = nullptr;
          Close(&leaf);
          if (at >= question) break;
        }
      }
    }
  }
}

// A rank moved from one leaf to another; each has stored its data, or not.
TEST_F(UnitedReaderTest, TwoLeavesOfOneRankAreOne) {
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 1; step <= 3; ++step) AddStepInFrames(step, &frames);
  const std::unique_ptr<Store> alone = OpenStore("alone");
  Send(alone.get(), frames, 0, frames.size());
  const Seen expected = See(alone.get(), "run");
  const std::vector<std::string> infos = Infos(alone.get());
  for (size_t left_at = 1; left_at < frames.size(); ++left_at) {
    for (const int who_seals : {0, 1, 2}) {
      SCOPED_TRACE(absl::StrCat("left at ", left_at, ", ", who_seals));
      objects_ = FaultObjectStore();
      Leaf a = OpenLeaf(absl::StrCat("a", left_at, "_", who_seals));
      Leaf b = OpenLeaf(absl::StrCat("b", left_at, "_", who_seals));
      Send(a.store.get(), frames, 0, left_at);
      // An agent sends a payload again from its beginning.
      Send(b.store.get(), frames, left_at - left_at % 4, frames.size());
      if (who_seals == 1) ASSERT_EQ(SealAll(a.sealer.get()), absl::OkStatus());
      if (who_seals == 2) ASSERT_EQ(SealAll(b.sealer.get()), absl::OkStatus());
      SealedReader stored(&objects_);
      UnitedReader united(&stored, &leaves_);
      EXPECT_EQ(Infos(&united), infos);
      EXPECT_EQ(See(&united, "run"), expected);
      ASSERT_EQ(Accounts(&united).size(), 1u);
      EXPECT_EQ(Accounts(&united)[0].find("lost_frames"), std::string::npos)
          << Accounts(&united)[0];
      Close(&a);
      Close(&b);
    }
  }
}

// Stored data needs no question to a leaf.
TEST_F(UnitedReaderTest, OfWhatIsStoredNoLeafIsAskedForRecords) {
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 1; step <= 3; ++step) AddStepInFrames(step, &frames);
  Leaf leaf = OpenLeaf("leaf");
  Send(leaf.store.get(), frames, 0, frames.size());
  ASSERT_EQ(SealAll(leaf.sealer.get()), absl::OkStatus());
  SealedReader stored(&objects_);
  UnitedReader united(&stored, &leaves_);
  leaves_.asked = 0;
  EXPECT_EQ(See(&united, "run").size(), 3u);
  EXPECT_EQ(leaves_.asked, 1u);
  Close(&leaf);
}

// However many runs they have, and in however many parts the answer comes.
TEST_F(UnitedReaderTest, RunsAreListedWithOneQuestionToEachLeaf) {
  Leaf a = OpenLeaf("a"), b = OpenLeaf("b");
  constexpr int64_t kSteps = 1000;
  for (const char* run : {"run", "second", "third"}) {
    for (Leaf* const leaf : {&a, &b}) {
      Frames frames(MakeIdentity(run, leaf == &a ? 0 : 1, leaf == &a ? 7 : 8));
      for (int64_t step = 1; step <= kSteps; ++step)
        testing::AddWholeStep(&frames, step, RandomBytes(step, 10));
      Send(leaf->store.get(), frames, 0, frames.size());
    }
  }
  SealedReader stored(&objects_);
  UnitedReader united(&stored, &leaves_);
  size_t parts = 0;
  leaves_.before = [&](const v1::LiveQuestion& question) {
    EXPECT_TRUE(question.runs());
  };
  const auto runs = united.ListRuns();
  ASSERT_TRUE(runs.ok()) << runs.status();
  EXPECT_EQ(leaves_.asked, 2u);
  ASSERT_EQ(runs->size(), 3u);
  for (const v1::RunInfo& run : *runs) {
    EXPECT_EQ(run.steps(), static_cast<uint64_t>(kSteps)) << run.run();
    EXPECT_EQ(run.ranks(), 2u) << run.run();
  }
  leaves_.before = nullptr;
  // An answer that is interrupted is not a list.
  auto answer = leaves_.Ask(b.sealer->shard(), [] {
    v1::LiveQuestion question;
    question.set_runs(true);
    return question;
  }());
  for (v1::LiveAnswer part; *answer->Next(&part);) ++parts;
  EXPECT_GT(parts, 1u);
  leaves_.one(*b.sealer)->parts = 1;
  const MonotonicTime began = MonotonicNow();
  const auto fewer = united.ListRuns();
  ASSERT_TRUE(fewer.ok()) << fewer.status();
  for (const v1::RunInfo& run : *fewer) EXPECT_EQ(run.ranks(), 1u) << run.run();
  EXPECT_EQ(united.Unavailable("", began).size(), 1u);
  Close(&a);
  Close(&b);
}

TEST_F(UnitedReaderTest, ALeafThatIsAwayIsNamed) {
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 1; step <= 3; ++step) AddStepInFrames(step, &frames);
  Leaf leaf = OpenLeaf("leaf");
  Send(leaf.store.get(), frames, 0, 4);
  ASSERT_EQ(SealAll(leaf.sealer.get()), absl::OkStatus());
  ASSERT_TRUE(leaf.store->Commit(frames.Range(4, frames.size())).ok());
  SealedReader stored(&objects_);
  UnitedReader united(&stored, &leaves_);
  EXPECT_EQ(Infos(&united).size(), 3u);
  // The leaf disconnects before the records are read: that is not an empty
  // step.
  leaves_.one(*leaf.sealer)->away = "has gone";
  StepKey key{.run = "run", .step = 2, .incarnation = 7};
  const auto ignore = [](const v1::Record&) { return absl::OkStatus(); };
  EXPECT_TRUE(absl::IsUnavailable(united.ForEachRecord(key, ignore)));
  key.step = 1;
  EXPECT_EQ(united.ForEachRecord(key, ignore), absl::OkStatus());
  // A list without it reports that, and reading what was listed before stays an
  // error.
  const MonotonicTime began = MonotonicNow();
  EXPECT_TRUE(united.Unavailable("run", began).empty());
  EXPECT_EQ(Infos(&united).size(), 1u);
  ASSERT_EQ(united.Unavailable("run", began).size(), 1u);
  EXPECT_NE(united.Unavailable("run", began)[0].find("has gone"),
            std::string::npos);
  EXPECT_TRUE(united.Unavailable("another run", began).empty());
  key.step = 2;
  EXPECT_TRUE(absl::IsUnavailable(united.ForEachRecord(key, ignore)));
  leaves_.one(*leaf.sealer)->away = "";
  const MonotonicTime again = MonotonicNow();
  EXPECT_EQ(Infos(&united).size(), 3u);
  EXPECT_TRUE(united.Unavailable("run", again).empty());
  EXPECT_EQ(united.ForEachRecord(key, ignore), absl::OkStatus());
  // A part of its list is not a list.
  leaves_.one(*leaf.sealer)->parts = 0;
  const MonotonicTime partly = MonotonicNow();
  EXPECT_EQ(Infos(&united).size(), 1u);
  EXPECT_EQ(united.Unavailable("run", partly).size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(united.ForEachRecord(key, ignore)));
  Close(&leaf);
}

// A step moved from one leaf to another, and the first one has disconnected:
// the other's data is available, and the first one is named.
TEST_F(UnitedReaderTest, AnotherLeafsPartIsThereWithoutTheFirst) {
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 1; step <= 2; ++step) AddStepInFrames(step, &frames);
  Leaf a = OpenLeaf("a"), b = OpenLeaf("b");
  Send(a.store.get(), frames, 0, 3);
  Send(b.store.get(), frames, 3, frames.size());
  SealedReader stored(&objects_);
  UnitedReader united(&stored, &leaves_);
  StepKey key{.run = "run", .step = 1, .incarnation = 7};
  for (const bool is_stored : {false, true}) {
    leaves_.one(*a.sealer)->away = "";
    EXPECT_EQ(Infos(&united).size(), 2u);
    leaves_.one(*a.sealer)->away = "has gone";
    if (is_stored) ASSERT_EQ(SealAll(b.sealer.get()), absl::OkStatus());
    const MonotonicTime began = MonotonicNow();
    EXPECT_EQ(Infos(&united).size(), 2u);
    EXPECT_EQ(united.Unavailable("run", began).size(), 1u);
    int count = 0;
    EXPECT_EQ(united.ForEachRecord(key,
                                   [&](const v1::Record&) {
                                     ++count;
                                     return absl::OkStatus();
                                   }),
              absl::OkStatus());
    EXPECT_EQ(count, 2);
  }
  Close(&a);
  Close(&b);
}

// Including data that a leaf has not stored, or has and will not store.
TEST_F(UnitedReaderTest, WhatIsDeletedInTheStoreIsNotBroughtBackByALeaf) {
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 1; step <= 3; ++step) AddStepInFrames(step, &frames);
  Leaf leaf = OpenLeaf("leaf");
  // The second step is stored without its end.
  Send(leaf.store.get(), frames, 0, 7);
  ASSERT_EQ(SealAll(leaf.sealer.get()), absl::OkStatus());
  ASSERT_TRUE(leaf.store->Commit(frames.Range(7, frames.size())).ok());
  SealedReader stored(&objects_);
  UnitedReader united(&stored, &leaves_);
  const auto there = [&] {
    std::vector<std::pair<int64_t, uint64_t>> out;
    const auto steps = united.ListSteps("run");
    EXPECT_TRUE(steps.ok() || absl::IsNotFound(steps.status()))
        << steps.status();
    if (!steps.ok()) return out;
    for (const v1::StepInfo& info : *steps)
      if (!info.deleted()) out.emplace_back(info.step(), info.incarnation());
    return out;
  };
  using Steps = std::vector<std::pair<int64_t, uint64_t>>;
  EXPECT_EQ(there(), (Steps{{1, 7}, {2, 7}, {3, 7}}));
  ASSERT_TRUE(DeleteFromStore(&objects_, "run", std::set<int64_t>{2},
                              clock_.Now(), "delete")
                  .ok());
  EXPECT_EQ(there(), (Steps{{1, 7}, {3, 7}}));
  EXPECT_EQ(Infos(&united).size(), 3u);
  StepKey key{.run = "run", .step = 2, .incarnation = 7};
  const auto ignore = [](const v1::Record&) { return absl::OkStatus(); };
  EXPECT_TRUE(absl::IsFailedPrecondition(united.ForEachRecord(key, ignore)));
  key.step = 3;
  EXPECT_EQ(united.ForEachRecord(key, ignore), absl::OkStatus());
  const auto some = united.ListStepsAfter("run", 1, 1);
  ASSERT_TRUE(some.ok()) << some.status();
  ASSERT_EQ(some->steps.size(), 1u);
  EXPECT_TRUE(some->steps[0].deleted());
  // The complete run, up to the highest existing step.
  ASSERT_TRUE(
      DeleteFromStore(&objects_, "run", std::nullopt, clock_.Now(), "delete")
          .ok());
  EXPECT_EQ(there(), (Steps{{3, 7}}));
  EXPECT_EQ(Infos(&united).size(), 1u);
  EXPECT_EQ(Accounts(&united).size(), 1u);
  ASSERT_EQ(SealAll(leaf.sealer.get()), absl::OkStatus());
  ASSERT_TRUE(
      DeleteFromStore(&objects_, "run", std::nullopt, clock_.Now(), "delete")
          .ok());
  EXPECT_TRUE(there().empty());
  EXPECT_TRUE(united.ListRuns()->empty());
  // Only the next training of its name is listed.
  Frames next(MakeIdentity("run", 0, 8));
  AddStepInFrames(1, &next);
  Send(leaf.store.get(), next, 0, next.size());
  EXPECT_EQ(there(), (Steps{{1, 8}}));
  EXPECT_EQ(Accounts(&united).size(), 1u);
  Close(&leaf);
}

// Its records are in the store, its payload arrived later and is only on the
// leaf.
TEST_F(UnitedReaderTest, APayloadThatOnlyALeafHasIsRead) {
  Frames frames(MakeIdentity("run", 0, 7));
  AddStepInFrames(1, &frames);
  Frames late(MakeIdentity("run", 0, 7));
  Leaf leaf = OpenLeaf("leaf");
  ASSERT_TRUE(leaf.store->OpenIncarnation(frames.identity()).ok());
  std::vector<FrameToStore> records = frames.Range(2, 4);
  frames.frame(2).set_sequence(1);
  frames.frame(3).set_sequence(2);
  ASSERT_TRUE(leaf.store->Commit(records).ok());
  ASSERT_EQ(SealAll(leaf.sealer.get()), absl::OkStatus());
  frames.frame(0).set_sequence(3);
  frames.frame(1).set_sequence(4);
  ASSERT_TRUE(leaf.store->Commit(frames.Range(0, 2)).ok());
  SealedReader stored(&objects_);
  UnitedReader united(&stored, &leaves_);
  EXPECT_EQ(Infos(&united).size(), 1u);
  const std::string data = RandomBytes(1, 2000),
                    digest = testing::DigestOf(data);
  EXPECT_FALSE(stored.HasPayload("run", digest, data.size()));
  EXPECT_EQ(See(&united, "run"), See(leaf.store.get(), "run"));
  // If no leaf has it, that is reported; also if the leaf has disconnected
  // since.
  EXPECT_FALSE(united.HasPayload("run", std::string(16, 'x'), 5));
  UnitedReader other(&stored, &leaves_);
  EXPECT_EQ(Infos(&other).size(), 1u);
  leaves_.one(*leaf.sealer)->away = "has gone";
  EXPECT_TRUE(absl::IsUnavailable(
      other.ReadPayload("run", digest, data.size(),
                        [](absl::string_view) { return absl::OkStatus(); })));
  Close(&leaf);
}

}  // namespace
}  // namespace rankprobe
