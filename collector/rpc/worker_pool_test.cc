// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/worker_pool.h"

#include <atomic>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(WorkerPoolTest, WhatWaitsIsBoundedByNumberAndByBytes) {
  absl::Notification started, go_on;
  std::atomic<int> ran{0};
  {
    WorkerPool pool(/*threads=*/1, /*max_queued=*/3, /*max_queued_bytes=*/100);
    ASSERT_TRUE(pool.Run([&] {
      started.Notify();
      go_on.WaitForNotification();
    }));
    started.WaitForNotification();
    const auto count = [&ran] { ++ran; };
    EXPECT_TRUE(pool.Run(count, 60));
    EXPECT_FALSE(pool.Run(count, 41));
    EXPECT_FALSE(pool.Run(count, SIZE_MAX));
    EXPECT_TRUE(pool.Run(count, 40));
    EXPECT_TRUE(pool.Run(count));
    EXPECT_FALSE(pool.Run(count));
    go_on.Notify();
  }
  EXPECT_EQ(ran, 3);
}

TEST(WorkerPoolTest, WhatWasRunMakesRoom) {
  WorkerPool pool(/*threads=*/1, /*max_queued=*/10, /*max_queued_bytes=*/100);
  for (int i = 0; i < 20; ++i) {
    absl::Notification done;
    ASSERT_TRUE(pool.Run([&done] { done.Notify(); }, 90));
    done.WaitForNotification();
  }
}

}  // namespace
}  // namespace rankprobe
