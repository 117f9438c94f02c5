// SPDX-License-Identifier: Apache-2.0
// The commands of `rankprobe`. Each Register* function adds its sub-commands to
// the app and stores the function to run, which returns a status and may set
// its own exit code for partial success.
#ifndef RANKPROBE_CLI_APP_H_
#define RANKPROBE_CLI_APP_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cli/client/client.h"

namespace rankprobe {

struct ParsedCommand {
  // Set by the chosen command.
  std::function<absl::Status(const Globals&, int* exit_code)> run;
};

// --json and --collector are legal after the verb too.
void AddGlobals(CLI::App* app, Globals* globals);

// What the Register* functions add their commands to.
class Registry {
 public:
  Registry(CLI::App* app, Globals* globals, ParsedCommand* command)
      : app_(app), globals_(globals), command_(command) {}

  // A command, and its flags as its options fill them, which live as long as the
  // app. `run(globals, flags)` or `run(globals, flags, exit_code)` does it.
  template <typename Flags, typename Run>
  std::pair<CLI::App*, Flags*> Add(const std::string& name,
                                   const std::string& description,
                                   Run run) const {
    const auto added = AddLocal<Flags>(name, description, std::move(run));
    AddGlobals(added.first, globals_);
    return added;
  }

  // One that asks no collector: without the flags that others share.
  template <typename Flags, typename Run>
  std::pair<CLI::App*, Flags*> AddLocal(const std::string& name,
                                        const std::string& description,
                                        Run run) const {
    CLI::App* const verb = app_->add_subcommand(name, description);
    const auto flags = std::make_shared<Flags>();
    verb->callback([command = command_, flags, run = std::move(run)] {
      command->run = [flags, run](const Globals& globals, int* exit_code) {
        if constexpr (std::is_invocable_v<Run, const Globals&, Flags&>) {
          return run(globals, *flags);
        } else {
          return run(globals, *flags, exit_code);
        }
      };
    });
    return {verb, flags.get()};
  }

  // One that only has commands of its own, and where those are added.
  Registry AddGroup(const std::string& name,
                    const std::string& description) const {
    CLI::App* const verb = app_->add_subcommand(name, description);
    verb->require_subcommand(1);
    return Registry(verb, globals_, command_);
  }

  CLI::App* app() const { return app_; }

 private:
  CLI::App* const app_;
  Globals* const globals_;
  ParsedCommand* const command_;
};

void RegisterRunCommands(const Registry& to);
void RegisterStatusCommand(const Registry& to);
void RegisterSwitchCommands(const Registry& to);
void RegisterMonitorCommands(const Registry& to);
void RegisterFlightCommands(const Registry& to);
void RegisterExportCommand(const Registry& to);
void RegisterLedgerCommand(const Registry& to);
void RegisterQueryCommand(const Registry& to);
void RegisterScanCommand(const Registry& to);
void RegisterDiagnoseCommand(const Registry& to);
void RegisterViewCommand(const Registry& to);
void RegisterArchiveCommands(const Registry& to);
void RegisterDeliverCommand(const Registry& to);
void RegisterCompareCommand(const Registry& to);
void RegisterFirstDivergenceCommand(const Registry& to);
void RegisterOverflowCheckCommand(const Registry& to);
void RegisterConfigCheckCommand(const Registry& to);
void RegisterReplicasCommand(const Registry& to);
void RegisterGraphCommand(const Registry& to);
void RegisterAccCheckCommand(const Registry& to);
void RegisterAlignCommand(const Registry& to);
void RegisterSchemaCommand(const Registry& to);
void RegisterAttachCommand(const Registry& to);

// Whether the verb is written in Python: run, isolate, check, doctor, sink,
// mcp.
bool IsPythonVerb(const std::string& verb);

// Replaces this process with Python running `rankprobe VERB ARGUMENTS` for such
// a verb. Returns only if this failed.
absl::Status BecomePython(const std::string& verb,
                          const std::vector<std::string>& arguments);

// Registers all commands in an app that has none yet.
void RegisterCommands(CLI::App* app, Globals* globals, ParsedCommand* command);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_APP_H_
