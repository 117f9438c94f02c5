// SPDX-License-Identifier: Apache-2.0
#include "collector/control/disk_queue.h"

#include <algorithm>
#include <utility>

namespace rankprobe {

DiskQueue::DiskQueue(bool own_thread, const Bounds& bounds) : bounds_(bounds) {
  if (own_thread) thread_ = ServiceThread([this] { Work(); });
}

DiskQueue::~DiskQueue() {
  if (thread_.joinable()) {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    changed_.NotifyAll();
    thread_.join();
  } else {
    RunQueued();
  }
}

void DiskQueue::Add(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back({std::move(task), 0});
  changed_.NotifyAll();
}

bool DiskQueue::TryAdd(std::function<void()> task, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (tasks_.size() >= bounds_.tasks ||
      bytes > bounds_.bytes - std::min(bytes_, bounds_.bytes))
    return false;
  bytes_ += bytes;
  tasks_.push_back({std::move(task), bytes});
  changed_.NotifyAll();
  return true;
}

void DiskQueue::RunAll() {
  running_ = true;
  while (!tasks_.empty()) {
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    mutex_.Unlock();
    task.run();
    // Destroyed without the lock, because objects in the task may take locks in
    // their destructors.
    task.run = nullptr;
    mutex_.Lock();
    bytes_ -= task.bytes;
  }
  running_ = false;
  changed_.NotifyAll();
}

void DiskQueue::RunQueued() {
  if (thread_.joinable()) return;
  absl::MutexLock lock(&mutex_);
  if (!running_) RunAll();
}

void DiskQueue::Wait() {
  RunQueued();
  absl::MutexLock lock(&mutex_);
  changed_.Wait(&mutex_,
                [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return Idle(); });
}

void DiskQueue::Work() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    changed_.Wait(
        &mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return HasWork(); });
    RunAll();
    if (stopping_) return;
  }
}

}  // namespace rankprobe
