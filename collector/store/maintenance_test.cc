// SPDX-License-Identifier: Apache-2.0
// Deletion, compaction, verify, backup and version over real files.
#include "collector/store/maintenance.h"

#include <atomic>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "collector/store/keys.h"
#include "collector/store/recovery.h"
#include "collector/store/store.h"
#include "collector/testing/frames.h"
#include "common/testing/fault_file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::DigestOf;
using testing::Frames;
using ::testing::HasSubstr;
using testing::MakeIdentity;
using testing::RandomBytes;

class MaintenanceTest : public testing::TempDirTest {
 protected:
  std::unique_ptr<Store> Open(uint64_t segment_bytes = 256 << 10) {
    return OpenStore(Options(segment_bytes));
  }

  // Adds a step with one call that refers to each of the payloads.
  static void AddStep(Frames* frames, int64_t step,
                      const std::vector<std::string>& payloads) {
    for (const std::string& data : payloads) frames->AddPayload(data, 100000);
    v1::RecordBatch* const batch = frames->AddBatch(step);
    batch->add_records()->mutable_step_begin();
    v1::Record* const record = batch->add_records();
    record->set_order(1);
    record->mutable_call()->set_entry("Torch.add.0.forward");
    for (const std::string& data : payloads) testing::AddOutput(data, record);
    v1::Record* const end = batch->add_records();
    end->set_order(2);
    end->mutable_step_end()->set_call_phases(1);
    end->mutable_step_end()->set_payloads(payloads.size());
  }

  static bool Has(Store* store, const std::string& run,
                  const std::string& data) {
    const auto out = testing::ReadBack(store, data, run);
    return out.ok() && *out == data;
  }

  static v1::VerifyReport Verify(Store* store) {
    v1::VerifyRequest request;
    request.set_read_data(true);
    const auto report = store->Verify(request, {});
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : v1::VerifyReport();
  }
  void ExpectSound(Store* store) {
    const v1::VerifyReport report = Verify(store);
    EXPECT_EQ(report.fault_count(), 0u) << report.DebugString();
    EXPECT_EQ(report.missing_payloads(), 0u);
    EXPECT_TRUE(report.finished());
  }
  uint64_t SegmentBytes() {
    const std::string directory = root_ + "/data/segments/";
    const std::vector<std::string> names = *file_system_->List(directory);
    uint64_t bytes = 0;
    for (const std::string& name : names)
      bytes += *file_system_->FileSize(directory + name);
    return bytes;
  }
  void Quiet() { clock_.Advance(absl::Hours(1)); }
};

TEST_F(MaintenanceTest, ARunIsCountedByRanksAndStepsThatAreThere) {
  std::unique_ptr<Store> store = Open();
  // Rank 0 was started twice, and the second incarnation recorded step 2 again.
  for (const auto& [rank, incarnation, step] :
       {std::tuple(0, 1, 1), std::tuple(0, 1, 2), std::tuple(0, 2, 2),
        std::tuple(3, 3, 9)}) {
    Frames frames(MakeIdentity("run", rank, incarnation));
    AddStep(&frames, step, {});
    ASSERT_TRUE(store->Commit(frames.All()).ok());
  }
  v1::RunInfo run = (*store->ListRuns())[0];
  EXPECT_EQ(run.ranks(), 2u);
  EXPECT_EQ(run.steps(), 3u);
  const uint64_t records = run.records();
  Quiet();
  ASSERT_TRUE(store->Delete({"run", std::set<int64_t>{9}, {}}).ok());
  run = (*store->ListRuns())[0];
  EXPECT_EQ(run.ranks(), 1u);
  EXPECT_EQ(run.steps(), 2u);
  EXPECT_EQ(run.records(), records / 4 * 3);
}

