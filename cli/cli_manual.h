// SPDX-License-Identifier: Apache-2.0
// Texts of the help and the man page of `rankprobe` besides its flags: the
// tasks of users with the commands for each, examples, exit codes, environment.
// Every verb must be listed here; cli_manual_test checks this.
#ifndef RANKPROBE_CLI_CLI_MANUAL_H_
#define RANKPROBE_CLI_CLI_MANUAL_H_

#include "common/manual/manual.h"

namespace rankprobe {

Manual CliManual();

// Returns the description of the app: one line, and the text that --help prints
// below it.
const char* CliDescription();

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLI_MANUAL_H_
