// SPDX-License-Identifier: Apache-2.0
// overflow_check.
#include "analysis/root_cause/overflow_check.h"

#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "analysis/root_cause/report_messages.h"
#include "cli/app.h"
#include "cli/client/dump_input.h"
#include "cli/flags/analysis_flags.h"
#include "cli/output/output.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

struct OverflowFlags {
  std::string input;
  // Empty: the answer on the terminal is all.
  std::string output;
  bool force = false;
};

absl::Status OverflowCheck(const Globals& globals, const OverflowFlags& flags) {
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  RP_ASSIGN_OR_RETURN(
      const DumpInput input,
      DumpInput::Open(file_system.get(), globals, flags.input,
                      {.payloads = false, .rank_directory = false}));
  RP_ASSIGN_OR_RETURN(const std::vector<analysis::OverflowOrigin> origins,
                      analysis::CheckOverflow(file_system.get(), input.path()));
  std::string path;
  // Nothing found, nothing written: as msprobe.
  if (!origins.empty() && !flags.output.empty()) {
    RP_ASSIGN_OR_RETURN(const OutputDirectory output,
                        OutputDirectory::Make(file_system.get(), flags.output));
    // msprobe's name, time_ns() included.
    path = absl::StrCat(output.path(), "/anomaly_analyze_",
                        absl::ToUnixNanos(SystemClock().Now()), ".json");
    RP_RETURN_IF_ERROR(
        WriteNewFile(file_system.get(), path, analysis::AnomalyJson(origins)));
  }
  if (globals.json) {
    PrintJson(ToJson(analysis::ToMessage(origins, path)));
    return absl::OkStatus();
  }
  if (origins.empty()) {
    Print(stdout, "No overflow was found in what was recorded.\n");
    return absl::OkStatus();
  }
  for (const analysis::OverflowOrigin& origin : origins) {
    Print(stdout, "rank %d: %s\n", origin.rank, origin.call);
  }
  if (!path.empty()) Print(stdout, "details: %s\n", path);
  return absl::OkStatus();
}

}  // namespace

void RegisterOverflowCheckCommand(CLI::App* app, Globals* globals,
                                  ParsedCommand* command) {
  CLI::App* const overflow = app->add_subcommand(
      "overflow_check",
      "where the first NaN or infinity came from, over ranks");
  AddGlobals(overflow, globals);
  auto overflow_flags = std::make_shared<OverflowFlags>();
  AddInput(overflow, "step", &overflow_flags->input,
           "a step directory with its ranks")
      ->required();
  overflow->add_option("-o,--output_path", overflow_flags->output,
                       "directory for the report; none is written without");
  AddForce(overflow, &overflow_flags->force);
  overflow->callback([command, overflow_flags] {
    command->run = [overflow_flags](const Globals& g, int*) {
      return OverflowCheck(g, *overflow_flags);
    };
  });
}

}  // namespace rankprobe
