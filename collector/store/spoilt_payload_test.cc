// SPDX-License-Identifier: Apache-2.0
// Payloads that ranks begin and do not finish, or send with wrong bytes: no
// other rank's payload is affected.
#include <set>
#include <string>
#include <vector>

#include "collector/store/partials.h"
#include "collector/store/store.h"
#include "collector/store/testing/damage_fixture.h"
#include "collector/testing/frames.h"
#include "common/testing/fault_file_system.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::DamageTest;
using testing::DigestOf;
using testing::FaultFileSystem;
using testing::FaultKind;
using testing::Frames;
using testing::MakeIdentity;
using testing::RandomBytes;
using testing::ReadBack;

// I08: one wrong byte is sent first under a digest that another rank sends
// correctly.
TEST_F(DamageTest, AWrongFirstChunkSpoilsNobodyElsesPayload) {
  const std::string data = RandomBytes(1, 5000);
  std::string wrong = data;
  wrong[0] = static_cast<char>(wrong[0] ^ 1);
  Frames liar(MakeIdentity("run", 0, 1)), honest(MakeIdentity("run", 1, 2));
  liar.AddPayload(wrong, 1000);
  for (size_t i = 0; i < liar.size(); ++i)
    liar.frame(i).mutable_chunk()->set_digest(DigestOf(data));
  honest.AddStep(0, data, 1500);
  auto store = Open();
  ASSERT_TRUE((*store)->Commit(liar.Range(0, 1)).ok());
  ASSERT_TRUE((*store)->Commit(honest.Range(0, 2)).ok());
  ASSERT_TRUE((*store)->Commit(liar.Range(1, 3)).ok());
  // Each continues from its own chunks after a restart.
  store->reset();
  store = Open();
  ASSERT_TRUE((*store)->Commit(honest.Range(2, honest.size())).ok());
  EXPECT_EQ(*ReadBack(store->get(), data), data);
  ASSERT_TRUE((*store)->Commit(liar.Range(3, liar.size())).ok());
  EXPECT_EQ(*ReadBack(store->get(), data), data);
  clock_.Advance(absl::Hours(1));
  ASSERT_TRUE((*store)->CollectGarbage({}).ok());
  EXPECT_EQ(*ReadBack(store->get(), data), data);
  EXPECT_EQ(Verify(store->get()).partial_payloads(), 0u);
  EXPECT_EQ(Verify(store->get()).fault_count(), 0u);
}

// Segments are rewritten between two chunks of a payload, and while it is
// finished.
TEST_F(DamageTest, AnUnfinishedPayloadSurvivesCompaction) {
  const std::string data = RandomBytes(1, 50000);
  Frames frames(MakeIdentity("run", 0, 1)), noise(MakeIdentity("run", 1, 2));
  frames.AddStep(0, data, 10000);
  auto store = Open(/*segment_bytes=*/40000);
  ASSERT_TRUE((*store)->Commit(frames.Range(0, 1)).ok());
  for (int64_t step = 0; step < 3; ++step)
    noise.AddStep(step, RandomBytes(50 + static_cast<uint64_t>(step), 30000));
  for (size_t i = 0; i < noise.size(); ++i)
    ASSERT_TRUE((*store)->Commit(noise.Range(i, i + 1)).ok());
  ASSERT_TRUE((*store)->Commit(frames.Range(1, 2)).ok());
  ASSERT_TRUE(
      (*store)->Delete({"run", std::set<int64_t>{0, 1, 2}, {}, 0}).ok());
  clock_.Advance(absl::Minutes(1));
  const auto garbage = (*store)->CollectGarbage({1});
  ASSERT_TRUE(garbage.ok()) << garbage.status();
  ASSERT_TRUE((*store)->Commit(frames.Range(2, frames.size())).ok());
  EXPECT_EQ(*ReadBack(store->get(), data), data);
  EXPECT_EQ(Verify(store->get()).corrupt_payloads(), 0u);
}

