// Bytes that change on the disk, files that go, and ranks that send wrong ones:
// what is touched is named, everything else is served.
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collector/store/index.h"
#include "collector/store/keys.h"
#include "collector/store/partials.h"
#include "collector/store/rebuild.h"
#include "collector/store/store.h"
#include "collector/testing/frames.h"
#include "common/testing/fault_file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::DigestOf;
using testing::FaultFileSystem;
using testing::FaultKind;
using testing::Frames;
using ::testing::HasSubstr;
using testing::MakeIdentity;
using testing::RandomBytes;

absl::StatusOr<std::string> ReadBack(Store* store, const std::string& data) {
  std::string out;
  const absl::Status status = store->ReadPayload(
      "run", DigestOf(data), data.size(), [&](absl::string_view piece) {
        out.append(piece.data(), piece.size());
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return out;
}

class DamageTest : public testing::TempDirTest {
 protected:
  absl::StatusOr<std::unique_ptr<Store>> Open(uint64_t segment_bytes = 1 << 20,
                                              bool compress = false) {
    StoreOptions options;
    options.data_dir = root_ + "/data";
    options.min_free_bytes = 0;
    options.segment_bytes = segment_bytes;
    options.compress_payloads = compress;
    return Store::Open(options, file_system_.get(), &clock_);
  }
  std::string Segment(uint64_t number) const {
    return absl::StrCat(root_, "/data/segments/000000000", number, ".seg");
  }
  static std::string Slurp(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file),
            std::istreambuf_iterator<char>()};
  }
  static void Spit(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  static void Flip(const std::string& path, size_t offset, int bit = 0) {
    std::string bytes = Slurp(path);
    ASSERT_LT(offset, bytes.size()) << path;
    bytes[offset] = static_cast<char>(bytes[offset] ^ (1 << bit));
    Spit(path, bytes);
  }
  // As if the process had been killed: the mark of a clean end goes.
  void ForgetCleanEnd() {
    const auto index = *OpenLevelDbIndex(
        {root_ + "/data/index", 1 << 20, 1 << 20, file_system_.get()});
    std::unique_ptr<IndexBatch> batch = index->NewBatch();
    batch->Delete(keys::kClean);
    ASSERT_TRUE(index->Write(std::move(batch), true).ok());
  }
  static v1::VerifyReport Verify(Store* store, bool read_data = true) {
    v1::VerifyRequest request;
    request.set_read_data(read_data);
    const auto report = store->Verify(request, {});
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : v1::VerifyReport();
  }
};

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
        // The bytes themselves are right.
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

// A shorter file than what was synced: its payloads are named, not forgotten.
TEST_F(DamageTest, ATruncatedSegmentIsDamageOfWhatLayThere) {
  const std::string first = RandomBytes(1, 3000), second = RandomBytes(2, 3000);
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddStep(0, first);
  frames.AddStep(1, second);
  {
    auto store = Open();
    ASSERT_TRUE((*store)->Commit(frames.All()).ok());
    ASSERT_TRUE((*store)->Sync().ok());
  }
  ForgetCleanEnd();
  ASSERT_TRUE(file_system_->Truncate(Segment(1), 4000).ok());
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->recovery().damaged_payloads, 1u);
  EXPECT_EQ(*ReadBack(store->get(), first), first);
  EXPECT_NE((*store)->PayloadDamage("run", DigestOf(second), 3000), "");
  EXPECT_EQ(Verify(store->get()).corrupt_payloads(), 1u);
}

// K24: its sender goes on after a restart.
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
  // And it may come again.
  Frames again(MakeIdentity("run", 0, 3));
  again.AddStep(0, data, 1000);
  ASSERT_TRUE((*store)->Commit(again.All()).ok());
  EXPECT_EQ(*ReadBack(store->get(), data), data);
}

// K12, K13: index/CURRENT or the whole index lost.
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
  // Records alone leave no segment, but a trace.
  ASSERT_TRUE(file_system_->DeleteTree(root_ + "/data/segments").ok());
  EXPECT_TRUE(absl::IsDataLoss(Open().status()));
  ASSERT_TRUE(file_system_->DeleteTree(root_ + "/data").ok());
  EXPECT_TRUE(Open().ok());
}

// The same where an older version had made a new index already, and for files
// that were put there by hand.
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
  // Its own it deletes when nothing in them lives, after a restart too.
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
              HasSubstr("no regular file"));
  ASSERT_TRUE(file_system_->Delete(Segment(9)).ok());
  ASSERT_TRUE(file_system_->CreateDirectories(Segment(9)).ok());
  EXPECT_FALSE(Open().ok());
}

// K09: the index has gone back behind what it had synced.
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
    EXPECT_THAT(report.faults(0), HasSubstr("gone back"));
    store->reset();
    store = Open();
    EXPECT_EQ((*store)->recovery().lost_syncs, 0u) << "said once at start";
  }
}

// K09: rows that are not where the counters say.
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

// I08: one wrong byte first under a digest that another rank sends rightly.
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
  // Each goes on from its own chunks after a restart.
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

