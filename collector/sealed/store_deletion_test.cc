// SPDX-License-Identifier: Apache-2.0
// Tombstones: what old and new readers see of deleted data, and how a collector
// of the run handles it.
#include "collector/sealed/store_deletion.h"

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "collector/sealed/maintenance_log.h"
#include "collector/sealed/testing/whole_steps.h"

namespace rankprobe {
namespace {

using testing::AddStep;
using testing::AddWholeStep;
using testing::FaultObjectStore;
using testing::Frames;
using testing::MakeIdentity;
using testing::RandomBytes;
using testing::SealerTest;

class StoreDeletion : public SealerTest {
 protected:
  absl::StatusOr<v1::DeleteReport> Delete(
      const std::optional<std::set<int64_t>>& steps,
      const std::string& run = "run") {
    return DeleteFromStore(&objects_, run, steps, clock_.Now(), "delete");
  }
  // Returns steps and incarnations that are listed and not deleted.
  std::set<std::pair<int64_t, uint64_t>> There(ArchiveReader* reader) {
    std::set<std::pair<int64_t, uint64_t>> there;
    const auto steps = reader->ListSteps("run");
    EXPECT_TRUE(steps.ok() || absl::IsNotFound(steps.status()))
        << steps.status();
    if (!steps.ok()) return there;
    for (const v1::StepInfo& info : *steps)
      if (!info.deleted()) there.emplace(info.step(), info.incarnation());
    return there;
  }
  static absl::Status Read(ArchiveReader* reader, int64_t step,
                           uint64_t incarnation) {
    StepKey key{.run = "run", .step = step, .incarnation = incarnation};
    return reader->ForEachRecord(
        key, [](const v1::Record&) { return absl::OkStatus(); });
  }

  FaultObjectStore objects_;
};

TEST_F(StoreDeletion, StepsAreListedAsDeletedAndNotRead) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 1; step <= 4; ++step)
    AddWholeStep(&frames, step, RandomBytes(step, 4000));
  Commit(store.get(), frames);
  ASSERT_EQ(SealAll(OpenSealer(store.get(), &objects_).get()),
            absl::OkStatus());
  SealedReader before(&objects_);
  const auto whole = See(&before, "run");
  const auto report = Delete(std::set<int64_t>{2, 3, 9});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->steps(), 2u);
  EXPECT_EQ(report->records(), 6u);
  EXPECT_TRUE(report->later());
  SealedReader after(&objects_);
  for (SealedReader* const reader : {&before, &after}) {
    EXPECT_EQ(There(reader),
              (std::set<std::pair<int64_t, uint64_t>>{{1, 7}, {4, 7}}));
    const auto steps = reader->ListSteps("run");
    ASSERT_EQ(steps->size(), 4u);
    EXPECT_TRUE((*steps)[1].deleted());
    EXPECT_FALSE((*steps)[1].complete());
    EXPECT_EQ((*steps)[1].records(), 3u);
    const absl::Status gone = Read(reader, 2, 7);
    EXPECT_TRUE(absl::IsFailedPrecondition(gone)) << gone;
    EXPECT_EQ(Read(reader, 1, 7), absl::OkStatus());
  }
  // Deleted again: no steps are left.
  const size_t objects = objects_.objects().size();
  EXPECT_EQ(Delete(std::set<int64_t>{2, 3})->steps(), 0u);
  EXPECT_EQ(objects_.objects().size(), objects);
}

TEST_F(StoreDeletion, ARunGoesAndTheNextTrainingOfItsNameStays) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  AddWholeStep(&frames, 1, RandomBytes(1, 4000));
  AddWholeStep(&frames, 2, RandomBytes(2, 4000));
  Commit(store.get(), frames);
  const auto sealer = OpenSealer(store.get(), &objects_);
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  SealedReader known(&objects_);
  ASSERT_EQ(There(&known).size(), 2u);
  ASSERT_EQ(Delete(std::nullopt)->steps(), 2u);
  SealedReader fresh(&objects_);
  for (SealedReader* const reader : {&known, &fresh}) {
    EXPECT_TRUE(absl::IsNotFound(reader->ListSteps("run").status()));
    EXPECT_TRUE(reader->ListRuns()->empty());
  }
  EXPECT_TRUE(absl::IsNotFound(Delete(std::nullopt).status()));
  EXPECT_TRUE(absl::IsNotFound(Delete(std::nullopt, "never").status()));
  Frames next(MakeIdentity("run", 0, 8));
  AddWholeStep(&next, 1, RandomBytes(1, 4000));
  Commit(store.get(), next);
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  for (SealedReader* const reader : {&known, &fresh}) {
    EXPECT_EQ(There(reader), (std::set<std::pair<int64_t, uint64_t>>{{1, 8}}));
    EXPECT_EQ(reader->ListRuns()->size(), 1u);
  }
}

