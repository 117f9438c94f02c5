// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/queue/payload_memory.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <utility>

namespace rankprobe {
namespace {

// Smaller blocks are left to the heap.
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
  // A collector may still read blocks in shared memory; they are freed with it.
  for (const auto& [bytes, blocks] : kept_) {
    for (char* const block : blocks)
      if (!PlaceLocked(block).has_value()) delete[] block;
  }
}

std::shared_ptr<char> PayloadMemory::Allocate(uint64_t bytes) {
  const uint64_t block_bytes = BlockBytes(bytes);
  char* block = nullptr;
  std::vector<Block> dropped;
  {
    absl::MutexLock lock(&mutex_);
    idle_trims_ = 0;
    const auto it = kept_.find(block_bytes);
    if (it != kept_.end()) {
      block = it->second.back();
      it->second.pop_back();
      if (it->second.empty()) kept_.erase(it);
      kept_bytes_ -= block_bytes;
    } else if (in_use_bytes_ + kept_bytes_ + block_bytes > limit_bytes_) {
      dropped = DropKept(limit_bytes_ - std::min(limit_bytes_, block_bytes));
    }
    in_use_bytes_ += block_bytes;
  }
  for (const Block& kept : dropped) Free(kept);
  if (block == nullptr && block_bytes >= kSmallBytes)
    block = NewSharedBlock(block_bytes);
  if (block == nullptr) block = new char[block_bytes];
  return {block, [memory = shared_from_this(), block_bytes](char* data) {
            memory->Return(data, block_bytes);
          }};
}

SharedMemory* PayloadMemory::OpenShared() {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(opened_, true) || create_ == nullptr)
      return shared_.get();
  }
  // Twice the maximum in use, so that blocks of other sizes fit between those
  // in use.
  const uint64_t bytes =
      2 * ((limit_bytes_ + kPageBytes - 1) & ~(kPageBytes - 1));
  absl::StatusOr<std::unique_ptr<SharedMemory>> shared = create_(bytes);
  absl::MutexLock lock(&mutex_);
  shared_status_ = shared.status();
  if (!shared.ok()) return nullptr;
  shared_ = *std::move(shared);
  free_[0] = bytes;
  return shared_.get();
}

std::optional<uint64_t> PayloadMemory::TakeRange(uint64_t bytes) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, length] = *it;
    if (length < bytes) continue;
    free_.erase(it);
    if (length > bytes) free_[offset + bytes] = length - bytes;
    return offset;
  }
  return std::nullopt;
}

void PayloadMemory::PutRange(uint64_t offset, uint64_t bytes) {
  auto it = free_.emplace(offset, bytes).first;
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

char* PayloadMemory::NewSharedBlock(uint64_t block_bytes) {
  SharedMemory* const shared = OpenShared();
  if (shared == nullptr) return nullptr;
  std::optional<uint64_t> offset;
  {
    absl::MutexLock lock(&mutex_);
    offset = TakeRange(block_bytes);
  }
  if (!offset.has_value()) return nullptr;
  // No other thread uses the range in the meantime.
  if (shared->Take(*offset, block_bytes)) return shared->data() + *offset;
  absl::MutexLock lock(&mutex_);
  PutRange(*offset, block_bytes);
  return nullptr;
}

void PayloadMemory::Free(Block block) {
  std::optional<uint64_t> place;
  SharedMemory* shared = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    place = PlaceLocked(block.data);
    shared = shared_.get();
  }
  if (!place.has_value()) {
    delete[] block.data;
    return;
  }
  // The range becomes free only after its memory was returned.
  shared->GiveBack(*place, block.bytes);
  absl::MutexLock lock(&mutex_);
  PutRange(*place, block.bytes);
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
  }
  Free({data, block_bytes});
}

std::vector<PayloadMemory::Block> PayloadMemory::DropKept(
    uint64_t until_total) {
  std::vector<Block> dropped;
  while (!kept_.empty() && in_use_bytes_ + kept_bytes_ > until_total) {
    const auto largest = std::prev(kept_.end());
    kept_bytes_ -= largest->first;
    dropped.push_back({largest->second.back(), largest->first});
    largest->second.pop_back();
    if (largest->second.empty()) kept_.erase(largest);
  }
  return dropped;
}

void PayloadMemory::Trim() {
  std::vector<Block> dropped;
  {
    absl::MutexLock lock(&mutex_);
    if (idle_trims_ >= kIdleTrims) {
      dropped = DropKept(0);
    } else {
      ++idle_trims_;
    }
  }
  for (const Block& kept : dropped) Free(kept);
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
  // std::less, because the pointers may belong to different objects.
  if (std::less<>()(data, begin) ||
      !std::less<>()(data, begin + shared_->size()))
    return std::nullopt;
  return static_cast<uint64_t>(data - begin);
}

}  // namespace rankprobe
