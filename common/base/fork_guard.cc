// SPDX-License-Identifier: Apache-2.0
#include "common/base/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace rankprobe {
namespace {

std::atomic<uint64_t> g_forks{0};

}  // namespace

uint64_t ForkGuard::Generation() {
  static const int registered = ::pthread_atfork(
      nullptr, nullptr,
      +[] { g_forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return g_forks.load(std::memory_order_relaxed);
}

}  // namespace rankprobe