TEST_F(MaintenanceTest, DeletingStepsFreesOnlyWhatNobodyElseRefersTo) {
  const std::string shared = RandomBytes(1, 300000),
                    only_first = RandomBytes(2, 300000),
                    other = RandomBytes(3, 300000);
  Frames frames(MakeIdentity("run", 0, 1));
  AddStep(&frames, 1, {shared, only_first});
  AddStep(&frames, 2, {shared, other});
  std::unique_ptr<Store> store = Open();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  Quiet();
  ExpectSound(store.get());
  const uint64_t before = SegmentBytes();
  const auto report = store->Delete({"run", std::set<int64_t>{1}, {}});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->steps(), 1u);
  EXPECT_EQ(report->records(), 3u);
  EXPECT_EQ((*store->ListRuns())[0].records(), 3u) << "what is left";
  EXPECT_EQ(report->payloads(), 1u);
  EXPECT_EQ(report->payload_bytes(), only_first.size());
  EXPECT_TRUE(Has(store.get(), "run", shared));
  EXPECT_TRUE(Has(store.get(), "run", other));
  EXPECT_FALSE(Has(store.get(), "run", only_first));
  EXPECT_LT(SegmentBytes(), before);
  ExpectSound(store.get());
  // The step keeps its counts; records that arrive late are not stored.
  const std::vector<v1::StepInfo> steps = *store->ListSteps("run");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_TRUE(steps[0].deleted());
  EXPECT_FALSE(steps[0].complete());
  EXPECT_EQ(steps[0].stored_records(), 3u);
  EXPECT_EQ(store->Delete({"run", std::set<int64_t>{1}, {}}).status().code(),
            absl::StatusCode::kNotFound);
  store.reset();
  store = Open();
  ExpectSound(store.get());
  EXPECT_TRUE(Has(store.get(), "run", shared));
}

