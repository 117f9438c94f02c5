// SPDX-License-Identifier: Apache-2.0
#include "collector/server/page_dumps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "collector/rpc/worker_pool.h"
#include "collector/testing/frames.h"
#include "common/testing/fault_file_system.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PageDumpsTest, ANameAndWhatItMayMean) {
  const auto plain = ParseRunPlace("run:a");
  ASSERT_TRUE(plain.ok());
  ASSERT_EQ(plain->size(), 1u);
  EXPECT_EQ((*plain)[0].run, "a");
  EXPECT_THAT((*plain)[0].steps, IsEmpty());
  const auto place = ParseRunPlace("run:a@b@3,7-9/rank0,2");
  ASSERT_TRUE(place.ok());
  ASSERT_EQ(place->size(), 2u);
  EXPECT_EQ((*place)[0].run, "a@b");
  EXPECT_THAT((*place)[0].steps, ElementsAre(3, 7, 8, 9));
  EXPECT_THAT((*place)[0].ranks, ElementsAre(0, 2));
  EXPECT_EQ((*place)[1].run, "a@b@3,7-9/rank0,2");
  // Text that is not a step belongs to the name.
  for (const char* const name :
       {"run:a@b", "run:a@", "run:@3", "run:a@3/rank", "run:a@3-1", "run:a@-3",
        "run:a@3/rank-1", "run:a@0-9223372036854775807", "run:a@0-2000",
        "run:a@0-1023,0-1023"}) {
    const auto whole = ParseRunPlace(name);
    ASSERT_TRUE(whole.ok()) << name;
    ASSERT_EQ(whole->size(), 1u) << name;
    EXPECT_EQ("run:" + (*whole)[0].run, name);
  }
  for (const char* const name : {"", "run:", "a", "/etc"})
    EXPECT_FALSE(ParseRunPlace(name).ok()) << name;
}

class FetchDumpTest : public testing::TempDirTest {};

TEST_F(FetchDumpTest, WhatIsWrittenAfterACancellationIsDeleted) {
  testing::Frames frames(testing::MakeIdentity("run", 0, 1));
  v1::Record* const record = frames.AddBatch(0)->add_records();
  record->mutable_step_begin()->set_task("statistics");
  record->mutable_step_begin()->set_level("L1");
  record->mutable_step_begin()->set_framework("pytorch");
  const std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  testing::FaultFileSystem disk;
  absl::Notification writes, goes_on;
  disk.SetDelay([&](const std::string& op) {
    if (op != "OpenForWrite" || goes_on.HasBeenNotified()) return;
    if (!writes.HasBeenNotified()) writes.Notify();
    goes_on.WaitForNotification();
  });
  JobDump dump;
  dump.name = "run:run";
  dump.directory = "/jobs/one";
  dump.path = "/jobs/one/tmp/run0/dump";
  {
    WorkerPool pool(1, 10);
    EXPECT_TRUE(absl::IsCancelled(
        FetchDump(store.get(), &disk, &pool, dump, 1 << 20, [&] {
          return writes.HasBeenNotified();
        }).status()));
    // The job's own deletion fails if a file is created while it runs.
    EXPECT_TRUE(disk.Exists("/jobs/one/tmp/run0"));
    goes_on.Notify();
  }
  EXPECT_FALSE(disk.Exists("/jobs/one/tmp/run0"));
}

}  // namespace
}  // namespace rankprobe
