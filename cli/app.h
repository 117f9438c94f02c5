// SPDX-License-Identifier: Apache-2.0
// The commands of `rankprobe`. Each Register* function adds its sub-commands to
// the app and stores the function to run, which returns a status and may set
// its own exit code for partial success.
#ifndef RANKPROBE_CLI_APP_H_
#define RANKPROBE_CLI_APP_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/client/client.h"

namespace rankprobe {

struct ParsedCommand {
  // Set by the chosen command.
  std::function<absl::Status(const Globals&, int* exit_code)> run;
};

void RegisterRunCommands(CLI::App* app, Globals* globals,
                         ParsedCommand* command);
void RegisterStatusCommand(CLI::App* app, Globals* globals,
                           ParsedCommand* command);
void RegisterSwitchCommands(CLI::App* app, Globals* globals,
                            ParsedCommand* command);
void RegisterMonitorCommands(CLI::App* app, Globals* globals,
                             ParsedCommand* command);
void RegisterExportCommand(CLI::App* app, Globals* globals,
                           ParsedCommand* command);
void RegisterLedgerCommand(CLI::App* app, Globals* globals,
                           ParsedCommand* command);
void RegisterQueryCommand(CLI::App* app, Globals* globals,
                          ParsedCommand* command);
void RegisterScanCommand(CLI::App* app, Globals* globals,
                         ParsedCommand* command);
void RegisterDiagnoseCommand(CLI::App* app, Globals* globals,
                             ParsedCommand* command);
void RegisterViewCommand(CLI::App* app, Globals* globals,
                         ParsedCommand* command);
void RegisterArchiveCommands(CLI::App* app, Globals* globals,
                             ParsedCommand* command);
void RegisterDeliverCommand(CLI::App* app, Globals* globals,
                            ParsedCommand* command);
void RegisterCompareCommand(CLI::App* app, Globals* globals,
                            ParsedCommand* command);
void RegisterFirstDivergenceCommand(CLI::App* app, Globals* globals,
                                    ParsedCommand* command);
void RegisterOverflowCheckCommand(CLI::App* app, Globals* globals,
                                  ParsedCommand* command);
void RegisterConfigCheckCommand(CLI::App* app, Globals* globals,
                                ParsedCommand* command);
void RegisterReplicasCommand(CLI::App* app, Globals* globals,
                             ParsedCommand* command);
void RegisterGraphCommand(CLI::App* app, Globals* globals,
                          ParsedCommand* command);
void RegisterAccCheckCommand(CLI::App* app, Globals* globals,
                             ParsedCommand* command);
void RegisterAlignCommand(CLI::App* app, Globals* globals,
                          ParsedCommand* command);

void RegisterSchemaCommand(CLI::App* app, ParsedCommand* command);

void RegisterAttachCommand(CLI::App* app, ParsedCommand* command);

// Whether the verb is written in Python: run, isolate, check, doctor, sink,
// mcp.
bool IsPythonVerb(const std::string& verb);

// Replaces this process with Python running `rankprobe VERB ARGUMENTS` for such
// a verb. Returns only if this failed.
absl::Status BecomePython(const std::string& verb,
                          const std::vector<std::string>& arguments);

// Registers all commands in an app that has none yet.
void RegisterCommands(CLI::App* app, Globals* globals, ParsedCommand* command);

// Accepts --json and --collector also after the verb.
void AddGlobals(CLI::App* app, Globals* globals);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_APP_H_
