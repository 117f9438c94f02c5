// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/payload_memory.h"

#include <bit>
#include <utility>

namespace rankprobe {
namespace {

// Smaller blocks are the heap's own business.
constexpr uint64_t kSmallBytes = 64 << 10;

}  // namespace

uint64_t PayloadMemory::BlockBytes(uint64_t bytes) {
  if (bytes < kSmallBytes) return bytes;
  // Sixteen sizes between two powers of two: at most a sixteenth is wasted.
  const uint64_t step = std::bit_floor(bytes) / 16;
  return (bytes + step - 1) & ~(step - 1);
}

std::shared_ptr<char> PayloadMemory::Allocate(uint64_t bytes) {
  const uint64_t block_bytes = BlockBytes(bytes);
  Block block;
  {
    absl::MutexLock lock(&mutex_);
    used_since_trim_ = true;
    const auto it = kept_.find(block_bytes);
    if (it != kept_.end()) {
      block = std::move(it->second.back());
      it->second.pop_back();
      if (it->second.empty()) kept_.erase(it);
      kept_bytes_ -= block_bytes;
    } else if (in_use_bytes_ + kept_bytes_ + block_bytes > limit_bytes_) {
      DropKept(limit_bytes_ - std::min(limit_bytes_, block_bytes));
    }
    in_use_bytes_ += block_bytes;
  }
  if (block == nullptr) block.reset(new char[block_bytes]);
  return {block.release(),
          [memory = shared_from_this(), block_bytes](char* data) {
            memory->Return(data, block_bytes);
          }};
}

void PayloadMemory::Return(char* data, uint64_t block_bytes) {
  Block block(data);
  absl::MutexLock lock(&mutex_);
  in_use_bytes_ -= block_bytes;
  if (block_bytes < kSmallBytes ||
      in_use_bytes_ + kept_bytes_ + block_bytes > limit_bytes_)
    return;
  kept_bytes_ += block_bytes;
  kept_[block_bytes].push_back(std::move(block));
}

void PayloadMemory::DropKept(uint64_t until_total) {
  while (!kept_.empty() && in_use_bytes_ + kept_bytes_ > until_total) {
    const auto largest = std::prev(kept_.end());
    kept_bytes_ -= largest->first;
    largest->second.pop_back();
    if (largest->second.empty()) kept_.erase(largest);
  }
}

void PayloadMemory::Trim() {
  absl::MutexLock lock(&mutex_);
  if (!used_since_trim_) DropKept(0);
  used_since_trim_ = false;
}

uint64_t PayloadMemory::kept_bytes() const {
  absl::MutexLock lock(&mutex_);
  return kept_bytes_;
}

}  // namespace rankprobe
