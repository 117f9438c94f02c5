// SPDX-License-Identifier: Apache-2.0
// Cached entries of a run's logs are not read again, and equal those of a
// complete read.
#include "collector/sealed/run_logs.h"

#include <string>

#include "collector/sealed/store_cleaner.h"
#include "collector/sealed/store_deletion.h"
#include "collector/sealed/store_merger.h"
#include "collector/sealed/testing/whole_steps.h"

namespace rankprobe {
namespace {

using testing::AddWholeStep;
using testing::FaultObjectStore;
using testing::Frames;
using testing::MakeIdentity;
using testing::SealerTest;

class RunLogsTest : public SealerTest {
 protected:
  void Record(Store* store, const std::string& run, int64_t first,
              int64_t last) {
    Frames frames(MakeIdentity(run, 0, static_cast<uint64_t>(first) + 1));
    for (int64_t step = first; step <= last; ++step)
      AddWholeStep(&frames, step, testing::RandomBytes(step, 100));
    Commit(store, frames);
    SealerOptions blocks;
    blocks.block_steps = 2;
    ASSERT_EQ(SealAll(OpenSealer(store, &objects_, blocks).get()),
              absl::OkStatus());
  }
  static std::string Text(const absl::StatusOr<sealed::RunLog>& log) {
    if (!log.ok()) return log.status().ToString();
    std::string text;
    for (const auto& [shard, last] : log->logs)
      text += absl::StrCat(shard, " ", last, "\n");
    for (const v1::SealedLogEntry& set : log->sets) text += set.DebugString();
    for (const auto& collection : log->collections)
      text += collection.DebugString();
    return absl::StrCat(text, log->maintenance.last(), " ",
                        log->maintenance.last_tombstone());
  }
  // Expects the same result as a complete read; returns the calls to the store.
  uint64_t Look(RunLogs* logs, const std::string& run) {
    const uint64_t before = objects_.calls();
    const auto log = logs->Read(run);
    const uint64_t calls = objects_.calls() - before;
    EXPECT_EQ(Text(log), Text(sealed::ReadRunLog(&objects_, run)));
    return calls;
  }

  FaultObjectStore objects_;
};

TEST_F(RunLogsTest, AnEntryIsReadOnce) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get(), "run", 0, 39);
  RunLogs logs(&objects_);
  EXPECT_GE(Look(&logs, "run"), 20u);
  // Nothing new: only lists.
  EXPECT_LE(Look(&logs, "run"), 3u);
  // New, deleted and merged sets.
  Record(store.get(), "run", 40, 43);
  EXPECT_LE(Look(&logs, "run"), 6u);
  ASSERT_TRUE(
      DeleteFromStore(&objects_, "run", std::set<int64_t>{3}, clock_.Now(), "")
          .ok());
  EXPECT_LE(Look(&logs, "run"), 5u);
  MergeOptions merging;
  merging.directory = root_ + "/merging";
  RunLogs its_own(&objects_);
  StoreMerger merger(merging, &objects_, file_system_.get(), &clock_, &its_own);
  MergeReport merged;
  ASSERT_EQ(merger.Merge([] { return false; }, &merged), absl::OkStatus());
  ASSERT_GT(merged.made, 0u);
  EXPECT_LE(Look(&logs, "run"), 8u);
  EXPECT_LE(Look(&logs, "run"), 4u);
}

// The shared cache of a janitor.
TEST_F(RunLogsTest, WhatACleanerHasReadAMergerDoesNotReadAgain) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get(), "run", 0, 39);
  StoreCleaner cleaner(CleanOptions(), &objects_, &clock_);
  CleanReport cleaned;
  ASSERT_EQ(cleaner.Clean([] { return false; }, &cleaned), absl::OkStatus());
  MergeOptions nothing;
  nothing.directory = root_ + "/merging";
  nothing.sets = 1000;
  StoreMerger merger(nothing, &objects_, file_system_.get(), &clock_,
                     cleaner.logs());
  MergeReport merged;
  const uint64_t before = objects_.calls();
  ASSERT_EQ(merger.Merge([] { return false; }, &merged), absl::OkStatus());
  EXPECT_LE(objects_.calls() - before, 5u);
}

TEST_F(RunLogsTest, AFaultLosesNothingThatWasKnown) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get(), "run", 0, 9);
  RunLogs logs(&objects_);
  (void)Look(&logs, "run");
  Record(store.get(), "run", 10, 13);
  for (uint64_t call = 1; call <= 3; ++call) {
    objects_.FailOnce(call, absl::UnavailableError("away"));
    EXPECT_TRUE(absl::IsUnavailable(logs.Read("run").status())) << call;
  }
  EXPECT_LE(Look(&logs, "run"), 6u);
}

TEST_F(RunLogsTest, WhatIsAboveItsBoundIsReadAgain) {
  const std::unique_ptr<Store> store = OpenStore();
  Record(store.get(), "run", 0, 39);
  RunLogs none(&objects_, /*max_bytes=*/100);
  EXPECT_GE(Look(&none, "run"), 20u);
  EXPECT_GE(Look(&none, "run"), 20u);
}

TEST_F(RunLogsTest, NamesOfRunsAreReadOnce) {
  const std::unique_ptr<Store> store = OpenStore();
  for (const char* run : {"b", "a", "c"}) Record(store.get(), run, 0, 1);
  RunLogs logs(&objects_);
  const auto look = [&] {
    const uint64_t before = objects_.calls();
    EXPECT_EQ(*logs.Runs(), (std::vector<std::string>{"a", "b", "c"}));
    return objects_.calls() - before;
  };
  EXPECT_EQ(look(), 5u);
  EXPECT_EQ(look(), 2u);
}

}  // namespace
}  // namespace rankprobe
