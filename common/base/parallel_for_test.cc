// SPDX-License-Identifier: Apache-2.0
#include "common/base/parallel_for.h"

#include <atomic>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(ParallelForTest, EachIndexIsDoneOnceAndAWorkerDoesOneAtATime) {
  for (const size_t workers : {0u, 1u, 3u, 50u}) {
    std::vector<std::atomic<int>> done(20);
    std::vector<std::atomic<int>> busy(50);
    std::atomic<int> overlaps{0};
    EXPECT_EQ(ParallelFor(done.size(), workers,
                          [&](size_t index, size_t worker) {
                            if (busy[worker]++ != 0) ++overlaps;
                            ++done[index];
                            --busy[worker];
                            return absl::OkStatus();
                          }),
              absl::OkStatus());
    for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1);
    EXPECT_EQ(overlaps, 0);
  }
}

// All three wait for each other, so they are on three threads.
TEST(ParallelForTest, WorkersAreThreads) {
  absl::Barrier barrier(3);
  EXPECT_EQ(ParallelFor(3, 3,
                        [&](size_t, size_t) {
                          barrier.Block();
                          return absl::OkStatus();
                        }),
            absl::OkStatus());
}

TEST(ParallelForTest, AnErrorEndsItAndWhatCameBeforeIsDone) {
  std::vector<int> done;
  const absl::Status status = ParallelFor(100, 1, [&](size_t index, size_t) {
    done.push_back(static_cast<int>(index));
    return index == 3 ? absl::DataLossError("three") : absl::OkStatus();
  });
  EXPECT_EQ(status, absl::DataLossError("three"));
  EXPECT_EQ(done, (std::vector<int>{0, 1, 2, 3}));

  absl::Mutex mutex;
  std::vector<bool> seen(100, false);
  const absl::Status one = ParallelFor(100, 4, [&](size_t index, size_t) {
    absl::MutexLock lock(&mutex);
    seen[index] = true;
    return index == 5 ? absl::DataLossError("five") : absl::OkStatus();
  });
  EXPECT_EQ(one, absl::DataLossError("five"));
  for (size_t i = 0; i <= 5; ++i) EXPECT_TRUE(seen[i]) << i;
}

}  // namespace
}  // namespace rankprobe
