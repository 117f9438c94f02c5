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

// A file that the command is to find.
struct JobInputFile {
  std::string path;
  std::string content;
};

// A run that the server fetches for the command.
struct JobDump {
  std::string name;  // "run:NAME@STEP/rankR"
  // Where to: a directory that is not there yet. What `arguments` say in the
  // place of the dump.
  std::string path;
  // With the bytes of tensors.
  bool payloads = false;
  // The command wants the directory of the rank, not that of its step.
  bool rank_directory = true;
};

struct JobCommand {
  // Behind the program's name, without what says which collector to ask.
  std::vector<std::string> arguments;
  std::vector<JobInputFile> inputs;
  std::vector<JobDump> dumps;
  // Names a directory below the root.
  bool reads_root = false;
  // For people: no path of `directory` is in it.
  std::string text;
};

// What dumps a job may name.
struct JobSources {
  enum class Runs {
    // The command asks the collector itself.
    kAsked,
    // The server fetches them; the command sees nothing but files.
    kFetched,
    kNone,
  };
  Runs runs = Runs::kAsked;
  // The directory of "root:PATH", or why there is none. Empty: there is no root.
  std::function<absl::StatusOr<std::string>(absl::string_view path)> below_root;
};

// The command writes below `directory`/out, reads JobCommand.inputs below
// `directory`/in and JobCommand.dumps below `directory`/tmp. INVALID_ARGUMENT in
// one line: no such command or option, a value that is none, too much;
// FAILED_PRECONDITION: a source that this server has not.
absl::StatusOr<JobCommand> ToCommand(const v1::JobSpec& spec,
                                     const std::string& directory,
                                     const JobSources& sources = {});

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_JOBS_JOB_COMMANDS_H_
