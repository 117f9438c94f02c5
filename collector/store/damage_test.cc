// SPDX-License-Identifier: Apache-2.0
// Bytes that change on the disk and files that disappear: affected data is
// reported, everything else is served.
#include <sys/stat.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/store/index.h"
#include "collector/store/keys.h"
#include "collector/store/store.h"
#include "collector/store/testing/damage_fixture.h"
#include "collector/testing/frames.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::DamageTest;
using testing::DigestOf;
using ::testing::ElementsAre;
using testing::Frames;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakeIdentity;
using testing::RandomBytes;
using testing::ReadBack;

// K22, K23: one flipped bit in the newest segment, in a header or in data.
TEST_F(DamageTest, AFlippedBitSpoilsOnePayloadOfTheNewestSegment) {
  for (const bool killed : {false, true}) {
    for (const size_t offset : {size_t{4}, size_t{52 + 700}}) {
      SCOPED_TRACE(
          absl::StrCat(killed ? "killed" : "clean", ", byte ", offset));
      ASSERT_TRUE(file_system_->DeleteTree(root_ + "/data").ok());
      Frames frames(MakeIdentity("run", 0, 1));
      std::vector<std::string> data;
      for (uint64_t i = 0; i < 20; ++i) {
        data.push_back(RandomBytes(i, 5000));
        frames.AddStep(static_cast<int64_t>(i), data.back());
      }
      {
        auto store = Open();
        ASSERT_TRUE((*store)->Commit(frames.All()).ok());
        ASSERT_TRUE((*store)->Sync().ok());
      }
      if (killed) ForgetCleanEnd();
      const uint64_t size = Slurp(Segment(1)).size();
      Flip(Segment(1), offset);
      auto store = Open();
      ASSERT_TRUE(store.ok()) << store.status();
      EXPECT_EQ(Slurp(Segment(1)).size(), size) << "nothing is cut";
      EXPECT_EQ((*store)->recovery().torn_bytes_dropped, 0u);
      for (size_t i = 1; i < data.size(); ++i)
        EXPECT_EQ(*ReadBack(store->get(), data[i]), data[i]);
      const v1::VerifyReport report = Verify(store->get());
      ASSERT_EQ(report.fault_count(), 1u) << report.DebugString();
      EXPECT_THAT(report.faults(0), HasSubstr("0000000001.seg"));
      if (offset < 52) {
        // The bytes themselves are correct.
        EXPECT_EQ(*ReadBack(store->get(), data[0]), data[0]);
        EXPECT_EQ(report.corrupt_payloads(), 0u);
        continue;
      }
      EXPECT_EQ(report.corrupt_payloads(), 1u);
      EXPECT_THAT(report.faults(0), HasSubstr("CORRUPT"));
      EXPECT_EQ((*store)->PayloadDamage("run", DigestOf(data[0]), 5000),
                "segments/0000000001.seg at byte 52");
      EXPECT_FALSE((*store)->HasPayload("run", DigestOf(data[0]), 5000));
      EXPECT_EQ(Verify(store->get(), false).corrupt_payloads(), 1u)
          << "known from now on, without reading";
    }
  }
}

TEST_F(DamageTest, ADamagedPayloadIsMendedByTheRankThatSendsItAgain) {
  const std::string data = RandomBytes(1, 300000), other = RandomBytes(2, 900);
  Frames frames(MakeIdentity("run", 0, 1)), again(MakeIdentity("run", 1, 2));
  frames.AddStep(0, data, 100000);
  frames.AddStep(1, other);
  again.AddStep(0, data, 70000);
  auto store = Open();
  ASSERT_TRUE((*store)->Commit(frames.All()).ok());
  Flip(Segment(1), 52 + 100000 + 52 + 17);
  EXPECT_TRUE(absl::IsDataLoss(ReadBack(store->get(), data).status()));
  EXPECT_FALSE((*store)->KeepPayload("run", DigestOf(data), data.size()))
      << "so that it is wanted again";
  ASSERT_TRUE((*store)->Commit(again.All()).ok());
  EXPECT_EQ(*ReadBack(store->get(), data), data);
  EXPECT_EQ((*store)->PayloadDamage("run", DigestOf(data), data.size()), "");
  EXPECT_EQ(Verify(store->get()).fault_count(), 0u);
}