// A chunk that zstd made smaller stays readable when another store rewrites it.
TEST_F(DamageTest,
       CompressedChunksSurviveCompactionByAStoreThatDoesNotCompress) {
  const std::string kept(60000, 'k'), gone = RandomBytes(2, 60000);
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddStep(0, gone);
  frames.AddStep(1, kept);
  {
    auto store = Open(1 << 20, /*compress=*/true);
    ASSERT_TRUE((*store)->Commit(frames.All()).ok());
  }
  auto store = Open();
  Frames more(MakeIdentity("run", 0, 2));
  more.AddStep(2, RandomBytes(3, 100));
  ASSERT_TRUE((*store)->Commit(more.All()).ok());
  clock_.Advance(absl::Hours(1));
  ASSERT_TRUE((*store)->Delete({"run", std::set<int64_t>{0}, {}}).ok());
  EXPECT_FALSE(file_system_->Exists(Segment(1)));
  EXPECT_EQ(*ReadBack(store->get(), kept), kept);
  EXPECT_EQ(Verify(store->get()).fault_count(), 0u);
}

// A damaged chunk in a segment that is to be rewritten: the others move, it
// stays, and the compaction continues.
TEST_F(DamageTest, CompactionLeavesADamagedChunkWhereItIs) {
  const std::string kept = RandomBytes(1, 3000), damaged = RandomBytes(2, 3000);
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddStep(0, damaged);
  frames.AddStep(1, kept);
  frames.AddStep(2, RandomBytes(3, 60000));
  {
    auto store = Open();
    ASSERT_TRUE((*store)->Commit(frames.All()).ok());
  }
  Flip(Segment(1), 60);
  auto store = Open();
  Frames more(MakeIdentity("run", 0, 2));
  more.AddStep(3, RandomBytes(4, 100));
  ASSERT_TRUE((*store)->Commit(more.All()).ok());
  clock_.Advance(absl::Hours(1));
  ASSERT_TRUE((*store)->Delete({"run", std::set<int64_t>{2}, {}}).ok());
  EXPECT_TRUE(file_system_->Exists(Segment(1)));
  EXPECT_EQ(*ReadBack(store->get(), kept), kept);
  EXPECT_NE((*store)->PayloadDamage("run", DigestOf(damaged), 3000), "");
  // The segment is deleted with its payload.
  ASSERT_TRUE((*store)->Delete({"run", std::set<int64_t>{0}, {}}).ok());
  EXPECT_FALSE(file_system_->Exists(Segment(1)));
  EXPECT_EQ(*ReadBack(store->get(), kept), kept);
}

// M06: a refused frame does not affect the others.
TEST_F(DamageTest, ARefusedFrameDoesNotMakeOtherPayloadsBeReadAgain) {
  FaultFileSystem fs;
  auto store = Store::Open(testing::OptionsAt("/d"), &fs, &clock_);
  ASSERT_TRUE(store.ok()) << store.status();
  const std::string data = RandomBytes(1, 5000);
  Frames frames(MakeIdentity("run", 0, 1)), bad(MakeIdentity("run", 1, 2));
  frames.AddStep(0, data, 1000);
  bad.AddPayload("0123456789");
  bad.frame(0).mutable_chunk()->set_crc32c(1);
  ASSERT_TRUE((*store)->Commit(frames.Range(0, 2)).ok());
  int reads = 0;
  fs.FailWhile([&](const std::string& op, const std::string& path) {
    if (op == "Read" && path.find("/segments/") != std::string::npos) ++reads;
    return FaultKind::kNone;
  });
  // In one commit with the good frame, as the queue sends them.
  std::vector<FrameToStore> both = frames.Range(2, 3);
  both.push_back(bad.All()[0]);
  EXPECT_TRUE(absl::IsInvalidArgument((*store)->Commit(both)));
  ASSERT_TRUE((*store)->Commit(frames.Range(2, frames.size())).ok());
  EXPECT_EQ(reads, 0);
  EXPECT_EQ(*ReadBack(store->get(), data), data);
  EXPECT_GT(reads, 0);
}