// A collector of the run that does not know of the deletion stores late data,
// data that it had not stored, and everything again if it has lost its notes.
TEST_F(StoreDeletion, NoCollectorBringsItBack) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  AddStep(&frames, 1, {0, 1, 3}, 4);
  const size_t first = frames.size();
  AddStep(&frames, 1, {2}, 0);
  AddWholeStep(&frames, 2, RandomBytes(2, 4000));
  AddWholeStep(&frames, 3, RandomBytes(3, 4000));
  ASSERT_TRUE(store->OpenIncarnation(frames.identity()).ok());
  ASSERT_TRUE(store->Commit(frames.Range(0, first)).ok());
  const auto sealer = OpenSealer(store.get(), &objects_);
  clock_.Advance(absl::Hours(1));
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  clock_.Advance(absl::Hours(1));
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  SealedReader reader(&objects_);
  ASSERT_EQ(There(&reader).size(), 1u);
  // 2 is recorded and not stored; the process is known.
  ASSERT_EQ(Delete(std::set<int64_t>{1, 2})->steps(), 1u);
  ASSERT_TRUE(store->Commit(frames.Range(first, frames.size())).ok());
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  clock_.Advance(absl::Hours(1));
  ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
  const std::set<std::pair<int64_t, uint64_t>> left = {{3, 7}};
  EXPECT_EQ(There(&reader), left);
  SealerOptions options;
  options.directory = root_ + "/another";
  const auto again = OpenSealer(store.get(), &objects_, options);
  clock_.Advance(absl::Hours(1));
  ASSERT_EQ(SealAll(again.get()), absl::OkStatus());
  clock_.Advance(absl::Hours(1));
  ASSERT_EQ(SealAll(again.get()), absl::OkStatus());
  SealedReader fresh(&objects_);
  EXPECT_EQ(There(&reader), left);
  EXPECT_EQ(There(&fresh), left);
  ASSERT_EQ(Delete(std::nullopt)->steps(), 1u);
  EXPECT_TRUE(There(&reader).empty());
  EXPECT_TRUE(There(&fresh).empty());
}

// Two concurrent deletions: neither is lost.
TEST_F(StoreDeletion, TwoAtOnceFollowEachOther) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  for (int64_t step = 1; step <= 3; ++step)
    AddWholeStep(&frames, step, RandomBytes(step, 4000));
  Commit(store.get(), frames);
  ASSERT_EQ(SealAll(OpenSealer(store.get(), &objects_).get()),
            absl::OkStatus());
  bool second = false;
  objects_.before_commit = [&](const std::string&) {
    if (std::exchange(second, true)) return;
    ASSERT_TRUE(Delete(std::set<int64_t>{2}).ok());
  };
  ASSERT_TRUE(Delete(std::set<int64_t>{1}).ok());
  SealedReader reader(&objects_);
  EXPECT_EQ(There(&reader), (std::set<std::pair<int64_t, uint64_t>>{{3, 7}}));
}

// A reader of a step whose objects are being removed gets an error: no gap, no
// shorter step.
TEST_F(StoreDeletion, AReaderOfAnObjectThatWentIsToldSo) {
  const std::unique_ptr<Store> store = OpenStore();
  Frames frames(MakeIdentity("run", 0, 7));
  const std::string data = RandomBytes(1, 3 << 20);
  AddWholeStep(&frames, 1, data);
  Commit(store.get(), frames);
  ASSERT_EQ(SealAll(OpenSealer(store.get(), &objects_).get()),
            absl::OkStatus());
  SealedReader reader(&objects_);
  ASSERT_EQ(There(&reader).size(), 1u);
  const auto read_payload = [&] {
    return reader.ReadPayload(
        "run", testing::DigestOf(data), data.size(),
        [](absl::string_view) { return absl::OkStatus(); });
  };
  const auto drop = [&](const std::string& what) {
    for (auto it = objects_.mutable_objects()->begin();
         it != objects_.mutable_objects()->end();) {
      it = absl::StrContains(it->first, what)
               ? objects_.mutable_objects()->erase(it)
               : std::next(it);
    }
  };
  // The objects were not deleted by a janitor, so this is damage.
  const auto all = objects_.objects();
  drop("/packs/");
  EXPECT_TRUE(absl::IsDataLoss(read_payload())) << read_payload();
  EXPECT_TRUE(reader.HasPayload("run", testing::DigestOf(data), data.size()));
  drop("/records/");
  EXPECT_TRUE(absl::IsDataLoss(Read(&reader, 1, 7)));
  *objects_.mutable_objects() = all;
  ASSERT_TRUE(Delete(std::nullopt).ok());
  v1::SealedLogEntry collection;
  for (const auto& [key, bytes] : all) {
    if (absl::StrContains(key, "/packs/")) {
      collection.mutable_collection()->add_packs(
          key.substr(key.rfind('/') + 1));
    }
  }
  ASSERT_TRUE(sealed::AppendEntry(&objects_, "run", sealed::kMaintenanceShard,
                                  collection)
                  .ok());
  drop("/packs/");
  drop("/records/");
  EXPECT_TRUE(absl::IsFailedPrecondition(read_payload())) << read_payload();
  EXPECT_FALSE(Read(&reader, 1, 7).ok());
}

}  // namespace
}  // namespace rankprobe
