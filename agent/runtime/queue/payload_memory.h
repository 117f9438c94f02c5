// SPDX-License-Identifier: Apache-2.0
// Memory for payload bytes that goes round: a training step needs blocks of the
// same sizes as the one before, and fresh memory costs more in page faults than
// the copy into it.
//
// Ownership: shared by the queue and every block; blocks may outlive the queue
// (the transport holds them until they are written).
// Threads: all methods are thread-safe.
// Failure: none but that of operator new.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_PAYLOAD_MEMORY_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_PAYLOAD_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rankprobe {

class PayloadMemory : public std::enable_shared_from_this<PayloadMemory> {
 public:
  // Blocks in use and kept ones together stay within `limit_bytes`, as long as
  // those in use do.
  explicit PayloadMemory(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Bytes that a block for `bytes` takes.
  static uint64_t BlockBytes(uint64_t bytes);

  // A block of at least `bytes`, uninitialised.
  std::shared_ptr<char> Allocate(uint64_t bytes);

  // Called from time to time: gives kept memory back when nothing was
  // allocated since the last call.
  void Trim();

  uint64_t kept_bytes() const;

 private:
  using Block = std::unique_ptr<char[]>;

  void Return(char* data, uint64_t block_bytes);
  void DropKept(uint64_t until_total) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t limit_bytes_;
  mutable absl::Mutex mutex_;
  bool used_since_trim_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t in_use_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // By size.
  std::map<uint64_t, std::vector<Block>> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_PAYLOAD_MEMORY_H_
