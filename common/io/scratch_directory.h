// SPDX-License-Identifier: Apache-2.0
// A private directory that is removed with the object, with its contents. Not
// thread-safe.
#ifndef RANKPROBE_COMMON_IO_SCRATCH_DIRECTORY_H_
#define RANKPROBE_COMMON_IO_SCRATCH_DIRECTORY_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/io/file_system.h"

namespace rankprobe {

class ScratchDirectory {
 public:
  // Creates the directory in `parent`, or in Parent() if that is empty.
  // RESOURCE_EXHAUSTED if it cannot be created.
  static absl::StatusOr<ScratchDirectory> Make(FileSystem* file_system,
                                               const std::string& parent = "");
  // TMPDIR, or /tmp if it is not set.
  static std::string Parent();
  ScratchDirectory(ScratchDirectory&& other) noexcept
      : file_system_(other.file_system_),
        path_(std::exchange(other.path_, "")) {}
  ScratchDirectory& operator=(ScratchDirectory&&) = delete;
  ~ScratchDirectory() {
    if (!path_.empty()) (void)file_system_->DeleteTree(path_);
  }

  const std::string& path() const { return path_; }

 private:
  ScratchDirectory(FileSystem* file_system, std::string path)
      : file_system_(file_system), path_(std::move(path)) {}

  FileSystem* const file_system_;
  std::string path_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_IO_SCRATCH_DIRECTORY_H_
