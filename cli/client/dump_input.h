// SPDX-License-Identifier: Apache-2.0
// Source of a command's dump: a path, or `run:NAME` (`run:NAME@STEP`,
// `run:NAME@STEP/rankR`), a run in the archive, which is streamed into a
// temporary directory. The directory is deleted with the object. Not
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
  // Parts of a run to download.
  struct Wanted {
    // Includes the bytes of tensors.
    bool payloads = true;
    // For a server: only the steps with this request, and only its rows.
    std::string request;
    // If true, run:NAME@STEP/rankR opens the directory of that rank; otherwise
    // that of the step, which then contains only this rank.
    bool rank_directory = true;
    // Number of the job to read, if several share the run or the directory. If
    // unset, the newest is read.
    std::optional<int64_t> job;
    // Called for each message of the download. If it returns true, the download
    // ends with CANCELLED. May be empty.
    std::function<bool()> cancelled;
    // Output refers to the dump by the name that the user gave. Only for a
    // process that runs one command, because such names are kept until it ends.
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
  // The requested job, if the dump is a directory.
  std::optional<int64_t> job() const { return job_; }
  // Finds the dumps of the job.
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
  // Set only for a directory: for a run, the job is chosen before the download.
  std::optional<int64_t> job_;
  // Set only for a run.
  std::optional<ScratchDirectory> scratch_;
};

// Prints on standard error which of several jobs is read. Prints nothing if
// there is only one.
void PrintNote(const DumpLayout& dump);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_DUMP_INPUT_H_
