// SPDX-License-Identifier: Apache-2.0
#include "cli/client/scratch_directory.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace rankprobe {

absl::StatusOr<ScratchDirectory> ScratchDirectory::Make(
    FileSystem* file_system) {
  const char* const base = std::getenv("TMPDIR");
  std::string pattern = absl::StrCat(
      base == nullptr || *base == '\0' ? "/tmp" : base, "/rankprobe_XXXXXX");
  if (::mkdtemp(pattern.data()) == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat(pattern, ": ", std::strerror(errno)));
  }
  return ScratchDirectory(file_system, std::move(pattern));
}

}  // namespace rankprobe