// Segments are written anew between two chunks of a payload, and while it is
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

// What zstd made smaller stays readable when another store rewrites it.
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

// A damaged chunk in a segment that is to be written anew: the others move, it
// stays where it is, and the work goes on.
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
  // With its payload the segment goes.
  ASSERT_TRUE((*store)->Delete({"run", std::set<int64_t>{0}, {}}).ok());
  EXPECT_FALSE(file_system_->Exists(Segment(1)));
  EXPECT_EQ(*ReadBack(store->get(), kept), kept);
}

// M06: a refused frame costs the others nothing.
TEST_F(DamageTest, ARefusedFrameDoesNotMakeOtherPayloadsBeReadAgain) {
  FaultFileSystem fs;
  StoreOptions options;
  options.data_dir = "/d";
  options.min_free_bytes = 0;
  auto store = Store::Open(options, &fs, &clock_);
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
  // In one commit with the good frame, as the queue takes them.
  std::vector<FrameToStore> both = frames.Range(2, 3);
  both.push_back(bad.All()[0]);
  EXPECT_TRUE(absl::IsInvalidArgument((*store)->Commit(both)));
  ASSERT_TRUE((*store)->Commit(frames.Range(2, frames.size())).ok());
  EXPECT_EQ(reads, 0);
  EXPECT_EQ(*ReadBack(store->get(), data), data);
  EXPECT_GT(reads, 0);
}

// A commit that finds no room is undone in every cache, and then done.
TEST_F(DamageTest, ACommitWithoutRoomLeavesPartialsAsTheyWere) {
  FaultFileSystem fs;
  StoreOptions options;
  options.data_dir = "/d";
  options.min_free_bytes = 0;
  auto store = Store::Open(options, &fs, &clock_);
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

// N03: no descriptors for a while, as seen by the sync of older logs.
TEST_F(DamageTest, AfterDescriptorsAreBackSyncGoesOn) {
  bool none_left = true;
  FaultFileSystem fs;
  StoreOptions options;
  options.data_dir = "/d";
  options.min_free_bytes = 0;
  auto store = Store::Open(options, &fs, &clock_);
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

// M02: states are bounded; those that are dropped are read again.
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
  // More than the states that are kept.
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

class RebuildTest : public DamageTest {
 protected:
  // Two runs over several segments, one payload of which in many chunks.
  void Fill() {
    Frames first(MakeIdentity("run", 0, 1)),
        second(MakeIdentity("other", 3, 2));
    for (uint64_t i = 0; i < 12; ++i) {
      data_.push_back(i % 4 == 1 ? std::string(9000 + i, 'z')
                                 : RandomBytes(i, 9000 + i));
      first.AddStep(static_cast<int64_t>(i), data_.back(), 4000);
      second.AddStep(static_cast<int64_t>(i), RandomBytes(100 + i, 700));
    }
    auto store = Open(/*segment_bytes=*/30000, /*compress=*/true);
    ASSERT_TRUE(store.ok()) << store.status();
    for (size_t i = 0; i < first.size(); ++i)
      ASSERT_TRUE((*store)->Commit(first.Range(i, i + 1)).ok());
    ASSERT_TRUE((*store)->Commit(second.All()).ok());
    ASSERT_TRUE((*store)->Sync().ok());
  }
  absl::StatusOr<RebuildReport> Rebuild() {
    StoreOptions options;
    options.data_dir = root_ + "/data";
    return RebuildIndex(options, file_system_.get(), &clock_,
                        [](absl::string_view, absl::string_view digest) {
                          return std::string(digest);
                        });
  }
  // How many of the payloads are served; those that are are right.
  size_t Served(Store* store, const std::string& run) {
    size_t served = 0;
    for (const std::string& data : data_) {
      std::string out;
      const absl::Status read = store->ReadPayload(
          run, DigestOf(data), data.size(), [&](absl::string_view piece) {
            out.append(piece.data(), piece.size());
            return absl::OkStatus();
          });
      if (!read.ok()) continue;
      EXPECT_EQ(out, data);
      ++served;
    }
    return served;
  }

  std::vector<std::string> data_;
};

TEST_F(RebuildTest, ASoundArchiveStaysWhatItIs) {
  Fill();
  const auto report = Rebuild();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->runs, 2u);
  EXPECT_EQ(report->records, 48u);
  EXPECT_EQ(report->payloads, 24u);
  EXPECT_EQ(report->payloads_found, 0u);
  EXPECT_EQ(report->damaged_places, 0u);
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(Verify(store->get()).fault_count(), 0u);
  EXPECT_EQ(Served(store->get(), "run"), data_.size());
  EXPECT_EQ(*(*store)->OpenIncarnation(MakeIdentity("other", 3, 2)), 24u);
  EXPECT_TRUE(absl::IsFailedPrecondition(Rebuild().status())) << "it is held";
}

TEST_F(RebuildTest, WithoutAnIndexThePayloadsAreFound) {
  Fill();
  ASSERT_TRUE(file_system_->DeleteTree(root_ + "/data/index").ok());
  Flip(Segment(2), 70);
  auto report = Rebuild();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->runs, 2u);
  EXPECT_EQ(report->payloads_found, 23u);
  EXPECT_EQ(report->payloads_not_whole, 1u);
  ASSERT_EQ(report->damaged.size(), 1u);
  EXPECT_THAT(report->damaged[0], HasSubstr("0000000002.seg at byte"));
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(Served(store->get(), "recovered-1"), data_.size() - 1);
  // Nothing refers to them, and yet they are no garbage.
  clock_.Advance(absl::Hours(2));
  ASSERT_TRUE((*store)->CollectGarbage({}).ok());
  EXPECT_EQ(Served(store->get(), "recovered-1"), data_.size() - 1);
  EXPECT_EQ(Verify(store->get()).fault_count(), 0u);
}

