// The verbs of `rankprobe`. Each Add* puts its sub-commands into the app and
// stores what to run; run() returns a status and may set an exit code of its
// own for partial success.
#ifndef RANKPROBE_CLI_VERBS_H_
#define RANKPROBE_CLI_VERBS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "cli/client.h"

namespace rankprobe {

struct Invocation {
  // Set by the chosen verb.
  std::function<absl::Status(const Globals&, int* exit_code)> run;
};

void AddReadVerbs(CLI::App* app, Globals* globals, Invocation* invocation);
void AddSwitchVerbs(CLI::App* app, Globals* globals, Invocation* invocation);
void AddStoreVerbs(CLI::App* app, Globals* globals, Invocation* invocation);
void AddLedgerVerb(CLI::App* app, Globals* globals, Invocation* invocation);
void AddWatchVerbs(CLI::App* app, Globals* globals, Invocation* invocation);
void AddExportVerb(CLI::App* app, Globals* globals, Invocation* invocation);
void AddAnalysisVerbs(CLI::App* app, Globals* globals, Invocation* invocation);
void AddFindVerbs(CLI::App* app, Globals* globals, Invocation* invocation);
void AddDivergenceVerb(CLI::App* app, Globals* globals, Invocation* invocation);
void AddGraphVerb(CLI::App* app, Globals* globals, Invocation* invocation);

// --json and --collector are legal after the verb too.
void AddGlobals(CLI::App* app, Globals* globals);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_VERBS_H_
