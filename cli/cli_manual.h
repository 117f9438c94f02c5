// SPDX-License-Identifier: Apache-2.0
// Texts of the help and the man page of `rankprobe` beside its flags: what
// people come for, with the commands that answer it, examples, exit codes,
// environment. A new verb is listed here; cli_manual_test looks.
#ifndef RANKPROBE_CLI_CLI_MANUAL_H_
#define RANKPROBE_CLI_CLI_MANUAL_H_

#include "common/manual/manual.h"

namespace rankprobe {

Manual CliManual();

// The description of the app: a line, and what --help says below it.
const char* CliDescription();

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLI_MANUAL_H_
