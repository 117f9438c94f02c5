// SPDX-License-Identifier: Apache-2.0
// overflow_check.
#include "analysis/root_cause/overflow_check.h"

#include <cstdio>
#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/root_cause/report_messages.h"
#include "cli/app.h"
#include "cli/client/dump_input.h"
#include "cli/exit_codes.h"
#include "cli/flags/analysis_flags.h"
#include "cli/output/output.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Values shown for each side; --json prints all.
constexpr size_t kShownValues = 6;

struct OverflowFlags {
  std::string input;
  std::string only;
  // If empty, the answer is only printed.
  std::string output;
  bool force = false;
  std::optional<int64_t> job;
};

void PrintList(const char* title, const std::vector<std::string>& list) {
  for (size_t i = 0; i < list.size(); ++i) {
    if (i >= kShownValues) {
      Print(stdout, "  %s %d more: --json\n", title, list.size() - i);
      return;
    }
    Print(stdout, "  %s %s\n", title, list[i]);
  }
}

void PrintOrigin(const analysis::OverflowOrigin& origin) {
  Print(stdout, "rank %d: %s%s\n", origin.rank, origin.call,
        origin.module.empty() ? "" : absl::StrCat(" in ", origin.module));
  if (origin.made.empty()) {
    Print(stdout, "  %s\n", analysis::CameInText(origin));
  } else {
    Print(stdout, "  made %s\n", origin.made);
  }
  if (!origin.code_line.empty()) Print(stdout, "  at  %s\n", origin.code_line);
  if (origin.chain.size() > 1)
    Print(stdout, "  under %s\n", absl::StrJoin(origin.chain, " > "));
  PrintList("in ", origin.inputs);
  PrintList("out", origin.outputs);
}

absl::Status OverflowCheck(const Globals& globals, const OverflowFlags& flags,
                           int* exit_code) {
  analysis::OverflowKinds kinds;
  kinds.nan = flags.only != "inf";
  kinds.infinity = flags.only != "nan";
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  RP_ASSIGN_OR_RETURN(
      const DumpInput input,
      DumpInput::Open(
          file_system.get(), globals, flags.input,
          {.payloads = false, .rank_directory = false, .job = flags.job}));
  RP_ASSIGN_OR_RETURN(const DumpLayout layout, input.Find());
  PrintNote(layout);
  // The run was exported to a temporary directory, whose path the user does not
  // know, so the message names the run.
  if (absl::StartsWith(flags.input, "run:") && layout.Steps().size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        flags.input, ": has several steps; name one, such as ",
        flags.input.substr(0, flags.input.rfind('@')), "@", layout.Steps()[0],
        "; `rankprobe diagnose ", flags.input, "` finds the first bad one"));
  }
  RP_ASSIGN_OR_RETURN(
      const analysis::OverflowFindings findings,
      analysis::CheckOverflow(file_system.get(), layout, kinds));
  if (!findings.found.empty()) *exit_code = kPartial;
  std::string path;
  // As in msprobe, nothing is written if nothing is found.
  if (!findings.found.empty() && !flags.output.empty()) {
    RP_ASSIGN_OR_RETURN(const OutputDirectory output,
                        OutputDirectory::Make(file_system.get(), flags.output));
    // msprobe's file name, with time_ns().
    path = absl::StrCat(output.path(), "/anomaly_analyze_",
                        absl::ToUnixNanos(SystemClock().Now()), ".json");
    RP_RETURN_IF_ERROR(WriteNewFile(file_system.get(), path,
                                    analysis::AnomalyJson(findings.found)));
  }
  if (PrintIf(globals.json, analysis::ToMessage(findings, path)))
    return absl::OkStatus();
  for (const analysis::OverflowOrigin& origin : findings.found)
    PrintOrigin(origin);
  if (!findings.found.empty()) {
    if (!path.empty()) Print(stdout, "details: %s\n", path);
    return absl::OkStatus();
  }
  Print(stdout, "%s.\n",
        findings.calls == 0 ? "No call is recorded there"
                            : "No overflow was found in what was recorded");
  if (findings.ended.empty()) return absl::OkStatus();
  Print(stdout,
        "Made and removed again within the step; not a fault if intended:\n");
  for (const analysis::OverflowOrigin& origin : findings.ended)
    PrintOrigin(origin);
  return absl::OkStatus();
}

}  // namespace

void RegisterOverflowCheckCommand(const Registry& to) {
  const auto [overflow, overflow_flags] = to.Add<OverflowFlags>(
      "overflow_check",
      "find the call that made the first NaN or infinity, over all ranks",
      OverflowCheck);
  AddInput(overflow, "step", &overflow_flags->input,
           "a step directory with its ranks")
      ->required();
  overflow->add_option(
      "-o,--output_path", overflow_flags->output,
      "directory for the report; without it no report is written");
  overflow
      ->add_option("--only", overflow_flags->only,
                   "nan or inf: search only for these")
      ->check(CLI::IsMember({"nan", "inf"}));
  AddForce(overflow, &overflow_flags->force);
  AddJob(overflow, &overflow_flags->job);
}

}  // namespace rankprobe
