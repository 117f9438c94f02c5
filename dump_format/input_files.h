// SPDX-License-Identifier: Apache-2.0
// The permission rule for what is read (docs/analysis.md, "Which files are
// read"): a dump or a mapping that others can change, that belongs to another
// user, or that is a link to somewhere is refused, as msprobe refuses it,
// unless told otherwise. FIFOs, devices and directories are never files.
//
// A FileSystem for the readers of analysis; writing goes on as it was.
// Thread-safe. Failure: PERMISSION_DENIED in one line that names the path, the
// reason and the way out.
#ifndef RANKPROBE_DUMP_FORMAT_INPUT_FILES_H_
#define RANKPROBE_DUMP_FORMAT_INPUT_FILES_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct InputFilesOptions {
  // Read what the rule refuses and say so once for each reason.
  bool force = false;
  // Gets those warnings; may be empty.
  std::function<void(const std::string&)> warn;
};

// Over the files of the machine. Its List and OpenForRead hold to the rule:
// the file or directory itself, and the directory that a file lies in.
std::unique_ptr<FileSystem> NewInputFiles(InputFilesOptions options);

// The rule for a text of at most 1 MiB, such as a mapping.
absl::StatusOr<std::string> ReadInput(FileSystem* file_system,
                                      const std::string& path);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_INPUT_FILES_H_
