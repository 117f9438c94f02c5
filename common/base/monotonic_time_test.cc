// SPDX-License-Identifier: Apache-2.0
#include "common/base/monotonic_time.h"

#include <pthread.h>

#include <cerrno>
#include <thread>

#include "common/base/monotonic_event.h"
#include "gtest/gtest.h"

// Replaces glibc's, which exists from 2.30 on. Before, the wheel's replacement
// (packaging/wheel/glibc_compat.c) can only wait on the wall clock.
extern "C" int pthread_cond_clockwait(pthread_cond_t* /*cond*/,
                                      pthread_mutex_t* /*mutex*/,
                                      clockid_t /*clock*/,
                                      const timespec* /*until*/) {
  ADD_FAILURE() << "a wait needs what old glibcs lack";
  return ETIMEDOUT;
}

namespace rankprobe {
namespace {

TEST(MonotonicTimeTest, AWaitIsAsLongAsItSays) {
  absl::Mutex mutex;
  MonotonicCondVar changed;
  const MonotonicTime began = MonotonicNow();
  absl::MutexLock lock(&mutex);
  EXPECT_FALSE(
      changed.WaitFor(&mutex, absl::Milliseconds(20), [] { return false; }));
  EXPECT_GE(Since(began), absl::Milliseconds(20));
  EXPECT_LE(Until(began), -absl::Milliseconds(20));
  // A condition that holds is not waited for, and a negative timeout is 0.
  EXPECT_TRUE(
      changed.WaitFor(&mutex, -absl::InfiniteDuration(), [] { return true; }));
  EXPECT_FALSE(
      changed.WaitFor(&mutex, -absl::InfiniteDuration(), [] { return false; }));
}

TEST(MonotonicTimeTest, AWaitEndsWhenItIsTold) {
  absl::Mutex mutex;
  MonotonicCondVar changed;
  bool set = false;
  std::thread other([&] {
    {
      absl::MutexLock lock(&mutex);
      set = true;
    }
    changed.NotifyAll();
  });
  {
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(
        changed.WaitFor(&mutex, absl::InfiniteDuration(), [&] { return set; }));
  }
  other.join();
}

TEST(MonotonicTimeTest, AnEventIsWaitedForAsLongAsItSays) {
  MonotonicEvent event;
  const MonotonicTime began = MonotonicNow();
  EXPECT_FALSE(event.WaitFor(absl::Milliseconds(20)));
  EXPECT_GE(Since(began), absl::Milliseconds(20));
  EXPECT_FALSE(event.WaitFor(-absl::InfiniteDuration()));
  std::thread other([&] { event.Set(); });
  EXPECT_TRUE(event.WaitFor(absl::InfiniteDuration()));
  other.join();
  EXPECT_TRUE(event.WaitFor(absl::ZeroDuration()));
}

TEST(MonotonicTimeTest, NoTimeoutOverflows) {
  EXPECT_GT(Until(MonotonicAfter(absl::InfiniteDuration())), absl::Hours(8000));
  EXPECT_LE(Until(MonotonicAfter(-absl::Hours(1))), absl::ZeroDuration());
}

}  // namespace
}  // namespace rankprobe
