// SPDX-License-Identifier: Apache-2.0
// align.
#include "analysis/align/align.h"

#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/app.h"
#include "cli/client/aligned_dumps.h"
#include "cli/client/dump_input.h"
#include "cli/exit_codes.h"
#include "cli/flags/analysis_flags.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

struct AlignVerbFlags {
  std::string target;
  std::string reference;
  std::string output;
  bool force = false;
  AlignFlags align;
};

absl::Status Align(const Globals& globals, const AlignVerbFlags& flags,
                   int* exit_code) {
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  RP_ASSIGN_OR_RETURN(
      const analysis::AlignRules rules,
      analysis::ReadAlignRules(file_system.get(), flags.align.rules));
  RP_ASSIGN_OR_RETURN(
      const DumpInput n,
      DumpInput::Open(file_system.get(), globals, flags.target));
  RP_ASSIGN_OR_RETURN(
      const DumpInput b,
      DumpInput::Open(file_system.get(), globals, flags.reference));
  RP_ASSIGN_OR_RETURN(const OutputDirectory output,
                      OutputDirectory::Make(file_system.get(), flags.output));
  for (const char* const side : {"/target", "/reference"}) {
    if (file_system->Exists(output.path() + side)) {
      return absl::AlreadyExistsError(
          absl::StrCat(output.path(), side, " is there"));
    }
  }
  absl::StatusOr<analysis::AlignReport> report =
      analysis::AlignDumps(file_system.get(), n.path(), b.path(), rules,
                           flags.align.options, output.path());
  if (!report.ok()) {
    // Both are ours: neither was there before.
    for (const char* const side : {"/target", "/reference"}) {
      if (file_system->Exists(output.path() + side)) {
        (void)file_system->DeleteTree(output.path() + side);
      }
    }
    return report.status();
  }
  PrintAligned(stdout, *report);
  Print(stdout, "%s/target, %s/reference\n", output.path(), output.path());
  if (report->left_out > 0) *exit_code = kPartial;
  return absl::OkStatus();
}

}  // namespace

void RegisterAlignCommand(CLI::App* app, Globals* globals,
                          ParsedCommand* command) {
  CLI::App* const verb = app->add_subcommand(
      "align",
      "align a dump with a reference of another program (vLLM, "
      "transformers)");
  AddGlobals(verb, globals);
  auto flags = std::make_shared<AlignVerbFlags>();
  AddTarget(verb, &flags->target, "the dump in question")->required();
  AddReference(verb, &flags->reference, "the dump to compare with")->required();
  AddAlignFlags(verb, &flags->align);
  verb->get_option("--rules")->required();
  verb->add_option("-o,--output_path", flags->output,
                   "directory for the two dumps, target and reference")
      ->required();
  AddForce(verb, &flags->force);
  verb->callback([command, flags] {
    command->run = [flags](const Globals& g, int* code) {
      return Align(g, *flags, code);
    };
  });
}

}  // namespace rankprobe