TEST_F(MaintenanceTest, PayloadsAConnectedRankMayReferToStay) {
  const std::string old = RandomBytes(1, 200000), fresh = RandomBytes(2, 9000);
  Frames frames(MakeIdentity("run", 0, 1));
  AddStep(&frames, 1, {old});
  AddStep(&frames, 40, {fresh});
  AddStep(&frames, 50, {});
  std::unique_ptr<Store> store = Open();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  const auto report = store->Delete({"run", std::set<int64_t>{1, 40}, {1}});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->kept_payloads(), 1u);
  EXPECT_FALSE(Has(store.get(), "run", old));
  EXPECT_TRUE(Has(store.get(), "run", fresh))
      << "step 40 is fewer than 32 steps behind the rank";
  EXPECT_EQ(store->Delete({"run", {}, {1}}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(store->CollectGarbage({1}).ok());
  EXPECT_TRUE(Has(store.get(), "run", fresh));
  // The rank has ended.
  Quiet();
  ASSERT_TRUE(store->CollectGarbage({}).ok());
  EXPECT_FALSE(Has(store.get(), "run", fresh));
  ExpectSound(store.get());
}

// A disk that the archive has filled has free space again, before and after a
// restart.
TEST_F(MaintenanceTest, TheNewestSegmentGoesWithAllThatIsInIt) {
  for (const bool restarted : {false, true}) {
    const std::string data = RandomBytes(restarted ? 1 : 2, 500000);
    Frames frames(MakeIdentity("run", 0, restarted ? 2 : 1));
    AddStep(&frames, 1, {data});
    std::unique_ptr<Store> store = Open();
    ASSERT_TRUE(store->Commit(frames.All()).ok());
    if (restarted) {
      store.reset();
      store = Open();
    }
    Quiet();
    ASSERT_GT(SegmentBytes(), data.size());
    ASSERT_TRUE(store->Delete({"run", {}, {}}).ok());
    EXPECT_EQ(SegmentBytes(), 0u) << restarted;
    ExpectSound(store.get());
    // Numbers continue, also after the archive was opened again.
    Frames next(MakeIdentity("next", 0, restarted ? 4 : 3));
    AddStep(&next, 1, {data});
    ASSERT_TRUE(store->Commit(next.All()).ok());
    store.reset();
    store = Open();
    EXPECT_TRUE(Has(store.get(), "next", data));
    ExpectSound(store.get());
    Quiet();
    ASSERT_TRUE(store->Delete({"next", {}, {}}).ok());
    EXPECT_EQ(SegmentBytes(), 0u) << restarted;
  }
}

TEST_F(MaintenanceTest, AWholeRunGoesAndItsNameCanBeUsedAgain) {
  const std::string data = RandomBytes(1, 500000);
  Frames frames(MakeIdentity("run", 0, 1)), kept(MakeIdentity("kept", 0, 2));
  AddStep(&frames, 1, {data});
  AddStep(&kept, 1, {data});
  std::unique_ptr<Store> store = Open();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  ASSERT_TRUE(store->Commit(kept.All()).ok());
  Quiet();
  const auto report = store->Delete({"run", {}, {}});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->records(), 3u);
  EXPECT_EQ(store->ListSteps("run").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(store->ListRuns()->size(), 1u);
  EXPECT_TRUE(Has(store.get(), "kept", data));
  ExpectSound(store.get());
  store.reset();
  store = Open();
  Frames again(MakeIdentity("run", 0, 3));
  AddStep(&again, 7, {data});
  ASSERT_TRUE(store->Commit(again.All()).ok());
  ASSERT_EQ(store->ListSteps("run")->size(), 1u);
  EXPECT_TRUE(Has(store.get(), "run", data));
  ExpectSound(store.get());
}

// A full disk: no table finds room.
TEST_F(MaintenanceTest, ARunIsDeletedWhereTablesFindNoRoom) {
  // LevelDB writes tables on a thread of its own, until the store is closed.
  std::atomic<bool> full = false;
  testing::FaultFileSystem fs;
  auto store = Store::Open(testing::OptionsAt("/d", 256 << 10), &fs, &clock_);
  ASSERT_TRUE(store.ok()) << store.status();
  uint64_t incarnation = 0;
  for (const std::string run : {"first", "second", "kept"}) {
    Frames frames(MakeIdentity(run, 0, ++incarnation));
    AddStep(&frames, 1, {RandomBytes(incarnation, 500000)});
    ASSERT_TRUE((*store)->Commit(frames.All()).ok());
  }
  Quiet();
  fs.FailWhile([&full](const std::string&, const std::string& path) {
    return full && absl::EndsWith(path, ".ldb") ? testing::FaultKind::kNoSpace
                                                : testing::FaultKind::kNone;
  });
  full = true;
  const auto first = (*store)->Delete({"first", {}, {}});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_GT(first->file_bytes(), 0u);
  full = false;
  // LevelDB returns the error to the next write, and the one after that opens
  // the index again.
  EXPECT_TRUE(
      absl::IsResourceExhausted((*store)->Delete({"second", {}, {}}).status()));
  const auto second = (*store)->Delete({"second", {}, {}});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->records(), 3u);
  EXPECT_EQ((*store)->ListRuns()->size(), 1u);
  EXPECT_TRUE(Has(store->get(), "kept", RandomBytes(3, 500000)));
  ExpectSound(store->get());
}

// A run whose deletion failed still exists, and can be deleted.
TEST_F(MaintenanceTest, ARunThatIsNotDeletedIsNotForgotten) {
  testing::FaultFileSystem fs;
  auto store = Store::Open(testing::OptionsAt("/d"), &fs, &clock_);
  ASSERT_TRUE(store.ok()) << store.status();
  const std::string data = RandomBytes(1, 5000);
  Frames frames(MakeIdentity("run", 0, 1));
  AddStep(&frames, 1, {data});
  ASSERT_TRUE((*store)->Commit(frames.All()).ok());
  Quiet();
  fs.SetCapacity(fs.used_bytes());
  EXPECT_TRUE(
      absl::IsResourceExhausted((*store)->Delete({"run", {}, {}}).status()));
  EXPECT_TRUE(Has(store->get(), "run", data));
  fs.SetCapacity(UINT64_MAX);
  const auto report = (*store)->Delete({"run", {}, {}});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->records(), 3u);
  EXPECT_TRUE((*store)->ListRuns()->empty());
}

