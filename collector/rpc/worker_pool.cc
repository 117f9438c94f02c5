// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/worker_pool.h"

#include <utility>

namespace rankprobe {

WorkerPool::WorkerPool(size_t threads, size_t max_queued,
                       size_t max_queued_bytes)
    : max_queued_(max_queued), max_queued_bytes_(max_queued_bytes) {
  for (size_t i = 0; i < threads; ++i)
    threads_.emplace_back([this] { Work(); });
}

WorkerPool::~WorkerPool() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  work_came_.NotifyAll();
  for (ServiceThread& thread : threads_) thread.join();
}

bool WorkerPool::Run(std::function<void()> task, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (stopping_ || tasks_.size() >= max_queued_ ||
      bytes > max_queued_bytes_ - queued_bytes_)
    return false;
  queued_bytes_ += bytes;
  tasks_.push_back({std::move(task), bytes});
  work_came_.NotifyAll();
  return true;
}

void WorkerPool::Work() {
  for (;;) {
    Task task;
    {
      absl::MutexLock lock(&mutex_);
      work_came_.Wait(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return HasWork();
      });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      queued_bytes_ -= task.bytes;
    }
    task.run();
  }
}

}  // namespace rankprobe
