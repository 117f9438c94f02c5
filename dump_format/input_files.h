// SPDX-License-Identifier: Apache-2.0
// The permission rule for files that are read (docs/analysis.md, "Which files
// are read"): a dump or a mapping that other users can change, that belongs to
// another user, or that is a symbolic link is refused, as msprobe refuses it,
// unless `force` is set. FIFOs, devices and directories are never files.
//
// A FileSystem for the readers of analysis; writing is not affected.
// Thread-safe. Failure: PERMISSION_DENIED in one line that names the path, the
// reason and the remedy.
#ifndef RANKPROBE_DUMP_FORMAT_INPUT_FILES_H_
#define RANKPROBE_DUMP_FORMAT_INPUT_FILES_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct InputFilesOptions {
  // Read what the rule refuses, with one warning for each reason.
  bool force = false;
  // Receives those warnings; may be empty.
  std::function<void(const std::string&)> warn;
};

// Returns a FileSystem over the files of the machine. Its List and OpenForRead
// apply the rule to the file or directory itself, and to the directory that
// contains a file.
std::unique_ptr<FileSystem> NewInputFiles(InputFilesOptions options);

// Reads a text of at most 1 MiB, such as a mapping, under the rule.
absl::StatusOr<std::string> ReadInput(FileSystem* file_system,
                                      const std::string& path);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_INPUT_FILES_H_
