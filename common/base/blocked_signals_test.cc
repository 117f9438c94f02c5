// SPDX-License-Identifier: Apache-2.0
#include "common/base/blocked_signals.h"

#include <thread>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

sigset_t Blocked() {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return now;
}

TEST(BlockedSignalsTest, ThreadsTakeNoneAndTheirMakerAsBefore) {
  sigset_t of_thread, of_its_thread;
  const sigset_t before = Blocked();
  std::thread thread;
  {
    const BlockedSignals blocked;
    thread = std::thread([&] {
      of_thread = Blocked();
      std::thread([&] { of_its_thread = Blocked(); }).join();
    });
  }
  thread.join();
  for (const sigset_t* one : {&of_thread, &of_its_thread}) {
    EXPECT_EQ(sigismember(one, SIGUSR1), 1);
    EXPECT_EQ(sigismember(one, SIGTERM), 1);
    EXPECT_EQ(sigismember(one, SIGSEGV), 0);
  }
  const sigset_t after = Blocked();
  EXPECT_EQ(sigismember(&after, SIGUSR1), sigismember(&before, SIGUSR1));
}

}  // namespace
}  // namespace rankprobe