// Readers and writers continue while segments are rewritten.
TEST_F(MaintenanceTest, CompactionWhileIngestAndReadingGoOn) {
  std::unique_ptr<Store> store = Open(/*segment_bytes=*/1 << 20);
  const std::string kept = RandomBytes(99, 150000);
  Frames base(MakeIdentity("base", 0, 1));
  AddStep(&base, 0, {kept});
  ASSERT_TRUE(store->Commit(base.All()).ok());
  std::atomic<bool> stop{false};
  std::atomic<int> reads{0};
  std::thread reader([&] {
    while (!stop) {
      EXPECT_TRUE(Has(store.get(), "base", kept));
      ++reads;
    }
  });
  Frames frames(MakeIdentity("busy", 0, 2));
  size_t committed = 0;
  for (int64_t step = 0; step < 30; ++step) {
    AddStep(&frames, step,
            {RandomBytes(1000 + static_cast<uint64_t>(step), 150000)});
    ASSERT_TRUE(store->Commit(frames.Range(committed, frames.size())).ok());
    committed = frames.size();
    Quiet();
    if (step >= 5 && step % 5 == 0) {
      std::set<int64_t> steps;
      for (int64_t s = step - 5; s < step - 1; ++s) steps.insert(s);
      ASSERT_TRUE(store->Delete({"busy", steps, {}}).ok());
    }
  }
  // A busy machine may not have started it yet.
  while (reads == 0) std::this_thread::yield();
  stop = true;
  reader.join();
  ASSERT_TRUE(store->CollectGarbage({}).ok());
  ExpectSound(store.get());
  EXPECT_LT(SegmentBytes(), uint64_t{30} * 150000 / 2);
  store.reset();
  store = Open(1 << 20);
  ExpectSound(store.get());
  EXPECT_TRUE(Has(store.get(), "base", kept));
}

TEST_F(MaintenanceTest, VerifyNamesWhatIsDamaged) {
  const std::string data = RandomBytes(1, 300000);
  Frames frames(MakeIdentity("run", 0, 1));
  AddStep(&frames, 1, {data});
  std::unique_ptr<Store> store = Open();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  ASSERT_TRUE(store->Sync().ok());
  {
    std::fstream file(root_ + "/data/segments/0000000001.seg",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(150000);
    file.put('!');
  }
  v1::VerifyRequest request;
  EXPECT_EQ(store->Verify(request, {})->fault_count(), 0u)
      << "without --read-data only the index is looked at";
  const v1::VerifyReport report = Verify(store.get());
  EXPECT_EQ(report.fault_count(), 1u);
  ASSERT_EQ(report.faults_size(), 1);
  EXPECT_THAT(report.faults(0), HasSubstr("run run"));
  EXPECT_THAT(report.faults(0), HasSubstr("checksum"));
}

TEST_F(MaintenanceTest, ABackupIsAnArchiveOfItsOwn) {
  const std::string first = RandomBytes(1, 300000),
                    second = RandomBytes(2, 300000);
  Frames frames(MakeIdentity("run", 0, 1));
  AddStep(&frames, 1, {first});
  std::unique_ptr<Store> store = Open(/*segment_bytes=*/100000);
  for (size_t i = 0; i < frames.size(); ++i)
    ASSERT_TRUE(store->Commit(frames.Range(i, i + 1)).ok());
  const auto report =
      store->Backup(file_system_.get(), root_ + "/backup", /*copy=*/false);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->linked(), 0u);
  EXPECT_EQ(store->Backup(file_system_.get(), root_ + "/backup", false)
                .status()
                .code(),
            absl::StatusCode::kAlreadyExists);
  // Later changes of the original do not appear in the copy.
  const size_t committed = frames.size();
  AddStep(&frames, 2, {second});
  ASSERT_TRUE(store->Commit(frames.Range(committed, frames.size())).ok());
  Quiet();
  ASSERT_TRUE(store->Delete({"run", std::set<int64_t>{1}, {}}).ok());
  store.reset();
  ASSERT_TRUE(file_system_->DeleteTree(root_ + "/data").ok());
  ASSERT_TRUE(file_system_->Rename(root_ + "/backup", root_ + "/data").ok());
  store = Open();
  EXPECT_TRUE(Has(store.get(), "run", first));
  EXPECT_FALSE(Has(store.get(), "run", second));
  EXPECT_EQ(store->ListSteps("run")->size(), 1u);
  ExpectSound(store.get());
}

