#include "common/base/monotonic_time.h"

#include <thread>

#include "gtest/gtest.h"

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
  // What holds already is not waited for, and no time is negative.
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

TEST(MonotonicTimeTest, NoTimeoutOverflows) {
  EXPECT_GT(Until(MonotonicAfter(absl::InfiniteDuration())), absl::Hours(8000));
  EXPECT_LE(Until(MonotonicAfter(-absl::Hours(1))), absl::ZeroDuration());
}

}  // namespace
}  // namespace rankprobe
