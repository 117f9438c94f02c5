// SPDX-License-Identifier: Apache-2.0
// Which commands of `rankprobe` a page may have done, and with which options:
// all that say what is asked, none that says where to write, whom to ask or as
// whom. Pure.
#ifndef RANKPROBE_WEB_JOBS_JOB_COMMANDS_H_
#define RANKPROBE_WEB_JOBS_JOB_COMMANDS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rankprobe/v1/jobs.pb.h"

namespace rankprobe {

// A file that the command is to find.
struct JobInputFile {
  std::string path;
  std::string content;
};

struct JobCommand {
  // Behind the program's name, without what says which collector to ask.
  std::vector<std::string> arguments;
  std::vector<JobInputFile> inputs;
  // For people: no path of `directory` is in it.
  std::string text;
};

// The command writes below `directory`/out, and reads JobCommand.inputs below
// `directory`/in. INVALID_ARGUMENT in one line: no such command or option, a
// value that is none, too much.
absl::StatusOr<JobCommand> ToCommand(const v1::JobSpec& spec,
                                     const std::string& directory);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_JOBS_JOB_COMMANDS_H_
