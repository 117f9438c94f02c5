// SPDX-License-Identifier: Apache-2.0
// Shared parts of the file systems over POSIX: files made of descriptors, and
// the statuses of errno.
#ifndef RANKPROBE_COMMON_IO_POSIX_FILES_H_
#define RANKPROBE_COMMON_IO_POSIX_FILES_H_

#include <sys/statvfs.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"

namespace rankprobe::posix {

// Returns "WHAT PATH: strerror", with the codes that file_system.h names.
absl::Status FromErrno(int error, absl::string_view what,
                       absl::string_view path);

// FileSystem::CapacityBytes: excludes the blocks reserved for root, as
// FreeBytes does.
inline uint64_t CapacityOf(const struct statvfs& st) {
  const uint64_t used = st.f_blocks - std::min(st.f_blocks, st.f_bfree);
  return (used + st.f_bavail) * st.f_frsize;
}

// An INVALID_ARGUMENT error: not a regular file.
absl::Status NotRegular(absl::string_view path);

// Take ownership of `fd` in any case; `path` is for errors. INVALID_ARGUMENT if
// it is not a regular file: a FIFO or a device would block or never end.
// Callers open with O_NONBLOCK, which has no effect on regular files.
absl::StatusOr<std::unique_ptr<WritableFile>> Writable(int fd,
                                                       std::string path);
absl::StatusOr<std::unique_ptr<RandomAccessFile>> Readable(int fd,
                                                           std::string path);
// FAILED_PRECONDITION, with the holder's pid, if another process has the lock.
// ABORTED if the file was deleted after `fd` was opened: another file may have
// its name, and must be opened and locked instead.
absl::StatusOr<std::unique_ptr<FileLock>> LockFile(int fd,
                                                   const std::string& path);

}  // namespace rankprobe::posix

#endif  // RANKPROBE_COMMON_IO_POSIX_FILES_H_
