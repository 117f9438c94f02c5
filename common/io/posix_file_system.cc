// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/file_system.h"
#include "common/io/posix_files.h"

namespace rankprobe {

absl::Status posix::FromErrno(int error, absl::string_view what,
                              absl::string_view path) {
  const std::string message =
      absl::StrCat(what, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EEXIST:
      return absl::AlreadyExistsError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(message);
    case EIO:
      return absl::DataLossError(message);
    case EISDIR:
    case EINVAL:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnknownError(message);
  }
}

absl::Status posix::NotRegular(absl::string_view path) {
  return absl::InvalidArgumentError(absl::StrCat(
      path, " is not a regular file (a FIFO, a device or a directory)"));
}

namespace {

using posix::FromErrno;
using posix::NotRegular;

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(int fd, std::string path)
      : fd_(fd), path_(std::move(path)) {}
  ~PosixWritableFile() override {
    if (fd_ >= 0) ::close(fd_);
  }

  absl::Status Append(absl::Span<const absl::string_view> pieces) override {
    std::array<iovec, 64> io;
    size_t next = 0, skip = 0;
    while (next < pieces.size()) {
      size_t n = 0;
      for (size_t i = next; i < pieces.size() && n < io.size(); ++i) {
        const size_t off = i == next ? skip : 0;
        io[n++] = {const_cast<char*>(pieces[i].data()) + off,
                   pieces[i].size() - off};
      }
      ssize_t written = ::writev(fd_, io.data(), static_cast<int>(n));
      if (written < 0) {
        if (errno == EINTR) continue;
        return FromErrno(errno, "write", path_);
      }
      while (next < pieces.size() &&
             static_cast<size_t>(written) >= pieces[next].size() - skip) {
        written -= static_cast<ssize_t>(pieces[next].size() - skip);
        skip = 0;
        ++next;
      }
      skip += static_cast<size_t>(written);
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (::fdatasync(fd_) != 0) return FromErrno(errno, "fdatasync", path_);
    return absl::OkStatus();
  }

  // Dirty pages stay in the cache; the next sync writes them.
  void ForgetSynced(uint64_t offset, uint64_t bytes) override {
    ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                    POSIX_FADV_DONTNEED);
  }

  absl::Status Close() override {
    const int fd = std::exchange(fd_, -1);
    if (fd >= 0 && ::close(fd) != 0) return FromErrno(errno, "close", path_);
    return absl::OkStatus();
  }

 private:
  int fd_;
  const std::string path_;
};

class PosixRandomAccessFile : public RandomAccessFile {
 public:
  PosixRandomAccessFile(int fd, std::string path)
      : fd_(fd), path_(std::move(path)) {}
  ~PosixRandomAccessFile() override { ::close(fd_); }

  absl::Status Read(uint64_t offset, absl::Span<char> out) const override {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n = ::pread(fd_, out.data() + done, out.size() - done,
                                static_cast<off_t>(offset + done));
      if (n < 0) {
        if (errno == EINTR) continue;
        return FromErrno(errno, "read", path_);
      }
      if (n == 0) {
        return absl::OutOfRangeError(
            absl::StrCat("read ", path_, ": ", out.size(), " bytes at ", offset,
                         " go beyond its end"));
      }
      done += static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }

 private:
  const int fd_;
  const std::string path_;
};

class PosixFileLock : public FileLock {
 public:
  explicit PosixFileLock(int fd) : fd_(fd) {}
  // The file is not deleted: otherwise two processes could hold the lock on
  // different files.
  ~PosixFileLock() override { ::close(fd_); }

 private:
  const int fd_;
};

// Closes `fd` if it is not a regular file.
absl::Status CheckRegular(int fd, const std::string& path) {
  struct stat st;
  if (::fstat(fd, &st) != 0) {
    const int error = errno;
    ::close(fd);
    return FromErrno(error, "stat", path);
  }
  if (S_ISREG(st.st_mode)) return absl::OkStatus();
  ::close(fd);
  return NotRegular(path);
}

// Whether the open file has no name any more. Some file systems do not count
// names.
bool IsDeleted(int fd, const std::string& path) {
  struct stat held;
  if (::fstat(fd, &held) != 0 || held.st_nlink > 0) return false;
  struct stat named;
  return ::stat(path.c_str(), &named) != 0 || named.st_dev != held.st_dev ||
         named.st_ino != held.st_ino;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WritableFile>> posix::Writable(
    int fd, std::string path) {
  RP_RETURN_IF_ERROR(CheckRegular(fd, path));
  return std::unique_ptr<WritableFile>(
      new PosixWritableFile(fd, std::move(path)));
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> posix::Readable(
    int fd, std::string path) {
  RP_RETURN_IF_ERROR(CheckRegular(fd, path));
  return std::unique_ptr<RandomAccessFile>(
      new PosixRandomAccessFile(fd, std::move(path)));
}

absl::StatusOr<std::unique_ptr<FileLock>> posix::LockFile(
    int fd, const std::string& path) {
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    std::array<char, 32> holder{};
    const ssize_t n = ::pread(fd, holder.data(), holder.size() - 1, 0);
    ::close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is held by process ",
                     n > 0 ? absl::string_view(holder.data()) : "(unknown)"));
  }
  // A process that cleaned up held the lock between our open and our lock.
  if (IsDeleted(fd, path)) {
    ::close(fd);
    return absl::AbortedError(absl::StrCat(path, " was deleted meanwhile"));
  }
  const std::string pid = absl::StrCat(::getpid());
  // Not truncated first: that frees a block, which may have to wait for the
  // disk.
  const auto size = static_cast<off_t>(pid.size());
  struct stat st;
  if (::pwrite(fd, pid.data(), pid.size(), 0) < 0 || ::fstat(fd, &st) != 0 ||
      (st.st_size > size && ::ftruncate(fd, size) != 0)) {
    const int error = errno;
    ::close(fd);
    return FromErrno(error, "write", path);
  }
  return std::unique_ptr<FileLock>(new PosixFileLock(fd));
}

