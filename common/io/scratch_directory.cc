// SPDX-License-Identifier: Apache-2.0
#include "common/io/scratch_directory.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace rankprobe {

std::string ScratchDirectory::Parent() {
  const char* const named = std::getenv("TMPDIR");
  return named == nullptr || *named == '\0' ? "/tmp" : named;
}

absl::StatusOr<ScratchDirectory> ScratchDirectory::Make(
    FileSystem* file_system, const std::string& parent) {
  std::string pattern =
      absl::StrCat(parent.empty() ? Parent() : parent, "/rankprobe_XXXXXX");
  if (::mkdtemp(pattern.data()) == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat(pattern, ": ", std::strerror(errno)));
  }
  return ScratchDirectory(file_system, std::move(pattern));
}

}  // namespace rankprobe
