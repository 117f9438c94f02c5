// SPDX-License-Identifier: Apache-2.0
// Merges of small sets: exports have the same bytes before, during and after,
// wherever the merge is interrupted and whichever process runs in between.
#include "collector/sealed/store_merger.h"

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "collector/archive/directory_sink.h"
#include "collector/archive/export.h"
#include "collector/sealed/records_object.h"
#include "collector/sealed/store_cleaner.h"
#include "collector/sealed/store_deletion.h"
#include "collector/sealed/testing/whole_steps.h"
#include "collector/testing/dump_importer.h"
#include "common/testing/source_tree.h"

namespace rankprobe {
namespace {

using testing::AddStep;
using testing::AddWholeStep;
using testing::FaultObjectStore;
using testing::Frames;
using testing::MakeIdentity;
using testing::RandomBytes;
using testing::SealerTest;

class Merging : public SealerTest {
 protected:
  absl::Status Merge(ObjectStore* objects, MergeReport* report = nullptr) {
    MergeOptions options;
    // Concurrent merges do not share it.
    options.directory = absl::StrCat(root_, "/merging", ++merges_);
    options.sets = 2;
    RunLogs logs(objects);
    StoreMerger merger(options, objects, file_system_.get(), &clock_, &logs);
    MergeReport own;
    return merger.Merge([] { return false; },
                        report == nullptr ? &own : report);
  }
  absl::Status Clean(ObjectStore* objects) {
    CleanOptions options;
    options.grace = absl::Hours(1);
    StoreCleaner cleaner(options, objects, &clock_);
    for (int pass = 0; pass < 2; ++pass) {
      CleanReport report;
      const absl::Status status = cleaner.Clean([] { return false; }, &report);
      if (!status.ok()) return status;
      clock_.Advance(absl::Hours(2));
    }
    CleanReport report;
    return cleaner.Clean([] { return false; }, &report);
  }
  // Seals steps with payloads, one with an addendum, each in its own set, of
  // two collectors.
  void Seal(Store* store, FaultObjectStore* objects,
            const std::string& directory) {
    Frames frames(MakeIdentity("run", 0, 7));
    AddStep(&frames, 0, {0, 1, 3}, 4);
    const size_t first = frames.size();
    AddStep(&frames, 0, {2}, 0);
    for (int64_t step = 1; step < 5; ++step)
      AddWholeStep(&frames, step, RandomBytes(step / 2, 3000));
    Frames second(MakeIdentity("run", 1, 8));
    for (int64_t step = 1; step < 4; ++step)
      AddWholeStep(&second, step, RandomBytes(step, 3000));
    ASSERT_TRUE(store->OpenIncarnation(frames.identity()).ok());
    ASSERT_TRUE(store->Commit(frames.Range(0, first)).ok());
    SealerOptions options;
    options.block_steps = 1;
    options.directory = directory;
    const auto sealer = OpenSealer(store, objects, options);
    for (int pass = 0; pass < 2; ++pass) {
      ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
      clock_.Advance(absl::Hours(1));
    }
    ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
    ASSERT_TRUE(store->Commit(frames.Range(first, frames.size())).ok());
    Commit(store, second);
    for (int pass = 0; pass < 3; ++pass) {
      ASSERT_EQ(SealAll(sealer.get()), absl::OkStatus());
      clock_.Advance(absl::Hours(1));
    }
  }
  int merges_ = 0;
  static size_t Count(const FaultObjectStore& objects,
                      const std::string& what) {
    size_t count = 0;
    for (const auto& [key, bytes] : objects.objects())
      count += absl::StrContains(key, what) ? 1 : 0;
    return count;
  }
};

TEST_F(Merging, ExportsAreTheSameBytesBeforeMeanwhileAndAfter) {
  const std::unique_ptr<Store> store = OpenStore();
  v1::Identity identity = MakeIdentity("run", -1, 77);
  identity.set_pid(27141);
  Frames frames(identity);
  for (int64_t step = 0; step < 4; ++step) {
    testing::ImportDump(
        absl::StrCat(testing::GoldenDir(),
                     "/dumps/cnn_tensor_md5_mix/step0/proc27141"),
        step, "./dump", &frames);
  }
  Commit(store.get(), frames);
  FaultObjectStore objects;
  SealerOptions options;
  options.block_steps = 1;
  ASSERT_EQ(SealAll(OpenSealer(store.get(), &objects, options).get()),
            absl::OkStatus());
  int exports = 0;
  std::optional<std::string> first;
  const auto export_as_before = [&](ArchiveReader* reader) {
    ExportOptions wanted;
    wanted.run = "run";
    const std::string to = absl::StrCat(root_, "/export", ++exports);
    const auto done =
        ExportRunToDirectory(reader, wanted, file_system_.get(), to);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_GT(testing::TreeOf(to).size(), 20u);
    if (first.has_value()) testing::ExpectSameTree(*first, to);
    first = to;
  };
  export_as_before(store.get());
  SealedReader old(&objects);
  export_as_before(&old);
  MergeReport report;
  ASSERT_EQ(Merge(&objects, &report), absl::OkStatus());
  EXPECT_EQ(report.merged, 4u);
  EXPECT_EQ(report.made, 1u);
  SealedReader fresh(&objects);
  export_as_before(&old);
  export_as_before(&fresh);
  ASSERT_EQ(Clean(&objects), absl::OkStatus());
  EXPECT_EQ(Count(objects, "/records/"), 1u);
  EXPECT_EQ(Count(objects, "/packs/"), 1u);
  SealedReader last(&objects);
  export_as_before(&old);
  export_as_before(&fresh);
  export_as_before(&last);
  // Nothing is merged twice.
  ASSERT_EQ(Merge(&objects, &report), absl::OkStatus());
  EXPECT_EQ(report.made, 1u);
}

// It ends at each call, done or not; afterwards everything is available, also
// after a cleanup and another merge.
TEST_F(Merging, AtEachCallToTheStore) {
  const std::unique_ptr<Store> store = OpenStore();
  FaultObjectStore objects;
  Seal(store.get(), &objects, root_ + "/sealing");
  SealedReader before(&objects);
  const Seen all = See(&before, "run");
  ASSERT_EQ(all.size(), 8u);
  const auto at_first = objects.objects();
  int deaths = 0;
  for (const auto fault :
       {FaultObjectStore::Fault::kBefore, FaultObjectStore::Fault::kAfter}) {
    for (uint64_t call = 1;; ++call) {
      ASSERT_LT(call, 300u);
      *objects.mutable_objects() = at_first;
      objects.FailFrom(call, fault);
      const absl::Status first = Merge(&objects);
      objects.FailFrom(0, fault);
      SealedReader reader(&objects);
      EXPECT_EQ(See(&reader, "run"), all) << call;
      ASSERT_EQ(Clean(&objects), absl::OkStatus());
      ASSERT_EQ(Merge(&objects), absl::OkStatus());
      ASSERT_EQ(Clean(&objects), absl::OkStatus());
      EXPECT_EQ(See(&reader, "run"), all) << call;
      SealedReader fresh(&objects);
      EXPECT_EQ(See(&fresh, "run"), all) << call;
      EXPECT_EQ(Count(objects, "/records/"), 1u) << call;
      if (first.ok()) break;
      ++deaths;
    }
  }
  EXPECT_GT(deaths, 60);
}

// Another process deletes, cleans or merges at each of its calls.
TEST_F(Merging, WhoeverComesBetweenIsHeard) {
  const std::unique_ptr<Store> store = OpenStore();
  FaultObjectStore objects;
  Seal(store.get(), &objects, root_ + "/sealing");
  SealedReader before(&objects);
  Seen left = See(&before, "run");
  left[{2, 7}] = left[{2, 8}] = {left[{2, 7}][0], "deleted"};
  const auto complete = absl::StrCat("records ", 3, " complete ", false);
  left[{2, 7}][0] = left[{2, 8}][0] = complete;
  const auto at_first = objects.objects();
  for (uint64_t call = 1;; ++call) {
    ASSERT_LT(call, 300u);
    *objects.mutable_objects() = at_first;
    bool reached = false;
    objects.before_call = [&, at = objects.calls() + call](uint64_t number) {
      if (number != at) return;
      reached = true;
      ASSERT_TRUE(DeleteFromStore(&objects, "run", std::set<int64_t>{2},
                                  clock_.Now(), "delete")
                      .ok());
      if (call % 2 == 0) ASSERT_EQ(Clean(&objects), absl::OkStatus());
      if (call % 3 == 0) ASSERT_EQ(Merge(&objects), absl::OkStatus());
    };
    const absl::Status merged = Merge(&objects);
    objects.before_call = nullptr;
    // What it read may have been removed: then nothing was merged.
    EXPECT_TRUE(merged.ok() || absl::IsNotFound(merged)) << merged;
    if (!reached) break;
    SealedReader reader(&objects);
    EXPECT_EQ(See(&reader, "run"), left) << call;
    ASSERT_EQ(Clean(&objects), absl::OkStatus());
    ASSERT_EQ(Merge(&objects), absl::OkStatus());
    ASSERT_EQ(Clean(&objects), absl::OkStatus());
    SealedReader fresh(&objects);
    EXPECT_EQ(See(&fresh, "run"), left) << call;
    EXPECT_EQ(See(&reader, "run"), left) << call;
    EXPECT_EQ(Count(objects, "/records/"), 1u) << call;
  }
}

// Deleted steps are left out of the merged objects, and listed.
TEST_F(Merging, WhatIsDeletedIsLeftOut) {
  const std::unique_ptr<Store> store = OpenStore();
  FaultObjectStore objects;
  Seal(store.get(), &objects, root_ + "/sealing");
  ASSERT_TRUE(DeleteFromStore(&objects, "run", std::set<int64_t>{1, 2},
                              clock_.Now(), "delete")
                  .ok());
  SealedReader reader(&objects);
  const Seen left = See(&reader, "run");
  ASSERT_EQ(Merge(&objects), absl::OkStatus());
  const auto log = sealed::ReadRunLog(&objects, "run");
  ASSERT_TRUE(log.ok());
  ASSERT_EQ(log->sets.size(), 1u);
  const auto index = ReadRecordsIndex(
      &objects,
      sealed::RecordsKey(sealed::RunKey("run"), log->sets[0].records().name()),
      log->sets[0].records().bytes());
  ASSERT_TRUE(index.ok());
  for (const v1::SealedMember& member : index->members())
    EXPECT_TRUE(member.step() != 1 && member.step() != 2);
  SealedReader fresh(&objects);
  EXPECT_EQ(See(&fresh, "run"), left);
  EXPECT_EQ(See(&reader, "run"), left);
}

}  // namespace
}  // namespace rankprobe