namespace {

class PosixFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(
      const std::string& path, OpenMode mode) override {
    int flags = O_WRONLY | O_CREAT | O_CLOEXEC;
    if (mode == OpenMode::kCreateNew) flags |= O_EXCL;
    if (mode == OpenMode::kTruncate) flags |= O_TRUNC;
    if (mode == OpenMode::kAppend) flags |= O_APPEND;
    const int fd = ::open(path.c_str(), flags, 0640);
    if (fd < 0) return FromErrno(errno, "open", path);
    return std::unique_ptr<WritableFile>(new PosixWritableFile(fd, path));
  }

  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenForRead(
      const std::string& path) override {
    // O_NONBLOCK, so that open does not wait for the other end of a FIFO.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return FromErrno(errno, "open", path);
    return posix::Readable(fd, path);
  }

  absl::StatusOr<uint64_t> FileSize(const std::string& path) override {
    struct stat st;
    if (::stat(path.c_str(), &st) != 0) return FromErrno(errno, "stat", path);
    if (!S_ISREG(st.st_mode)) return NotRegular(path);
    return static_cast<uint64_t>(st.st_size);
  }

  bool Exists(const std::string& path) override {
    return ::access(path.c_str(), F_OK) == 0;
  }

  absl::StatusOr<std::vector<std::string>> List(
      const std::string& directory) override {
    DIR* dir = ::opendir(directory.c_str());
    if (dir == nullptr) return FromErrno(errno, "list", directory);
    std::vector<std::string> names;
    // readdir returns null both at the end and on an error.
    errno = 0;
    while (const dirent* entry = ::readdir(dir)) {
      const absl::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(dir);
    if (error != 0) return FromErrno(error, "list", directory);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status CreateDirectories(const std::string& directory) override {
    int failed = ::mkdir(directory.c_str(), 0750);
    const size_t slash = directory.rfind('/');
    // Creates the parent only on demand, because it usually exists.
    if (failed != 0 && errno == ENOENT && slash != 0 &&
        slash != std::string::npos) {
      RP_RETURN_IF_ERROR(CreateDirectories(directory.substr(0, slash)));
      failed = ::mkdir(directory.c_str(), 0750);
    }
    if (failed != 0 && errno != EEXIST)
      return FromErrno(errno, "create", directory);
    struct stat st;
    if (::stat(directory.c_str(), &st) != 0)
      return FromErrno(errno, "create", directory);
    if (!S_ISDIR(st.st_mode))
      return absl::AlreadyExistsError(
          absl::StrCat(directory, " is not a directory"));
    return absl::OkStatus();
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0)
      return FromErrno(errno, absl::StrCat("rename ", from, " to"), to);
    return absl::OkStatus();
  }

  absl::Status Link(const std::string& from, const std::string& to) override {
    if (::link(from.c_str(), to.c_str()) != 0)
      return FromErrno(errno, absl::StrCat("link ", from, " to"), to);
    return absl::OkStatus();
  }

  absl::Status SyncFile(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return FromErrno(errno, "open", path);
    const int rc = ::fdatasync(fd);
    const int error = errno;
    ::close(fd);
    if (rc == 0) return absl::OkStatus();
    // After a failed fdatasync the state of the data is unknown, so freeing
    // space does not help: not RESOURCE_EXHAUSTED.
    const absl::Status status = FromErrno(error, "fdatasync", path);
    return absl::IsResourceExhausted(status)
               ? absl::DataLossError(status.message())
               : status;
  }

  absl::Status Delete(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return FromErrno(errno, "delete", path);
    return absl::OkStatus();
  }

  absl::Status DeleteTree(const std::string& directory) override {
    std::error_code error;
    std::filesystem::remove_all(directory, error);
    if (error) return FromErrno(error.value(), "delete", directory);
    return absl::OkStatus();
  }

  absl::Status Truncate(const std::string& path, uint64_t size) override {
    if (::truncate(path.c_str(), static_cast<off_t>(size)) != 0)
      return FromErrno(errno, "truncate", path);
    return absl::OkStatus();
  }

  absl::Status SyncDirectory(const std::string& directory) override {
    const int fd =
        ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return FromErrno(errno, "open", directory);
    const int rc = ::fsync(fd);
    const int error = errno;
    ::close(fd);
    if (rc != 0) return FromErrno(error, "fsync", directory);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<FileLock>> Lock(
      const std::string& path) override {
    for (;;) {
      const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640);
      if (fd < 0) return FromErrno(errno, "open", path);
      absl::StatusOr<std::unique_ptr<FileLock>> lock =
          posix::LockFile(fd, path);
      // The file was deleted between open and lock: try the one that has its
      // name.
      if (!absl::IsAborted(lock.status())) return lock;
    }
  }

  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override {
    struct statvfs st;
    if (::statvfs(path.c_str(), &st) != 0)
      return FromErrno(errno, "statvfs", path);
    return static_cast<uint64_t>(st.f_bavail) * st.f_frsize;
  }

  absl::StatusOr<uint64_t> CapacityBytes(const std::string& path) override {
    struct statvfs st;
    if (::statvfs(path.c_str(), &st) != 0)
      return FromErrno(errno, "statvfs", path);
    return posix::CapacityOf(st);
  }
};

}  // namespace

std::unique_ptr<FileSystem> NewPosixFileSystem() {
  return std::make_unique<PosixFileSystem>();
}

}  // namespace rankprobe
