// SPDX-License-Identifier: Apache-2.0
#include "cli/client/reference_diagnosis.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/calls/call_place.h"
#include "analysis/root_cause/divergence_groups.h"
#include "analysis/root_cause/first_divergence.h"
#include "analysis/run_card/run_card.h"
#include "cli/output/run_card_text.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "common/text/shell_word.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {
namespace {

std::string GroundOf(const analysis::Divergence& d) {
  if (d.is_argument) return "an argument that the code gives";
  if (!d.made_by.empty()) {
    return absl::StrCat("it is the output of ", d.made_by,
                        ", which is the same in the reference: between the "
                        "two calls the programs differ");
  }
  if (d.from_outside)
    return "it came in from outside (a weight, a batch, a call that is not "
           "recorded)";
  if (d.inputs_infinite > 0) {
    return absl::StrCat("its inputs match, but for ", d.inputs_infinite,
                        d.inputs_infinite == 1 ? " that holds" : " that hold",
                        " an infinity (a mask), which statistics do not "
                        "distinguish from another");
  }
  return "the statistics of its inputs match";
}

// Compares dumps of two programs.
absl::StatusOr<analysis::DivergenceReport> CompareAligned(
    FileSystem* file_system, const ComparedDumps& compared,
    const DumpLayout& target, const DumpLayout& reference,
    DiagnosisReport* report) {
  AlignFlags align = compared.align;
  align.options.request = compared.request->id();
  RP_ASSIGN_OR_RETURN(
      const AlignedDumps aligned,
      AlignedDumps::Make(file_system, align, target, reference));
  analysis::Tolerance tolerance;
  tolerance.two_programs = true;
  if (aligned.report().left_out > 0) {
    report->UnjudgedYet(
        absl::StrCat(Counted(aligned.report().left_out, "value"),
                     " that could not be aligned with the reference"),
        absl::StrCat("rankprobe align ", ShellWord(compared.input), " ",
                     ShellWord(compared.reference), " --rules ",
                     ShellWord(align.rules), " (it lists them)"));
  }
  return analysis::FindDivergence(file_system, aligned.target(),
                                  aligned.reference(), {}, tolerance);
}

}  // namespace

absl::Status DiagnoseReference(const Globals& globals, FileSystem* file_system,
                               const ComparedDumps& compared,
                               DiagnosisReport* report) {
  DumpInput::Wanted wanted;
  // On another server the request has the name that the client gave it.
  if (compared.request != nullptr && compared.align.rules.empty())
    wanted.request = compared.align.options.request;
  wanted.job = compared.reference_job;
  RP_ASSIGN_OR_RETURN(
      const DumpInput reference,
      DumpInput::Open(file_system, globals, compared.reference, wanted));
  // Two programs are not two runs of one experiment, so run cards do not
  // explain why they differ.
  const bool are_runs = compared.align.rules.empty();
  RP_ASSIGN_OR_RETURN(DumpLayout target_dumps, compared.target.Find());
  RP_ASSIGN_OR_RETURN(const DumpLayout reference_dumps, reference.Find());
  if (!reference_dumps.note.empty()) report->Note(reference_dumps.note);
  if (are_runs && compared.request != nullptr) {
    // A directory has the steps of all requests.
    std::erase_if(target_dumps.places, [&](const DumpPlace& place) {
      return compared.request->TokensOf(analysis::StepOf(place)).empty();
    });
  }
  RP_ASSIGN_OR_RETURN(const analysis::DivergenceReport divergence,
                      are_runs
                          ? analysis::FindDivergence(file_system, target_dumps,
                                                     reference_dumps, {}, {})
                          : CompareAligned(file_system, compared, target_dumps,
                                           reference_dumps, report));
  const analysis::DivergenceGroups groups =
      analysis::GroupOrigins(divergence.origins);
  bool is_first = true;
  for (const auto& group : groups.groups) {
    const analysis::Divergence& d = divergence.origins[group.origin];
    DiagnosisReport::Finding* const finding = report->Add(
        "first-divergence", d.step, d.rank, d.call,
        absl::StrCat(d.row, " differs from the reference; ", GroundOf(d),
                     group.other_ranks.empty()
                         ? ""
                         : absl::StrCat("; the same on rank ",
                                        absl::StrJoin(group.other_ranks, ","))),
        d.unmade_inputs.empty());
    finding->set_module(d.module);
    finding->set_code_line(d.code_line);
    finding->add_numbers(absl::StrCat("target    ", d.target_values));
    finding->add_numbers(absl::StrCat("reference ", d.reference_values));
    const std::string repeated = analysis::RepeatedText(group);
    if (!repeated.empty())
      finding->add_numbers(
          absl::StrCat("differs first in this step; ", repeated));
    if (!std::exchange(is_first, false)) continue;
    if (are_runs) {
      for (const std::string& line : ExplanationsOf(
               file_system, target_dumps, reference_dumps, divergence))
        finding->add_numbers(absl::StrCat("the runs differ in ", line));
    }
    const std::string followed = analysis::FollowedText(groups);
    if (!followed.empty()) finding->add_numbers(followed);
  }
  if (divergence.origins.empty()) {
    report->Healthy(absl::StrCat("no difference from the reference in the ",
                                 Counted(divergence.calls_compared, "call"),
                                 " that both sides recorded"));
  }
  if (divergence.unseen.Any()) {
    report->UnjudgedYet(
        "calls and values of one side only, or without numbers",
        absl::StrCat("rankprobe first-divergence ", compared.input, " ",
                     compared.reference, " (it lists them)"));
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
