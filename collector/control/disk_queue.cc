#include "collector/control/disk_queue.h"

#include <utility>

namespace rankprobe {

DiskQueue::DiskQueue(bool own_thread) {
  if (own_thread) thread_ = std::thread([this] { Work(); });
}

DiskQueue::~DiskQueue() {
  if (thread_.joinable()) {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    thread_.join();
  } else {
    RunQueued();
  }
}

void DiskQueue::Add(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

void DiskQueue::RunAll() {
  running_ = true;
  while (!tasks_.empty()) {
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    mutex_.Unlock();
    task();
    // What it holds may take locks when it goes.
    task = nullptr;
    mutex_.Lock();
  }
  running_ = false;
}

void DiskQueue::RunQueued() {
  if (thread_.joinable()) return;
  absl::MutexLock lock(&mutex_);
  if (!running_) RunAll();
}

void DiskQueue::Wait() {
  RunQueued();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &DiskQueue::Idle));
}

void DiskQueue::Work() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    mutex_.Await(absl::Condition(this, &DiskQueue::HasWork));
    RunAll();
    if (stopping_) return;
  }
}

}  // namespace rankprobe