class SchemaTest : public MaintenanceTest {
 protected:
  std::unique_ptr<Index> OpenIndex() {
    IndexOptions options{.directory = root_ + "/data/index",
                         .write_buffer_bytes = 1 << 20,
                         .cache_bytes = 1 << 20,
                         .file_system = file_system_.get()};
    return *OpenLevelDbIndex(options);
  }
  std::map<std::string, std::string> Rows() {
    std::map<std::string, std::string> rows;
    const absl::Status read = OpenIndex()->Scan(
        "", [&](absl::string_view key, absl::string_view value) {
          rows.emplace(key, value);
          return absl::OkStatus();
        });
    EXPECT_TRUE(read.ok()) << read;
    return rows;
  }
};

TEST_F(SchemaTest, AnotherVersionIsRefusedAndLeftAlone) {
  { std::unique_ptr<Store> store = Open(); }
  EXPECT_EQ(**OpenIndex()->Get(keys::kSchema), kFormatVersion);
  for (const std::string version : {"9", "11", ""}) {
    {
      const std::unique_ptr<Index> index = OpenIndex();
      std::unique_ptr<IndexBatch> batch = index->NewBatch();
      batch->Put(keys::kSchema, version);
      ASSERT_TRUE(index->Write(std::move(batch), true).ok());
    }
    const auto before = Rows();
    const auto store = Store::Open(Options(), file_system_.get(), &clock_);
    EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(store.status().message()),
                HasSubstr(absl::StrCat("format version ", version)));
    EXPECT_EQ(Rows(), before);
  }
}

TEST_F(MaintenanceTest, FramesLostWithTheMachineAreCountedOnce) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (int64_t step = 0; step < 6; ++step) AddStep(&frames, step, {});
  std::unique_ptr<Store> store = Open();
  ASSERT_TRUE(store->Commit(frames.Range(0, 2)).ok());
  // The agent only has frames from 5 on.
  ASSERT_TRUE(store->NoteLostFrames(frames.identity(), 4).ok());
  ASSERT_TRUE(store->NoteLostFrames(frames.identity(), 4).ok());
  ASSERT_TRUE(store->Commit(frames.Range(4, 6)).ok());
  // And again, later.
  ASSERT_TRUE(store->NoteLostFrames(frames.identity(), 9).ok());
  v1::IncarnationRow found;
  ASSERT_TRUE(
      store
          ->ForEachIncarnation(
              "run", [&](const v1::IncarnationRow& row) { found = row; })
          .ok());
  EXPECT_EQ(found.lost_frames(), 5u);
  ASSERT_EQ(found.absent_size(), 2);
  EXPECT_EQ(found.absent(0).first(), 3u);
  EXPECT_EQ(found.absent(0).last(), 4u);
  EXPECT_EQ(found.absent(1).first(), 7u);
  EXPECT_EQ(found.absent(1).last(), 9u);
  EXPECT_EQ(store->ListSteps("run")->size(), 4u);
}

}  // namespace
}  // namespace rankprobe
