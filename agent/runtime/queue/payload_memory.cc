// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/payload_memory.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <utility>

namespace rankprobe {
namespace {

// Smaller blocks are the heap's own business.
constexpr uint64_t kSmallBytes = 64 << 10;
constexpr uint64_t kPageBytes = 4 << 10;

}  // namespace

uint64_t PayloadMemory::BlockBytes(uint64_t bytes) {
  if (bytes < kSmallBytes) return bytes;
  // Sixteen sizes between two powers of two: at most a sixteenth is wasted.
  const uint64_t step = std::bit_floor(bytes) / 16;
  return (bytes + step - 1) & ~(step - 1);
}

PayloadMemory::~PayloadMemory() {
  absl::MutexLock lock(&mutex_);
  // What lies in shared memory a collector may still read, and goes with it.
  for (const auto& [bytes, blocks] : kept_) {
    for (char* const block : blocks)
      if (!PlaceLocked(block).has_value()) delete[] block;
  }
}

std::shared_ptr<char> PayloadMemory::Allocate(uint64_t bytes) {
  const uint64_t block_bytes = BlockBytes(bytes);
  char* block = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    used_since_trim_ = true;
    const auto it = kept_.find(block_bytes);
    if (it != kept_.end()) {
      block = it->second.back();
      it->second.pop_back();
      if (it->second.empty()) kept_.erase(it);
      kept_bytes_ -= block_bytes;
    } else if (in_use_bytes_ + kept_bytes_ + block_bytes > limit_bytes_) {
      DropKept(limit_bytes_ - std::min(limit_bytes_, block_bytes));
    }
    in_use_bytes_ += block_bytes;
    if (block == nullptr && block_bytes >= kSmallBytes)
      block = NewBlock(block_bytes);
  }
  if (block == nullptr) block = new char[block_bytes];
  return {block, [memory = shared_from_this(), block_bytes](char* data) {
            memory->Return(data, block_bytes);
          }};
}

void PayloadMemory::OpenShared() {
  opened_ = true;
  // Twice what is ever in use: blocks of other sizes find room between those
  // that are.
  const uint64_t bytes =
      2 * ((limit_bytes_ + kPageBytes - 1) & ~(kPageBytes - 1));
  absl::StatusOr<std::unique_ptr<SharedMemory>> shared =
      SharedMemory::Create(bytes);
  shared_status_ = shared.status();
  if (!shared.ok()) return;
  shared_ = *std::move(shared);
  free_[0] = bytes;
}

char* PayloadMemory::NewBlock(uint64_t block_bytes) {
  if (want_shared_ && !opened_) OpenShared();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, length] = *it;
    if (length < block_bytes) continue;
    if (!shared_->Take(offset, block_bytes)) return nullptr;
    free_.erase(it);
    if (length > block_bytes)
      free_[offset + block_bytes] = length - block_bytes;
    return shared_->data() + offset;
  }
  return nullptr;
}

void PayloadMemory::Free(char* data, uint64_t block_bytes) {
  const std::optional<uint64_t> place = PlaceLocked(data);
  if (!place.has_value()) {
    delete[] data;
    return;
  }
  shared_->GiveBack(*place, block_bytes);
  auto it = free_.emplace(*place, block_bytes).first;
  if (const auto next = std::next(it);
      next != free_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it == free_.begin()) return;
  if (const auto before = std::prev(it);
      before->first + before->second == it->first) {
    before->second += it->second;
    free_.erase(it);
  }
}

void PayloadMemory::Return(char* data, uint64_t block_bytes) {
  {
    absl::MutexLock lock(&mutex_);
    in_use_bytes_ -= block_bytes;
    if (block_bytes >= kSmallBytes &&
        in_use_bytes_ + kept_bytes_ + block_bytes <= limit_bytes_) {
      kept_bytes_ += block_bytes;
      kept_[block_bytes].push_back(data);
      return;
    }
    if (PlaceLocked(data).has_value()) return Free(data, block_bytes);
  }
  // The training thread may wait for the lock.
  delete[] data;
}

void PayloadMemory::DropKept(uint64_t until_total) {
  while (!kept_.empty() && in_use_bytes_ + kept_bytes_ > until_total) {
    const auto largest = std::prev(kept_.end());
    kept_bytes_ -= largest->first;
    Free(largest->second.back(), largest->first);
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

const SharedMemory* PayloadMemory::shared() const {
  absl::MutexLock lock(&mutex_);
  return shared_.get();
}

absl::Status PayloadMemory::shared_status() const {
  absl::MutexLock lock(&mutex_);
  return shared_status_;
}

std::optional<uint64_t> PayloadMemory::PlaceOf(const char* data) const {
  absl::MutexLock lock(&mutex_);
  return PlaceLocked(data);
}

std::optional<uint64_t> PayloadMemory::PlaceLocked(const char* data) const {
  if (shared_ == nullptr) return std::nullopt;
  const char* const begin = shared_->data();
  // Pointers of different objects are compared.
  if (std::less<>()(data, begin) ||
      !std::less<>()(data, begin + shared_->size()))
    return std::nullopt;
  return static_cast<uint64_t>(data - begin);
}

}  // namespace rankprobe