TEST_F(DamageTest, WhatIsRightAgainIsCalledSoAgain) {
  const std::string data = RandomBytes(1, 3000);
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddStep(0, data);
  auto store = Open();
  ASSERT_TRUE((*store)->Commit(frames.All()).ok());
  Flip(Segment(1), 100);
  EXPECT_EQ(Verify(store->get()).corrupt_payloads(), 1u);
  Flip(Segment(1), 100);
  EXPECT_EQ(Verify(store->get()).corrupt_payloads(), 0u);
  EXPECT_EQ(*ReadBack(store->get(), data), data);
}

// A file that is shorter than its synced size: its payloads are reported, not
// forgotten.
TEST_F(DamageTest, ATruncatedSegmentIsDamageOfWhatLayThere) {
  const std::string first = RandomBytes(1, 3000), second = RandomBytes(2, 3000);
  for (const bool killed : {false, true}) {
    SCOPED_TRACE(killed ? "killed" : "clean");
    ASSERT_TRUE(file_system_->DeleteTree(root_ + "/data").ok());
    Frames frames(MakeIdentity("run", 0, 1));
    frames.AddStep(0, first);
    frames.AddStep(1, second);
    {
      auto store = Open();
      ASSERT_TRUE((*store)->Commit(frames.All()).ok());
      ASSERT_TRUE((*store)->Sync().ok());
    }
    if (killed) ForgetCleanEnd();
    ASSERT_TRUE(file_system_->Truncate(Segment(1), 4000).ok());
    auto store = Open();
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ((*store)->recovery().damaged_payloads, 1u);
    EXPECT_EQ(*ReadBack(store->get(), first), first);
    EXPECT_NE((*store)->PayloadDamage("run", DigestOf(second), 3000), "");
    EXPECT_EQ(Verify(store->get()).corrupt_payloads(), 1u);
  }
}

// The same for complete files, the only one or the newest: a row does not prove
// that the file exists, and a number is not used twice.
TEST_F(DamageTest, WhatLayInASegmentThatIsGoneIsStoredWhenItComesAgain) {
  const std::string first = RandomBytes(1, 3000), second = RandomBytes(2, 3000);
  for (const bool killed : {false, true}) {
    for (const bool all : {false, true}) {
      SCOPED_TRACE(absl::StrCat(killed ? "killed" : "clean",
                                all ? ", all" : ", the newest"));
      ASSERT_TRUE(file_system_->DeleteTree(root_ + "/data").ok());
      Frames frames(MakeIdentity("run", 0, 1)),
          again(MakeIdentity("run", 1, 2));
      frames.AddStep(0, first);
      frames.AddStep(1, second);
      again.AddStep(0, first);
      again.AddStep(1, second);
      {
        auto store = Open(/*segment_bytes=*/3000);
        ASSERT_TRUE((*store)->Commit(frames.All()).ok());
        ASSERT_TRUE((*store)->Sync().ok());
      }
      if (killed) ForgetCleanEnd();
      ASSERT_TRUE(file_system_->Exists(Segment(2)));
      if (all) ASSERT_TRUE(file_system_->Delete(Segment(1)).ok());
      ASSERT_TRUE(file_system_->Delete(Segment(2)).ok());
      auto store = Open(/*segment_bytes=*/3000);
      ASSERT_TRUE(store.ok()) << store.status();
      EXPECT_EQ((*store)->recovery().damaged_payloads, all ? 2u : 1u);
      EXPECT_FALSE((*store)->HasPayload("run", DigestOf(second), 3000));
      EXPECT_EQ((*store)->HasPayload("run", DigestOf(first), 3000), !all);
      ASSERT_TRUE((*store)->Commit(again.All()).ok());
      EXPECT_FALSE(file_system_->Exists(Segment(2)));
      EXPECT_TRUE(file_system_->Exists(Segment(3)));
      EXPECT_EQ(*ReadBack(store->get(), first), first);
      EXPECT_EQ(*ReadBack(store->get(), second), second);
      EXPECT_EQ(Verify(store->get()).fault_count(), 0u);
    }
  }
}