// A commit that finds no room is undone in every cache, and then succeeds.
TEST_F(DamageTest, ACommitWithoutRoomLeavesPartialsAsTheyWere) {
  FaultFileSystem fs;
  auto store = Store::Open(testing::OptionsAt("/d"), &fs, &clock_);
  ASSERT_TRUE(store.ok()) << store.status();
  const std::string data = RandomBytes(1, 5000);
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddStep(0, data, 1000);
  ASSERT_TRUE((*store)->Commit(frames.Range(0, 2)).ok());
  for (const size_t last : {3ul, 5ul, frames.size()}) {
    fs.SetCapacity(fs.used_bytes());
    EXPECT_TRUE(
        absl::IsResourceExhausted((*store)->Commit(frames.Range(2, last))));
    EXPECT_FALSE((*store)->HasPayload("run", DigestOf(data), data.size()));
    fs.SetCapacity(UINT64_MAX);
  }
  ASSERT_TRUE((*store)->Commit(frames.Range(2, frames.size())).ok());
  EXPECT_EQ(*ReadBack(store->get(), data), data);
}

// N03: no descriptors for a while, which affects the sync of older logs.
TEST_F(DamageTest, AfterDescriptorsAreBackSyncGoesOn) {
  bool none_left = true;
  FaultFileSystem fs;
  auto store = Store::Open(testing::OptionsAt("/d"), &fs, &clock_);
  ASSERT_TRUE(store.ok()) << store.status();
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddStep(0, RandomBytes(1, 5000));
  frames.AddStep(1, RandomBytes(2, 5000));
  ASSERT_TRUE((*store)->Commit(frames.Range(0, 2)).ok());
  for (const std::string op : {"List", "OpenForSync"}) {
    fs.FailWhile([&none_left, op](const std::string& call, const std::string&) {
      return none_left && call == op ? FaultKind::kNoSpace : FaultKind::kNone;
    });
    none_left = true;
    EXPECT_TRUE(absl::IsResourceExhausted((*store)->Sync())) << op;
    none_left = false;
    EXPECT_TRUE((*store)->Sync().ok()) << op;
  }
  EXPECT_TRUE((*store)->Commit(frames.Range(2, frames.size())).ok());
  EXPECT_TRUE((*store)->Sync().ok());
}

// M02: states are bounded; dropped ones are read again.
TEST(PartialTableTest, TheOnesUsedLongestAgoGo) {
  PartialTable table(2);
  table.Put("a1", {1, {}});
  table.Put("a2", {2, {}});
  ASSERT_NE(table.Find("a1"), nullptr);
  table.Put("b", {3, {}});
  EXPECT_EQ(table.size(), 3u) << "not before it is told to";
  table.Trim();
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table.Find("a2"), nullptr);
  EXPECT_EQ(table.Find("a1")->next_offset, 1u);
  table.Put("a1", {7, {}});
  EXPECT_EQ(table.Find("a1")->next_offset, 7u);
  table.Erase("a");
  EXPECT_EQ(table.Find("a1"), nullptr);
  EXPECT_EQ(table.size(), 1u);
  table.Trim();
  EXPECT_NE(table.Find("b"), nullptr);
}

TEST_F(DamageTest, ThousandsOfUnfinishedPayloadsAreGoneOnWith) {
  auto store = Open();
  Frames frames(MakeIdentity("run", 0, 1));
  const std::string data = RandomBytes(1, 300);
  frames.AddPayload(data, 100);
  // More than the limit of kept states.
  for (uint64_t i = 0; i < 9000; ++i) frames.AddPayload(RandomBytes(i, 20), 10);
  std::vector<FrameToStore> firsts = frames.Range(0, 1);
  std::vector<v1::UploadFrame> renumbered;
  renumbered.reserve(9001);
  for (size_t i = 3; i < frames.size(); i += 2)
    renumbered.push_back(frames.frame(i));
  for (size_t i = 0; i < renumbered.size(); ++i)
    renumbered[i].set_sequence(2 + i);
  const v1::Identity identity = frames.identity();
  for (const v1::UploadFrame& frame : renumbered)
    firsts.push_back({&identity, &frame});
  ASSERT_TRUE((*store)->Commit(firsts).ok());
  for (const size_t i : {1ul, 2ul}) {
    frames.frame(i).set_sequence(renumbered.size() + 1 + i);
    ASSERT_TRUE((*store)->Commit(frames.Range(i, i + 1)).ok());
  }
  EXPECT_EQ(*ReadBack(store->get(), data), data);
}

}  // namespace
}  // namespace rankprobe
