// SPDX-License-Identifier: Apache-2.0
// Recycling pool of memory for payload bytes: a training step needs blocks of
// the same sizes as the one before, and fresh memory costs more in page faults
// than the copy into it. Large blocks are in memory that can be shared with a
// collector on this host, or in the heap if there is no such memory or no room
// in it.
//
// Ownership: shared by the queue and every block; blocks may outlive the queue
// (the transport holds them until they are written).
// Threads: all methods are thread-safe. Training threads take the lock, so no
// system call is made under it.
// Failure: only that of operator new.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_PAYLOAD_MEMORY_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_PAYLOAD_MEMORY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/io/shared_memory.h"

namespace rankprobe {

class PayloadMemory : public std::enable_shared_from_this<PayloadMemory> {
 public:
  using CreateFn =
      std::function<absl::StatusOr<std::unique_ptr<SharedMemory>>(uint64_t)>;

  // Blocks in use and kept blocks together stay within `limit_bytes`, unless
  // those in use alone exceed it. `shared`: large blocks are allocated in
  // shared memory.
  PayloadMemory(uint64_t limit_bytes, bool shared)
      : PayloadMemory(limit_bytes,
                      shared ? CreateFn(&SharedMemory::Create) : nullptr) {}
  explicit PayloadMemory(uint64_t limit_bytes)
      : PayloadMemory(limit_bytes, /*shared=*/false) {}
  // `create` makes shared memory of the given size; null: none is used.
  PayloadMemory(uint64_t limit_bytes, CreateFn create)
      : limit_bytes_(limit_bytes), create_(std::move(create)) {}
  ~PayloadMemory();

  // The size of the block that is allocated for `bytes`.
  static uint64_t BlockBytes(uint64_t bytes);

  // Returns an uninitialized block of at least `bytes`.
  std::shared_ptr<char> Allocate(uint64_t bytes);

  // Called periodically: frees kept memory once nothing was allocated during
  // kIdleTrims calls. Steps that are less far apart find the memory of the step
  // before.
  static constexpr int kIdleTrims = 15;
  void Trim();

  uint64_t kept_bytes() const;

  // The shared memory, which exists from the first large block on if it can be
  // created. It lives as long as this object.
  const SharedMemory* shared() const;
  // Why there is no shared memory; OK before the first large block.
  absl::Status shared_status() const;
  // Offset of the byte in shared memory; nullopt if it is elsewhere.
  std::optional<uint64_t> PlaceOf(const char* data) const;

 private:
  struct Block {
    char* data;
    uint64_t bytes;
  };

  // Allocates in shared memory; returns null if there is none or it is full.
  char* NewSharedBlock(uint64_t block_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns an unused block to the shared memory or to the heap.
  void Free(Block block) ABSL_LOCKS_EXCLUDED(mutex_);
  // The first caller creates the shared memory; others use the heap until it
  // exists.
  SharedMemory* OpenShared() ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<uint64_t> PlaceLocked(const char* data) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  std::optional<uint64_t> TakeRange(uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutRange(uint64_t offset, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Return(char* data, uint64_t block_bytes);
  // Removes kept blocks, which the caller frees without the lock.
  std::vector<Block> DropKept(uint64_t until_total)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t limit_bytes_;
  const CreateFn create_;
  mutable absl::Mutex mutex_;
  // Calls of Trim since something was allocated.
  int idle_trims_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t in_use_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Kept blocks by size.
  std::map<uint64_t, std::vector<char*>> kept_ ABSL_GUARDED_BY(mutex_);
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status shared_status_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<SharedMemory> shared_ ABSL_GUARDED_BY(mutex_);
  // Free ranges of the shared memory, from offset to length: they belong to no
  // block, have no memory behind them, and no thread is taking or returning
  // them. No two are adjacent.
  std::map<uint64_t, uint64_t> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_PAYLOAD_MEMORY_H_