// K24: its sender continues after a restart.
TEST_F(DamageTest, AFlippedBitInAnUnfinishedPayloadDropsThatPayloadOnly) {
  const std::string data = RandomBytes(1, 5000), other = RandomBytes(2, 5000);
  Frames frames(MakeIdentity("run", 0, 1)),
      neighbour(MakeIdentity("run", 1, 2));
  frames.AddStep(0, data, 1000);
  frames.AddStep(1, other);
  neighbour.AddStep(0, RandomBytes(3, 4000));
  {
    auto store = Open();
    ASSERT_TRUE((*store)->Commit(frames.Range(0, 3)).ok());
    ASSERT_TRUE((*store)->Sync().ok());
  }
  Flip(Segment(1), 60);
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Commit(frames.Range(3, frames.size())).ok());
  ASSERT_TRUE((*store)->Commit(neighbour.All()).ok());
  EXPECT_FALSE((*store)->HasPayload("run", DigestOf(data), data.size()));
  EXPECT_EQ(*ReadBack(store->get(), other), other);
  const v1::VerifyReport report = Verify(store->get());
  EXPECT_EQ(report.fault_count(), 0u) << report.DebugString();
  EXPECT_EQ(report.missing_payloads(), 1u);
  // The payload may be sent again.
  Frames again(MakeIdentity("run", 0, 3));
  again.AddStep(0, data, 1000);
  ASSERT_TRUE((*store)->Commit(again.All()).ok());
  EXPECT_EQ(*ReadBack(store->get(), data), data);
}

// K12, K13: index/CURRENT or the complete index is lost.
TEST_F(DamageTest, AnIndexThatIsGoneIsNotMadeAnew) {
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddStep(0, RandomBytes(1, 3000));
  {
    auto store = Open();
    ASSERT_TRUE((*store)->Commit(frames.All()).ok());
  }
  const std::string current = root_ + "/data/index/CURRENT";
  const std::string bytes = Slurp(current);
  ASSERT_TRUE(file_system_->Delete(current).ok());
  auto store = Open();
  ASSERT_TRUE(absl::IsDataLoss(store.status())) << store.status();
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("segments"));
  Spit(current, bytes);
  ASSERT_TRUE(Open().ok()) << "nothing was changed";
  ASSERT_TRUE(file_system_->DeleteTree(root_ + "/data/index").ok());
  EXPECT_TRUE(absl::IsDataLoss(Open().status()));
  // Records alone leave no segment, but a trace of the index.
  ASSERT_TRUE(file_system_->DeleteTree(root_ + "/data/segments").ok());
  EXPECT_TRUE(absl::IsDataLoss(Open().status()));
  ASSERT_TRUE(file_system_->DeleteTree(root_ + "/data").ok());
  EXPECT_TRUE(Open().ok());
}

// Files that were put there by hand.
TEST_F(DamageTest, SegmentsThatNoRowHasNamedAreNotDeleted) {
  Frames frames(MakeIdentity("run", 0, 1));
  {
    auto store = Open();
    frames.AddStep(0, RandomBytes(1, 3000));
    ASSERT_TRUE((*store)->Commit(frames.All()).ok());
  }
  Spit(Segment(7), Slurp(Segment(1)));
  auto store = Open();
  Frames more(MakeIdentity("other", 0, 2));
  more.AddStep(0, RandomBytes(2, 3000));
  ASSERT_TRUE((*store)->Commit(more.All()).ok());
  clock_.Advance(absl::Hours(1));
  const auto garbage = (*store)->CollectGarbage({});
  ASSERT_TRUE(garbage.ok()) << garbage.status();
  EXPECT_EQ(garbage->unknown_segments, 1u);
  EXPECT_TRUE(file_system_->Exists(Segment(7)));
  // It deletes its own segments when they have no live data, after a restart
  // too.
  ASSERT_TRUE((*store)->Delete({"run", {}, {}}).ok());
  store->reset();
  store = Open();
  ASSERT_TRUE((*store)->CollectGarbage({}).ok());
  EXPECT_FALSE(file_system_->Exists(Segment(1)));
  EXPECT_TRUE(file_system_->Exists(Segment(7)));
}

