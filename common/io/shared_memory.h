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

// Thread-safe, except for writes to data().
class SharedMemory {
 public:
  // Reserves address space; pages are allocated when they are written.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(uint64_t bytes);
  virtual ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  char* data() const { return data_; }
  uint64_t size() const { return size_; }
  // Remains owned by this object.
  int fd() const { return fd_; }
  // Allocates memory for data to be written there. Returns false if there is
  // none: a write would then end the process. Both numbers must be multiples of
  // the page size.
  virtual bool Take(uint64_t offset, uint64_t bytes);
  // Returns memory that is no longer needed to the system. Does nothing in a
  // forked child, because the memory is the parent's.
  virtual void GiveBack(uint64_t offset, uint64_t bytes);

 protected:
  // Takes over the memory of `other`, which is then empty: for tests that
  // observe Take.
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

// The reading side. Thread-safe.
class SharedMemoryReader {
 public:
  // Takes ownership of the descriptor in any case. INVALID_ARGUMENT unless it
  // is memory as SharedMemory creates it, of 1 to `max_bytes` bytes: reading
  // from any other file could block until its owner acts.
  static absl::StatusOr<std::unique_ptr<SharedMemoryReader>> Adopt(
      int untrusted_fd, uint64_t max_bytes);
  ~SharedMemoryReader();
  SharedMemoryReader(const SharedMemoryReader&) = delete;
  SharedMemoryReader& operator=(const SharedMemoryReader&) = delete;

  uint64_t size() const { return size_; }
  // Copies the bytes as they are at some moment during the call.
  // INVALID_ARGUMENT beyond the end.
  absl::Status Read(uint64_t offset, absl::Span<char> out) const;

 private:
  SharedMemoryReader(int fd, uint64_t size) : fd_(fd), size_(size) {}

  const int fd_;
  const uint64_t size_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_IO_SHARED_MEMORY_H_
