// SPDX-License-Identifier: Apache-2.0
// schema.
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "cli/app.h"
#include "cli/output/answer_schema.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"

namespace rankprobe {

void RegisterSchemaCommand(const Registry& to) {
  const auto [schema, words] = to.AddLocal<std::vector<std::string>>(
      "schema",
      "print the JSON schema of what a command prints with --json\nWithout "
      "a command: the names of those that have one.",
      [](const Globals&,
         const std::vector<std::string>& command) -> absl::Status {
        std::string text = absl::StrJoin(CommandsWithSchema(), "\n") + "\n";
        if (!command.empty()) {
          RP_ASSIGN_OR_RETURN(text, AnswerSchema(absl::StrJoin(command, " ")));
        }
        Print(stdout, "%s", Lines{text});
        return absl::OkStatus();
      });
  schema->add_option("COMMAND", *words, "diagnose, status, config get, ..");
}

}  // namespace rankprobe
