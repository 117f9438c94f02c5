// SPDX-License-Identifier: Apache-2.0
// The JSON schema of the lines that a command prints with --json. `rankprobe
// schema` and the tests use the same table of messages. Constant data.
#ifndef RANKPROBE_CLI_OUTPUT_ANSWER_SCHEMA_H_
#define RANKPROBE_CLI_OUTPUT_ANSWER_SCHEMA_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

// Returns the commands that print JSON, in the order of the help: "status",
// "config get".
std::vector<std::string> CommandsWithSchema();

// Returns the indented JSON schema, draft 2020-12, of each line that the
// command prints, or NOT_FOUND if it does not print JSON.
absl::StatusOr<std::string> AnswerSchema(absl::string_view command);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_ANSWER_SCHEMA_H_
