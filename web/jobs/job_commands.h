// SPDX-License-Identifier: Apache-2.0
// Commands of `rankprobe`, with options, that a page may run. Options that
// describe the analysis are allowed; options that choose an output path, a
// collector or credentials are not. Pure.
#ifndef RANKPROBE_WEB_JOBS_JOB_COMMANDS_H_
#define RANKPROBE_WEB_JOBS_JOB_COMMANDS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rankprobe/v1/jobs.pb.h"

namespace rankprobe {

// A file that the command expects.
struct JobInputFile {
  std::string path;
  std::string content;
};

// A run that the server fetches for the command.
struct JobDump {
  std::string name;  // "run:NAME@STEP/rankR"
  // Destination: a directory that does not exist yet. `arguments` contain this
  // path instead of the dump's name.
  std::string path;
  // The job's directory. A writer that outlives a cancelled job deletes it.
  std::string directory;
  // Includes the bytes of tensors.
  bool payloads = false;
  // The command expects the directory of the rank, not that of its step.
  bool rank_directory = true;
};

struct JobCommand {
  // The words after the program's name, without those that select the
  // collector.
  std::vector<std::string> arguments;
  std::vector<JobInputFile> inputs;
  std::vector<JobDump> dumps;
  // A dump is a directory below the root.
  bool reads_root = false;
  // The command as shown to people, without paths of `directory`.
  std::string text;
};

// Sources of the dumps that a job may name.
struct JobSources {
  enum class Runs {
    // The command calls the collector itself.
    kAsked,
    // The server fetches them; the command can read only files.
    kFetched,
    kNone,
  };
  Runs runs = Runs::kAsked;
  // Returns the directory of "root:PATH", or why there is none. Empty if there
  // is not a root.
  std::function<absl::StatusOr<std::string>(absl::string_view path)> below_root;
};

// Converts a job into a command, which writes below `directory`/out and reads
// JobCommand.inputs below `directory`/in and JobCommand.dumps below
// `directory`/tmp. Returns INVALID_ARGUMENT with one line for an unknown
// command or option, an invalid value or too much input; FAILED_PRECONDITION
// for a source that this server does not have.
absl::StatusOr<JobCommand> ToCommand(const v1::JobSpec& spec,
                                     const std::string& directory,
                                     const JobSources& sources = {});

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_JOBS_JOB_COMMANDS_H_
