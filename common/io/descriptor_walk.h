// SPDX-License-Identifier: Apache-2.0
// Functions that open files below a directory's descriptor without following a
// link. Used by confined_file_system.cc, and by code that passes descriptors
// on.
#ifndef RANKPROBE_COMMON_IO_DESCRIPTOR_WALK_H_
#define RANKPROBE_COMMON_IO_DESCRIPTOR_WALK_H_

#include <sys/types.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace rankprobe {

// Owns a file descriptor and closes it. A negative one means failure; errno is
// then set.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) Reset(other.Release());
    return *this;
  }
  ~Descriptor() { Reset(-1); }

  bool ok() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  // Preserves errno.
  void Reset(int fd);

 private:
  int fd_;
};

// Whether openat2 works in `directory`.
bool HasOpenat2(int directory);

// Opens `below` ("a/b", without ".."; "" is the directory itself) like open(2)
// with `flags`. ELOOP: a component is a link, possibly the last one.
Descriptor OpenBelow(bool openat2, int directory, const std::string& below,
                     int flags, mode_t mode = 0);

// The first part of `below` that is a symbolic link; empty if there is none
// (any more).
std::string FirstLink(int directory, const std::string& below);

// Removes `name` in `directory` with its contents; a link is removed, its
// target is not. Returns 0 or an errno: ELOOP if directories are nested deeper
// than 64.
int RemoveTree(int directory, const std::string& name);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_IO_DESCRIPTOR_WALK_H_
