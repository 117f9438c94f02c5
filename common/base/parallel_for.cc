// SPDX-License-Identifier: Apache-2.0
#include "common/base/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace rankprobe {

absl::Status ParallelFor(
    size_t count, size_t workers,
    absl::FunctionRef<absl::Status(size_t index, size_t worker)> work) {
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  absl::Mutex mutex;
  absl::Status first_error;
  const auto take = [&](size_t worker) {
    while (!failed) {
      // An index that was taken is processed, so all before a failed one are
      // done.
      const size_t i = next++;
      if (i >= count) return;
      const absl::Status status = work(i, worker);
      if (status.ok()) continue;
      failed = true;
      absl::MutexLock lock(&mutex);
      first_error.Update(status);
    }
  };
  std::vector<std::thread> helpers;
  helpers.reserve(workers);
  for (size_t worker = 1; worker < std::min(workers, count); ++worker) {
    try {
      helpers.emplace_back(take, worker);
    } catch (const std::system_error&) {
      break;  // no more threads: continue with those there are
    }
  }
  take(0);
  for (std::thread& helper : helpers) helper.join();
  return first_error;
}

}  // namespace rankprobe
