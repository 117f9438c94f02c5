// SPDX-License-Identifier: Apache-2.0
// acc_check: PyTorch's kernels are run by a Python worker; this finds the dump
// and hands over.
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/app.h"
#include "cli/client/dump_input.h"
#include "cli/client/python_worker.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {
namespace {

// The dump.json of a run of the archive, of one step and rank.
absl::StatusOr<std::string> OnlyDump(FileSystem* file_system,
                                     const std::string& name,
                                     const std::string& path) {
  RP_ASSIGN_OR_RETURN(const DumpLayout layout, FindDumps(file_system, path));
  if (layout.places.size() == 1) {
    return layout.places[0].directory + "/dump.json";
  }
  if (layout.Steps().size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": has several steps; name one: ", name, "@", layout.Steps()[0]));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": has ", layout.places.size(),
                   " ranks; export it and name the dump.json of one of them"));
}

absl::Status AccCheck(const Globals& globals,
                      const std::vector<std::string>& arguments,
                      int* exit_code) {
  const std::unique_ptr<FileSystem> file_system = NewPosixFileSystem();
  std::vector<std::string> words;
  std::vector<DumpInput> inputs;  // kept until the worker has ended
  // The dump may stand by its place, as of other verbs.
  if (!arguments.empty() && !absl::StartsWith(arguments[0], "-"))
    words.emplace_back("-api_info");
  for (const std::string& argument : arguments) {
    if (absl::StartsWith(argument, "run:")) {
      RP_ASSIGN_OR_RETURN(DumpInput input, DumpInput::Open(file_system.get(),
                                                           globals, argument));
      RP_ASSIGN_OR_RETURN(words.emplace_back(),
                          OnlyDump(file_system.get(), argument, input.path()));
      inputs.push_back(std::move(input));
      continue;
    }
    // Spelt as the worker spells them.
    words.push_back(argument == "--result_csv_path"   ? "-csv_path"
                    : argument == "--save_error_data" ? "-save_error_data"
                    : argument == "--config_path"     ? "-config"
                                                      : argument);
  }
  if (globals.json) words.emplace_back("--json");
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<PythonWorker> worker,
                      PythonWorker::Start("rankprobe.acc_check", words,
                                          "acc_check needs Python with torch",
                                          PythonWorker::Input::kOurs));
  RP_ASSIGN_OR_RETURN(*exit_code, worker->Wait());
  return absl::OkStatus();
}

}  // namespace

void RegisterAccCheckCommand(CLI::App* app, Globals* globals,
                             ParsedCommand* command) {
  CLI::App* const acc_check = app->add_subcommand(
      "acc_check",
      "run the API calls of a dump again, in their own precision and a higher "
      "one\nNeeds Python with torch. -api_info takes run:NAME[@STEP] too, with "
      "--collector\nbefore the verb. Help of the worker: acc_check -- -h");
  AddGlobals(acc_check, globals);
  acc_check->prefix_command();
  acc_check->callback([command, acc_check] {
    const std::vector<std::string> rest = acc_check->remaining();
    command->run = [rest](const Globals& g, int* code) {
      return AccCheck(g, rest, code);
    };
  });
}

}  // namespace rankprobe