// K17, K16.
TEST_F(DamageTest, AFifoOrDirectoryAsSegmentIsRefusedAtOnce) {
  { ASSERT_TRUE(Open().ok()); }
  ASSERT_EQ(mkfifo(Segment(9).c_str(), 0600), 0);
  auto store = Open();
  ASSERT_FALSE(store.ok());
  EXPECT_THAT(std::string(store.status().message()),
              HasSubstr("not a regular file"));
  ASSERT_TRUE(file_system_->Delete(Segment(9)).ok());
  ASSERT_TRUE(file_system_->CreateDirectories(Segment(9)).ok());
  EXPECT_FALSE(Open().ok());
}

// K09: the index has lost synced writes.
TEST_F(DamageTest, AnIndexThatWentBackIsNoticed) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (int64_t step = 0; step < 4; ++step)
    frames.AddStep(step, RandomBytes(static_cast<uint64_t>(step), 3000));
  const std::string index = root_ + "/data/index";
  std::map<std::string, std::string> before;
  {
    auto store = Open();
    ASSERT_TRUE((*store)->Commit(frames.Range(0, 4)).ok());
    ASSERT_TRUE((*store)->Sync().ok());
    const std::vector<std::string> names = *file_system_->List(index);
    for (const std::string& name : names)
      before[name] = Slurp(absl::StrCat(index, "/", name));
    ASSERT_TRUE((*store)->Commit(frames.Range(4, frames.size())).ok());
    ASSERT_TRUE((*store)->Sync().ok());
  }
  const uint64_t bytes = Slurp(Segment(1)).size();
  ASSERT_TRUE(file_system_->DeleteTree(index).ok());
  ASSERT_TRUE(file_system_->CreateDirectories(index).ok());
  for (const auto& [name, content] : before)
    Spit(absl::StrCat(index, "/", name), content);
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->recovery().lost_syncs, 2u);
  EXPECT_EQ(Slurp(Segment(1)).size(), bytes) << "for a rebuild";
  for (int i = 0; i < 2; ++i) {
    const v1::VerifyReport report = Verify(store->get());
    ASSERT_EQ(report.fault_count(), 1u) << report.DebugString();
    EXPECT_THAT(report.faults(0), HasSubstr("lost synced writes"));
    // Every answer about a run from before reports that.
    EXPECT_THAT((*store)->Faults("run"),
                ElementsAre(HasSubstr("lost synced writes")));
    EXPECT_THAT((*store)->Faults("later"), IsEmpty());
    store->reset();
    store = Open();
    EXPECT_EQ((*store)->recovery().lost_syncs, 0u) << "said once at start";
    Frames later(MakeIdentity("later", 0, 2));
    later.AddStep(0, RandomBytes(9, 3000));
    ASSERT_TRUE((*store)->Commit(later.Range(0, later.size())).ok());
  }
}

// K09: rows that do not match the counters.
TEST_F(DamageTest, VerifyCountsRecordsAgainstTheirCounters) {
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddStep(3, RandomBytes(1, 300));
  frames.AddStep(4, RandomBytes(2, 300));
  {
    auto store = Open();
    ASSERT_TRUE((*store)->Commit(frames.All()).ok());
    EXPECT_EQ(Verify(store->get()).fault_count(), 0u);
  }
  {
    const auto index = *OpenLevelDbIndex(
        {root_ + "/data/index", 1 << 20, 1 << 20, file_system_.get()});
    std::unique_ptr<IndexBatch> batch = index->NewBatch();
    batch->Delete(keys::Record(1, 3, 1, 1));
    batch->Delete(keys::Step(1, 4, 1));
    ASSERT_TRUE(index->Write(std::move(batch), true).ok());
  }
  const v1::VerifyReport report = Verify(Open()->get());
  ASSERT_EQ(report.fault_count(), 2u) << report.DebugString();
  EXPECT_THAT(report.faults(0),
              HasSubstr("step 3: 2 records were stored, 1 are here"));
  EXPECT_THAT(report.faults(1),
              HasSubstr("4 records were stored, its steps account for 2"));
}

}  // namespace
}  // namespace rankprobe
