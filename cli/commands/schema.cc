// SPDX-License-Identifier: Apache-2.0
// schema.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "cli/app.h"
#include "cli/output/answer_schema.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"

namespace rankprobe {

void RegisterSchemaCommand(CLI::App* app, ParsedCommand* command) {
  // AddGlobals is not needed, because no collector is called.
  CLI::App* const schema = app->add_subcommand(
      "schema",
      "print the JSON schema of what a command prints with --json\nWithout "
      "a command: the names of those that have one.");
  auto words = std::make_shared<std::vector<std::string>>();
  schema->add_option("COMMAND", *words, "diagnose, status, config get, ..");
  schema->callback([command, words] {
    command->run = [words](const Globals&, int*) -> absl::Status {
      std::string text = absl::StrJoin(CommandsWithSchema(), "\n") + "\n";
      if (!words->empty()) {
        RP_ASSIGN_OR_RETURN(text, AnswerSchema(absl::StrJoin(*words, " ")));
      }
      Print(stdout, "%s", Lines{text});
      return absl::OkStatus();
    };
  });
}

}  // namespace rankprobe
