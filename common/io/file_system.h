// SPDX-License-Identifier: Apache-2.0
// The only interface to files: store, exporter and spool use it, so that tests
// can drop un-synced bytes, fail with ENOSPC or EIO, and stop between two
// calls. A FileSystem is thread-safe and outlives its files. A file object is
// used by one thread at a time unless a method says otherwise. Errors:
// NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED (no space or
// quota), DATA_LOSS (I/O error), each naming the path.
#ifndef RANKPROBE_COMMON_IO_FILE_SYSTEM_H_
#define RANKPROBE_COMMON_IO_FILE_SYSTEM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace rankprobe {

class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Appends all pieces in order; after an error an unknown prefix may have been
  // written.
  virtual absl::Status Append(absl::Span<const absl::string_view> pieces) = 0;
  absl::Status Append(absl::string_view data) {
    return Append(absl::MakeConstSpan(&data, 1));
  }
  // When it returns, data and length survive a machine crash. May run in one
  // thread while another appends.
  virtual absl::Status Sync() = 0;
  // A hint that synced data in this range will not be read soon. The system may
  // then reuse its cache memory for the next writes, which costs less than
  // fresh memory. Threads as for Sync.
  virtual void ForgetSynced(uint64_t /*offset*/, uint64_t /*bytes*/) {}
  virtual absl::Status Close() = 0;
};

class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  // Reads exactly out.size() bytes or fails with OUT_OF_RANGE. Thread-safe.
  virtual absl::Status Read(uint64_t offset, absl::Span<char> out) const = 0;
};

// Holds an exclusive lock until destroyed.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  enum class OpenMode { kCreateNew, kTruncate, kAppend };
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(
      const std::string& path, OpenMode mode) = 0;
  virtual absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenForRead(
      const std::string& path) = 0;
  virtual absl::StatusOr<uint64_t> FileSize(const std::string& path) = 0;
  virtual bool Exists(const std::string& path) = 0;
  // Returns names without the directory, sorted, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(
      const std::string& directory) = 0;
  virtual absl::Status CreateDirectories(const std::string& directory) = 0;
  virtual absl::Status Rename(const std::string& from,
                              const std::string& to) = 0;
  // Creates a second name for the file; an error if the file system does not
  // support it.
  virtual absl::Status Link(const std::string& from, const std::string& to) = 0;
  // When it returns, bytes and length of an existing file survive a machine
  // crash.
  virtual absl::Status SyncFile(const std::string& path) = 0;
  virtual absl::Status Delete(const std::string& path) = 0;
  virtual absl::Status DeleteTree(const std::string& directory) = 0;
  virtual absl::Status Truncate(const std::string& path, uint64_t size) = 0;
  // When it returns, the entries of `directory` survive a machine crash.
  virtual absl::Status SyncDirectory(const std::string& directory) = 0;
  // FAILED_PRECONDITION, with the holder's pid, if another process has the
  // lock.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> Lock(
      const std::string& path) = 0;
  virtual absl::StatusOr<uint64_t> FreeBytes(const std::string& path) = 0;
  // The value of FreeBytes if nothing was stored, as `df` computes it.
  virtual absl::StatusOr<uint64_t> CapacityBytes(const std::string& path) = 0;
};

// POSIX files. One instance serves the complete process.
std::unique_ptr<FileSystem> NewPosixFileSystem();

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_IO_FILE_SYSTEM_H_