TEST_F(RebuildTest, WithoutCurrentTheRecordsAreSaved) {
  Fill();
  ASSERT_TRUE(file_system_->Delete(root_ + "/data/index/CURRENT").ok());
  ASSERT_TRUE(absl::IsDataLoss(Open().status()));
  const auto report = Rebuild();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->records, 48u);
  auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(Served(store->get(), "run"), data_.size());
  EXPECT_EQ((*store)->ListSteps("run")->size(), 12u);
  EXPECT_EQ(Verify(store->get()).fault_count(), 0u);
}

TEST_F(RebuildTest, WhereNothingIsNothingIsMade) {
  EXPECT_TRUE(absl::IsNotFound(Rebuild().status()));
  EXPECT_FALSE(file_system_->Exists(root_ + "/data"));
}

// One bit in each of many places of every file of an archive: what it does not
// touch is served, byte by byte, or the start is refused with words; a flip
// that takes something away is never silent.
TEST_F(RebuildTest, ABitFlipSweepOverEveryFile) {
  Fill();
  const std::string data_dir = root_ + "/data", saved = root_ + "/saved";
  std::map<std::string, std::string> files;
  for (const std::string directory : {"index", "segments", "."}) {
    const std::vector<std::string> names =
        *file_system_->List(absl::StrCat(data_dir, "/", directory));
    for (const std::string& name : names) {
      const std::string path = absl::StrCat(directory, "/", name);
      if (name != "LOCK" && name != "index" && name != "segments")
        files[path] = Slurp(absl::StrCat(data_dir, "/", path));
    }
  }
  ASSERT_GE(files.size(), 7u);
  size_t flips = 0, refused = 0, named = 0;
  for (const auto& [path, bytes] : files) {
    if (bytes.empty()) continue;
    // Headers, and places spread over the rest.
    std::set<size_t> places = {0, 4, 30, 47, 51, 60, bytes.size() - 1};
    for (size_t i = 1; i < 7; ++i) places.insert(bytes.size() * i / 7);
    for (const size_t place : places) {
      if (place >= bytes.size()) continue;
      SCOPED_TRACE(absl::StrCat(path, " at ", place));
      ASSERT_TRUE(file_system_->DeleteTree(data_dir).ok());
      for (const std::string directory : {"index", "segments"})
        ASSERT_TRUE(
            file_system_->CreateDirectories(data_dir + "/" + directory).ok());
      for (const auto& [other, content] : files)
        Spit(absl::StrCat(data_dir, "/", other), content);
      Flip(absl::StrCat(data_dir, "/", path), place,
           static_cast<int>(place % 8));
      ++flips;
      auto store = Open();
      if (!store.ok()) {
        EXPECT_NE(store.status().message(), "");
        EXPECT_EQ(path.find("segments"), std::string::npos)
            << "an archive opens whatever is in a segment: " << store.status();
        ++refused;
        // And there is a way out of it.
        const auto report = Rebuild();
        ASSERT_TRUE(report.ok()) << report.status();
        store = Open();
        ASSERT_TRUE(store.ok()) << store.status();
        continue;
      }
      v1::VerifyRequest request;
      request.set_read_data(true);
      const auto report = (*store)->Verify(request, {});
      const bool told = !report.ok() || report->fault_count() > 0 ||
                        (*store)->recovery().lost_syncs > 0;
      named += told ? 1 : 0;
      const size_t served = Served(store->get(), "run");
      if (absl::StartsWith(path, "segments")) {
        EXPECT_TRUE(told);
        EXPECT_GE(served, data_.size() - 1) << "its neighbours are not touched";
      } else if (served < data_.size()) {
        EXPECT_TRUE(told) << served << " of " << data_.size() << " are served";
      }
      uint64_t records = 0;
      const auto steps = (*store)->ListSteps("run");
      if (steps.ok()) {
        for (const v1::StepInfo& step : *steps) records += step.records();
      }
      if (records < 24) EXPECT_TRUE(told) << records << " records are here";
    }
  }
  EXPECT_GT(flips, 60u);
  EXPECT_GT(named, 30u);
  RecordProperty("refused", static_cast<int>(refused));
}

}  // namespace
}  // namespace rankprobe
