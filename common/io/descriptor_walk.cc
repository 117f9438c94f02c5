// SPDX-License-Identifier: Apache-2.0
#include "common/io/descriptor_walk.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

namespace rankprobe {
namespace {

// One descriptor is open for each level.
constexpr int kMaxDepth = 64;
constexpr int kDirectoryOnly = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

bool IsLink(int directory, const std::string& name) {
  struct stat st;
  return ::fstatat(directory, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISLNK(st.st_mode);
}

int Openat2(int directory, const std::string& below, int flags, mode_t mode) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags);
  how.mode = (flags & O_CREAT) != 0 ? mode : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  int64_t fd = -1;
  do {
    fd = ::syscall(SYS_openat2, directory, below.c_str(), &how, sizeof(how));
  } while (fd < 0 && errno == EINTR);
  return static_cast<int>(fd);
}

// openat that does not follow `name`. O_DIRECTORY returns ENOTDIR for a link.
int OpenOne(int directory, const std::string& name, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = ::openat(directory, name.c_str(), flags | O_NOFOLLOW, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0 && errno == ENOTDIR)
    errno = IsLink(directory, name) ? ELOOP : ENOTDIR;
  return fd;
}

int Remove(int directory, const std::string& name, int depth) {
  if (::unlinkat(directory, name.c_str(), 0) == 0 || errno == ENOENT) return 0;
  if (errno != EISDIR) return errno;
  if (depth == kMaxDepth) return ELOOP;
  const int fd = ::openat(directory, name.c_str(),
                          O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? 0 : errno;
  DIR* const open = ::fdopendir(fd);
  if (open == nullptr) {
    const int error = errno;
    ::close(fd);
    return error;
  }
  std::vector<std::string> names;
  // readdir returns null both at the end and on an error.
  errno = 0;
  while (const dirent* entry = ::readdir(open)) {
    const std::string child = entry->d_name;
    if (child != "." && child != "..") names.push_back(child);
    errno = 0;
  }
  int error = errno;
  for (const std::string& child : names) {
    if (error != 0) break;
    error = Remove(fd, child, depth + 1);
  }
  ::closedir(open);
  if (error != 0) return error;
  if (::unlinkat(directory, name.c_str(), AT_REMOVEDIR) == 0) return 0;
  return errno == ENOENT ? 0 : errno;
}

}  // namespace

void Descriptor::Reset(int fd) {
  const int error = errno;
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
  errno = error;
}

bool HasOpenat2(int directory) {
  // A sandbox that does not know the call returns ENOSYS or EPERM.
  return Descriptor(Openat2(directory, ".", kDirectoryOnly, 0)).ok();
}

Descriptor OpenBelow(bool openat2, int directory, const std::string& below,
                     int flags, mode_t mode) {
  flags |= O_CLOEXEC;
  const std::string path = below.empty() ? "." : below;
  if (openat2) return Descriptor(Openat2(directory, path, flags, mode));
  Descriptor parent;
  for (size_t begin = 0;;) {
    const size_t slash = path.find('/', begin);
    const int at = parent.ok() ? parent.get() : directory;
    if (slash == std::string::npos)
      return Descriptor(OpenOne(at, path.substr(begin), flags, mode));
    Descriptor next(
        OpenOne(at, path.substr(begin, slash - begin), kDirectoryOnly, 0));
    if (!next.ok()) return next;
    parent = std::move(next);
    begin = slash + 1;
  }
}

std::string FirstLink(int directory, const std::string& below) {
  Descriptor parent;
  for (size_t begin = 0; begin < below.size();) {
    const size_t slash = std::min(below.find('/', begin), below.size());
    const std::string name = below.substr(begin, slash - begin);
    const int at = parent.ok() ? parent.get() : directory;
    if (IsLink(at, name)) return below.substr(0, slash);
    Descriptor next(OpenOne(at, name, kDirectoryOnly, 0));
    if (!next.ok()) break;
    parent = std::move(next);
    begin = slash + 1;
  }
  return "";
}

int RemoveTree(int directory, const std::string& name) {
  return Remove(directory, name, 0);
}

}  // namespace rankprobe
