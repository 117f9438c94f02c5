// SPDX-License-Identifier: Apache-2.0
// A FileSystem that never leaves some directories (roots), whatever other
// processes create there in the meantime: it follows no symbolic link, accepts
// no "..", and reaches the files that it writes, renames or deletes from a
// descriptor of the root (openat2 with RESOLVE_BENEATH and
// RESOLVE_NO_SYMLINKS), never by a name that was checked before.
//
// A path must begin with a root and continue below it; any other is
// PERMISSION_DENIED, except the first argument of Link, which may be a file
// elsewhere that the caller vouches for. Ownership and threads: as FileSystem.
// Failure: PERMISSION_DENIED names a link that is in the way. Exists returns
// true where it cannot determine it, so that no used name is treated as free.
#ifndef RANKPROBE_COMMON_IO_CONFINED_FILE_SYSTEM_H_
#define RANKPROBE_COMMON_IO_CONFINED_FILE_SYSTEM_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/file_system.h"

namespace rankprobe {

enum class PathWalk {
  // Uses openat2 if the kernel has it and a sandbox permits it.
  kBest,
  // Uses one openat for each component, none of which may be a link.
  kComponents,
};

enum class RootLookup {
  // A root stays the directory that it is now, even if it is renamed.
  kOnce,
  // A root is looked up with each call: it may disappear and return (for
  // example, after a remount). While it is missing, every call returns
  // UNAVAILABLE.
  kEachCall,
};

// All `roots` must exist; symbolic links in these names themselves are
// followed.
absl::StatusOr<std::unique_ptr<FileSystem>> NewConfinedFileSystem(
    const std::vector<std::string>& roots, PathWalk walk = PathWalk::kBest,
    RootLookup lookup = RootLookup::kOnce);

// Whether `status` is the error of such a file system for a path that is a link
// or contains one.
bool IsLinkInTheWay(const absl::Status& status);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_IO_CONFINED_FILE_SYSTEM_H_
