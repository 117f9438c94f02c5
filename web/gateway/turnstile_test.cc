// SPDX-License-Identifier: Apache-2.0
#include "web/gateway/turnstile.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(TurnstileTest, NoMoreThanThatManyAtOnce) {
  constexpr int kMost = 2;
  Turnstile turnstile(kMost);
  std::atomic<int> inside = 0, most = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 200; ++turn) {
        const Turnstile::Turn mine(&turnstile);
        const int now = ++inside;
        for (int seen = most;
             now > seen && !most.compare_exchange_weak(seen, now);) {
        }
        std::this_thread::yield();
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, kMost);
  EXPECT_GE(most, 1);
}

TEST(TurnstileTest, ThatManyCanBeThere) {
  Turnstile turnstile(2);
  absl::Notification second;
  const Turnstile::Turn first(&turnstile);
  std::thread other([&] {
    const Turnstile::Turn mine(&turnstile);
    second.Notify();
  });
  second.WaitForNotification();
  other.join();
}

TEST(TurnstileTest, WithoutALimitAllComeThrough) {
  Turnstile turnstile(0);
  auto* const all = new absl::Barrier(4);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&turnstile, all] {
      const Turnstile::Turn mine(&turnstile);
      if (all->Block()) delete all;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace rankprobe
