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

  // Blocks in use and kept ones together stay within `limit_bytes`, as long as
  // those in use do.
  // `shared`: large blocks are to lie in shared memory.
  PayloadMemory(uint64_t limit_bytes, bool shared)
      : PayloadMemory(limit_bytes,
                      shared ? CreateFn(&SharedMemory::Create) : nullptr) {}
  explicit PayloadMemory(uint64_t limit_bytes)
      : PayloadMemory(limit_bytes, /*shared=*/false) {}
  // `create`: makes the shared memory of so many bytes; null: there is to be
  // none.
  PayloadMemory(uint64_t limit_bytes, CreateFn create)
      : limit_bytes_(limit_bytes), create_(std::move(create)) {}
  ~PayloadMemory();

  // Bytes that a block for `bytes` takes.
  static uint64_t BlockBytes(uint64_t bytes);

  // A block of at least `bytes`, uninitialised.
  std::shared_ptr<char> Allocate(uint64_t bytes);

  // Called from time to time: gives kept memory back once nothing was allocated in
  // so many calls. Steps that are far apart find the memory of the one before.
  static constexpr int kIdleTrims = 15;
  void Trim();

  uint64_t kept_bytes() const;

  // The shared memory: from the first large block on, if there can be any. It
  // stays as long as this.
  const SharedMemory* shared() const;
  // Why there is none; OK before the first large block.
  absl::Status shared_status() const;
  // Where in it the byte lies; nothing: elsewhere.
  std::optional<uint64_t> PlaceOf(const char* data) const;

 private:
  struct Block {
    char* data;
    uint64_t bytes;
  };

  // In the shared memory; null: there is none, or no room in it.
  char* NewSharedBlock(uint64_t block_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // A block that nobody has, to the shared memory or to the heap.
  void Free(Block block) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whoever asks first makes it; the others do without until it is there.
  SharedMemory* OpenShared() ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<uint64_t> PlaceLocked(const char* data) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  std::optional<uint64_t> TakeRange(uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutRange(uint64_t offset, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Return(char* data, uint64_t block_bytes);
  // Kept blocks that are kept no more, to be freed without the lock.
  std::vector<Block> DropKept(uint64_t until_total)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t limit_bytes_;
  const CreateFn create_;
  mutable absl::Mutex mutex_;
  // Since something was allocated.
  int idle_trims_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t in_use_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // By size.
  std::map<uint64_t, std::vector<char*>> kept_ ABSL_GUARDED_BY(mutex_);
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status shared_status_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<SharedMemory> shared_ ABSL_GUARDED_BY(mutex_);
  // Of the shared memory, from offset to length: in no block, without memory
  // behind it, and nobody is taking or giving it back. No two touch.
  std::map<uint64_t, uint64_t> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_PAYLOAD_MEMORY_H_
