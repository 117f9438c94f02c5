// SPDX-License-Identifier: Apache-2.0
// align.
#include "analysis/align/align.h"

#include <cstdio>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "cli/app.h"
#include "cli/client/aligned_dumps.h"
#include "cli/client/dump_input.h"
#include "cli/exit_codes.h"
#include "cli/flags/analysis_flags.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {
namespace {

struct AlignVerbFlags {
  std::string target;
  std::string reference;
  std::string output;
  std::optional<int64_t> job, reference_job;
  bool force = false;
  AlignFlags align;
};

v1::AlignReport ToMessage(const analysis::AlignReport& report) {
  v1::AlignReport out;
  out.set_request(report.request);
  out.set_reference_request(report.reference_request);
  for (const analysis::AlignReport::Step& step : report.steps) {
    v1::AlignReport::Step& made = *out.add_steps();
    made.set_step(step.step);
    made.mutable_reference_steps()->Assign(step.reference_steps.begin(),
                                           step.reference_steps.end());
    made.set_begin(step.begin);
    made.set_end(step.end);
  }
  out.set_rows(report.rows);
  out.set_without_rule(report.without_rule);
  out.set_left_out(report.left_out);
  out.mutable_examples()->Assign(report.examples.begin(),
                                 report.examples.end());
  return out;
}

absl::Status Align(const Globals& globals, const AlignVerbFlags& flags,
                   int* exit_code) {
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  RP_ASSIGN_OR_RETURN(
      const analysis::AlignRules rules,
      analysis::ReadAlignRules(file_system.get(), flags.align.rules));
  RP_ASSIGN_OR_RETURN(const DumpInput n,
                      DumpInput::Open(file_system.get(), globals, flags.target,
                                      {.job = flags.job}));
  RP_ASSIGN_OR_RETURN(
      const DumpInput b,
      DumpInput::Open(file_system.get(), globals, flags.reference,
                      {.job = flags.reference_job}));
  RP_ASSIGN_OR_RETURN(const DumpLayout target_dumps, n.Find());
  RP_ASSIGN_OR_RETURN(const DumpLayout reference_dumps, b.Find());
  PrintNote(target_dumps);
  PrintNote(reference_dumps);
  RP_ASSIGN_OR_RETURN(const OutputDirectory output,
                      OutputDirectory::Make(file_system.get(), flags.output));
  for (const char* const side : {"/target", "/reference"}) {
    if (file_system->Exists(output.path() + side)) {
      return absl::AlreadyExistsError(
          absl::StrCat(output.path(), side, " is there"));
    }
  }
  absl::StatusOr<analysis::AlignReport> report =
      analysis::AlignDumps(file_system.get(), target_dumps, reference_dumps,
                           rules, flags.align.options, output.path());
  if (!report.ok()) {
    // Both did not exist before, so this command created them.
    for (const char* const side : {"/target", "/reference"}) {
      if (file_system->Exists(output.path() + side)) {
        (void)file_system->DeleteTree(output.path() + side);
      }
    }
    return report.status();
  }
  if (report->left_out > 0) *exit_code = kPartial;
  const std::string target = absl::StrCat(output.path(), "/target");
  const std::string made_of = absl::StrCat(output.path(), "/reference");
  if (globals.json) {
    v1::AlignReport message = ToMessage(*report);
    message.set_target(target);
    message.set_reference(made_of);
    PrintJson(ToJson(message));
    return absl::OkStatus();
  }
  PrintAligned(stdout, *report);
  Print(stdout, "%s, %s\n", target, made_of);
  return absl::OkStatus();
}

}  // namespace

void RegisterAlignCommand(const Registry& to) {
  const auto [verb, flags] = to.Add<AlignVerbFlags>(
      "align",
      "align a dump with a reference of another program (vLLM, "
      "transformers)",
      Align);
  AddTarget(verb, &flags->target, "the dump in question")->required();
  AddReference(verb, &flags->reference, "the dump to compare with")->required();
  AddAlignFlags(verb, &flags->align);
  verb->get_option("--rules")->required();
  verb->add_option("-o,--output_path", flags->output,
                   "directory for the two dumps, target and reference")
      ->required();
  AddJobs(verb, &flags->job, &flags->reference_job);
  AddForce(verb, &flags->force);
}

}  // namespace rankprobe
