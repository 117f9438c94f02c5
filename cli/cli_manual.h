// SPDX-License-Identifier: Apache-2.0
// Texts of the help and the man page of `rankprobe` beside its flags: the tasks
// of users with the commands for each, examples, exit codes, environment. List
// a new verb here; cli_manual_test checks this.
#ifndef RANKPROBE_CLI_CLI_MANUAL_H_
#define RANKPROBE_CLI_CLI_MANUAL_H_

#include "common/manual/manual.h"

namespace rankprobe {

Manual CliManual();

// The description of the app: a line, and what --help says below it.
const char* CliDescription();

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLI_MANUAL_H_
