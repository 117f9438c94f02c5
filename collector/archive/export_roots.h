// SPDX-License-Identifier: Apache-2.0
// The directories of this machine that operators may have written to
// (--export-root), and the only way to write there.
//
// Thread-safe; the FileSystem outlives it. Failure: INVALID_ARGUMENT for what
// is no absolute path, PERMISSION_DENIED for what lies below no root.
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
  // Directories, and the file system that they are to be written with: it
  // never leaves their roots, whatever is planted there meanwhile.
  struct Places {
    std::unique_ptr<FileSystem> files;
    std::vector<std::string> directories;
  };

  // Absolute paths; they need not exist yet.
  ExportRoots(std::vector<std::string> roots, FileSystem* file_system)
      : roots_(std::move(roots)), file_system_(file_system) {}

  // One directory for each path, links on the way to it followed. Makes the
  // roots, and nothing below them.
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
