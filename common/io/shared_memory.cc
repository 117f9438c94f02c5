// SPDX-License-Identifier: Apache-2.0
#include "common/io/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

constexpr char kName[] = "rankprobe-payloads";
// MFD_NOEXEC_SEAL.
constexpr unsigned kNoExec = 8;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status NoMemory(const char* call) {
  return absl::UnavailableError(
      absl::StrCat("no shared memory: ", call, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(
    uint64_t bytes) {
  // Beyond this limit ftruncate raises SIGXFSZ, which ends the process.
  rlimit largest;
  if (::getrlimit(RLIMIT_FSIZE, &largest) == 0 &&
      largest.rlim_cur != RLIM_INFINITY && bytes > largest.rlim_cur)
    return absl::UnavailableError(
        "no shared memory: files may not be so large");
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = ::memfd_create(kName, kFlags | kNoExec);
  // Kernels before 6.3 do not know that flag; some newer ones require it.
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create(kName, kFlags);
  if (fd < 0) return NoMemory("memfd_create");
  const auto fail = [fd](const char* call) {
    absl::Status status = NoMemory(call);
    ::close(fd);
    return status;
  };
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return fail("ftruncate");
  if (::fcntl(fd, F_ADD_SEALS, kSeals) != 0) return fail("seals");
  void* const data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return fail("mmap");
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(fd, static_cast<char*>(data), bytes));
}

SharedMemory::~SharedMemory() {
  if (data_ == nullptr) return;
  ::munmap(data_, size_);
  ::close(fd_);
}

bool SharedMemory::Take(uint64_t offset, uint64_t bytes) {
  return ::fallocate(fd_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                     static_cast<off_t>(bytes)) == 0;
}

void SharedMemory::GiveBack(uint64_t offset, uint64_t bytes) {
  if (fork_guard_.InChild()) return;
  // If it fails, the memory stays allocated; nothing else is lost.
  (void)::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(offset), static_cast<off_t>(bytes));
}

absl::StatusOr<std::unique_ptr<SharedMemoryReader>> SharedMemoryReader::Adopt(
    int untrusted_fd, uint64_t max_bytes) {
  const auto refuse = [untrusted_fd](absl::string_view why) {
    ::close(untrusted_fd);
    return absl::InvalidArgumentError(why);
  };
  struct stat info;
  struct statfs system;
  const int seals = ::fcntl(untrusted_fd, F_GET_SEALS);
  if (seals < 0 || ::fstat(untrusted_fd, &info) != 0 ||
      !S_ISREG(info.st_mode) || ::fstatfs(untrusted_fd, &system) != 0 ||
      system.f_type != TMPFS_MAGIC)
    return refuse("the descriptor is not shared memory");
  if ((seals & kSeals) != kSeals)
    return refuse("the shared memory is not sealed against a change of size");
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size == 0 || size > max_bytes) {
    return refuse(absl::StrCat("the shared memory has ", size, " bytes; 1 to ",
                               max_bytes, " are taken"));
  }
  return std::unique_ptr<SharedMemoryReader>(
      new SharedMemoryReader(untrusted_fd, size));
}

SharedMemoryReader::~SharedMemoryReader() { ::close(fd_); }

absl::Status SharedMemoryReader::Read(uint64_t offset,
                                      absl::Span<char> out) const {
  if (offset > size_ || out.size() > size_ - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes ", offset, " and ", out.size(),
                     " more lie beyond the end of shared memory of ", size_));
  }
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::pread(fd_, out.data() + done, out.size() - done,
                              static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "shared memory cannot be read: ",
          n < 0 ? std::strerror(errno) : "it ends before it should"));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
