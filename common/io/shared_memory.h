// SPDX-License-Identifier: Apache-2.0
// Memory that one process fills and another on the same host reads: an
// anonymous file (memfd) whose descriptor is passed to the reader.
//
// The maker maps it. The reader does not map it but reads it, so that a
// malicious peer can neither end it by SIGBUS nor make it allocate memory that
// was never written. The file is sealed against shrinking, so that the reader
// cannot end the maker either.
// Failure: Create returns an error if the system has no such memory.
#ifndef RANKPROBE_COMMON_IO_SHARED_MEMORY_H_
#define RANKPROBE_COMMON_IO_SHARED_MEMORY_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/fork_guard.h"

namespace rankprobe {

// Thread-safe but for what is written to data().
class SharedMemory {
 public:
  // Takes address space; memory as it is written to.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(uint64_t bytes);
  virtual ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  char* data() const { return data_; }
  uint64_t size() const { return size_; }
  // Stays this object's.
  int fd() const { return fd_; }
  // Takes the memory for what is to be written there. False: there is none, and
  // writing would end the process. Both numbers are multiples of a page.
  virtual bool Take(uint64_t offset, uint64_t bytes);
  // What lies there is not needed any more: its memory is the system's. Not in a
  // process that was forked: it is the parent's.
  virtual void GiveBack(uint64_t offset, uint64_t bytes);

 protected:
  // Takes all of `other`'s, which is then empty: for tests that watch what is
  // taken.
  SharedMemory(SharedMemory&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}

 private:
  SharedMemory(int fd, char* data, uint64_t size)
      : fd_(fd), data_(data), size_(size) {}

  const ForkGuard fork_guard_;
  int fd_;
  char* data_;
  uint64_t size_;
};

// The other side. Thread-safe.
class SharedMemoryReader {
 public:
  // Takes the descriptor, whatever it is of. INVALID_ARGUMENT unless it is
  // memory as SharedMemory makes it, of 1 to `max_bytes` bytes: reading any
  // other file could wait for its owner.
  static absl::StatusOr<std::unique_ptr<SharedMemoryReader>> Adopt(
      int untrusted_fd, uint64_t max_bytes);
  ~SharedMemoryReader();
  SharedMemoryReader(const SharedMemoryReader&) = delete;
  SharedMemoryReader& operator=(const SharedMemoryReader&) = delete;

  uint64_t size() const { return size_; }
  // A copy of the bytes as they are at some moment of the call.
  // INVALID_ARGUMENT beyond the end.
  absl::Status Read(uint64_t offset, absl::Span<char> out) const;

 private:
  SharedMemoryReader(int fd, uint64_t size) : fd_(fd), size_(size) {}

  const int fd_;
  const uint64_t size_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_IO_SHARED_MEMORY_H_
