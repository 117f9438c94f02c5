// SPDX-License-Identifier: Apache-2.0
// The directories of this machine to which operators may export
// (--export-root), and the only way to write there.
//
// Thread-safe; the FileSystem outlives it. Failure: INVALID_ARGUMENT for a path
// that is not absolute, PERMISSION_DENIED for one below no root.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_EXPORT_ROOTS_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_EXPORT_ROOTS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/file_system.h"

namespace rankprobe {

class ExportRoots {
 public:
  // Directories, and a file system to write them with. It never leaves the
  // roots, even if links are created there meanwhile.
  struct Places {
    std::unique_ptr<FileSystem> files;
    std::vector<std::string> directories;
  };

  // Absolute paths; they may be missing.
  ExportRoots(std::vector<std::string> roots, FileSystem* file_system)
      : roots_(std::move(roots)), file_system_(file_system) {}

  // Returns one directory for each path, after following the links in it.
  // Creates the roots, and nothing below them.
  absl::StatusOr<Places> Open(const std::vector<std::string>& untrusted) const;

 private:
  struct Allowed {
    std::string root;
    std::string directory;
  };
  absl::StatusOr<Allowed> Allow(const std::string& untrusted) const;

  const std::vector<std::string> roots_;
  FileSystem* const file_system_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_EXPORT_ROOTS_H_
