// SPDX-License-Identifier: Apache-2.0
// Source of a command's dump: a path, or `run:NAME` (`run:NAME@STEP`,
// `run:NAME@STEP/rankR`), a run in the archive, which is streamed into a
// temporary directory. The directory is removed with the object. Not
// thread-safe.
#ifndef RANKPROBE_CLI_CLIENT_DUMP_INPUT_H_
#define RANKPROBE_CLI_CLIENT_DUMP_INPUT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "cli/client/client.h"
#include "common/io/file_system.h"
#include "common/io/scratch_directory.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {

class DumpInput {
 public:
  // Of a run.
  struct Wanted {
    // The bytes of tensors, too.
    bool payloads = true;
    // Of a server: only the steps with this request, and only its rows.
    std::string request;
    // run:NAME@STEP/rankR is the directory of that rank; else that of the step,
    // which has the rank's name.
    bool rank_directory = true;
    // Number of the job that is read, where several have the run or the directory;
    // left out: the newest.
    std::optional<int64_t> job;
    // Asked at each piece that comes: true ends it, CANCELLED. Or empty.
    std::function<bool()> cancelled;
    // What is printed names the dump as the user did. Only for a process that
    // runs one command: such names are kept until it ends.
    bool is_for_output = true;
  };
  static absl::StatusOr<DumpInput> Open(FileSystem* file_system,
                                        const Globals& globals,
                                        const std::string& name,
                                        const Wanted& wanted);
  static absl::StatusOr<DumpInput> Open(FileSystem* file_system,
                                        const Globals& globals,
                                        const std::string& name) {
    return Open(file_system, globals, name, Wanted());
  }

  const std::string& path() const { return path_; }
  // The job that was asked for, of a directory.
  std::optional<int64_t> job() const { return job_; }
  // The dumps of the job that is read.
  absl::StatusOr<DumpLayout> Find() const {
    return FindDumps(file_system_, path_, job_);
  }

 private:
  DumpInput(FileSystem* file_system, std::string path)
      : file_system_(file_system), path_(std::move(path)) {}
  absl::Status Download(const Globals& globals, const std::string& run,
                        const std::string& place, const Wanted& wanted);

  FileSystem* const file_system_;
  std::string path_;
  // Of a directory: of a run it is chosen before the download.
  std::optional<int64_t> job_;
  // Of a run.
  std::optional<ScratchDirectory> scratch_;
};

// On standard error: which of several jobs is read. Nothing where there is one.
void PrintNote(const DumpLayout& dump);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_DUMP_INPUT_H_
