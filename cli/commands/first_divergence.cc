// SPDX-License-Identifier: Apache-2.0
// first-divergence.
#include "analysis/root_cause/first_divergence.h"

#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "analysis/calls/call_place.h"
#include "analysis/compare/mapping_files.h"
#include "analysis/root_cause/divergence_groups.h"
#include "analysis/root_cause/report_messages.h"
#include "cli/app.h"
#include "cli/client/aligned_dumps.h"
#include "cli/client/dump_input.h"
#include "cli/client/joined_runs.h"
#include "cli/client/live_capture.h"
#include "cli/exit_codes.h"
#include "cli/flags/analysis_flags.h"
#include "cli/flags/numbers.h"
#include "cli/output/output.h"
#include "cli/output/run_card_text.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"

namespace rankprobe {
namespace {

using analysis::Divergence;

constexpr int kShownFrames = 5;

struct DivergenceFlags {
  std::string target;
  std::string reference;
  std::string tolerance = "auto";
  std::string noise;
  analysis::MappingFiles mappings;
  std::string layer_mapping;
  const CLI::Option* layers = nullptr;
  bool live = false;
  bool force = false;
  std::optional<int64_t> job, reference_job;
  double wait_seconds = 60;
  AlignFlags align;
  LayoutFlags layout;
};

std::string Verdict(const Divergence& d) {
  // Values that cannot be equal have no distance; they are printed below.
  if (!std::isfinite(d.difference)) return "differs";
  std::string out = absl::StrFormat("relative difference %.3g", d.difference);
  if (d.tolerance > 0) {
    absl::StrAppendFormat(&out, ", %.3g times the tolerance of %.3g",
                          d.difference / d.tolerance, d.tolerance);
  }
  if (d.noise.has_value() && *d.noise > 0) {
    absl::StrAppendFormat(&out, ", %.3g times the noise floor",
                          d.difference / *d.noise);
  }
  return out;
}

// Returns the evidence for the answer.
std::string Ground(const Divergence& d) {
  if (d.is_argument)
    return "it is an argument that the program's code gives to this call";
  if (d.is_weight) return "it is a parameter: it differed before this call";
  if (!d.made_by.empty()) {
    return absl::StrCat(
        "in the target it is the output of ", d.made_by,
        ", which is the same in the reference: the reference changes it before "
        "this call, or passes another value");
  }
  if (d.from_outside) {
    return "no recorded call made this input differ: it came in from outside "
           "(a weight, a batch, a call that is not recorded)";
  }
  std::string out =
      absl::StrCat("its inputs match (", Counted(d.inputs_matched, "row"));
  if (d.inputs_close > 0) {
    absl::StrAppend(&out, "; ", d.inputs_close,
                    " more are within the tolerance and not equal: their "
                    "digests differ");
  }
  if (d.inputs_unknown > 0) {
    absl::StrAppend(&out, "; ", d.inputs_unknown,
                    " more could not be compared");
  }
  if (d.inputs_infinite > 0) {
    absl::StrAppend(&out, "; ", d.inputs_infinite,
                    " more hold an infinity, as a mask does, which hides all "
                    "their other elements from statistics: \"summary_mode\": "
                    "\"md5\" in config.json compares them");
  }
  return absl::StrCat(out, ")");
}

void PrintOrigin(const Divergence& d,
                 const analysis::DivergenceGroups::Group& group) {
  Print(stdout, "step %d%s rank %d: %s%s\n", d.step,
        d.reference_step == d.step
            ? ""
            : absl::StrCat(" (of the reference: step ", d.reference_step, ")"),
        d.rank, d.call, d.module.empty() ? "" : absl::StrCat(" in ", d.module));
  Print(stdout, "  %s %s\n", d.row, Verdict(d));
  Print(stdout, "  target: %s\n  reference: %s\n", d.target_values,
        d.reference_values);
  Print(stdout, "  %s\n", Ground(d));
  if (!d.unmade_inputs.empty()) {
    Print(stdout,
          "  no recorded call made %s: between %s and this call is one that is "
          "not recorded, and it may have put the elements in another order, "
          "which statistics do not show. Record it: \"risk_level\": \"ALL\" in "
          "config.json; and the order of elements: \"summary_mode\": \"md5\"\n",
          absl::StrJoin(d.unmade_inputs, ", "), d.gap_after);
  }
  int frames = 0;
  for (std::string frame : analysis::OwnFrames(d.stack)) {
    if (++frames > kShownFrames) break;
    for (char& c : frame) c = c == '\n' ? ' ' : c;
    Print(stdout, "  at %s\n", frame);
  }
  const std::set<int64_t>& others = group.other_ranks;
  if (!others.empty()) {
    Print(stdout,
          "  %s %s: the same call and value, with other numbers (--json has "
          "them)\n",
          others.size() == 1 ? "rank" : "ranks", absl::StrJoin(others, ","));
  }
  const std::string repeated = analysis::RepeatedText(group);
  if (!repeated.empty()) {
    Print(stdout, "  differs first in this step; %s (--json has them)\n",
          repeated);
  }
}

void PrintOrigins(const std::vector<Divergence>& origins) {
  const analysis::DivergenceGroups groups = analysis::GroupOrigins(origins);
  for (const auto& group : groups.groups)
    PrintOrigin(origins[group.origin], group);
  const std::string followed = analysis::FollowedText(groups);
  if (!followed.empty()) Print(stdout, "%s (--json has them)\n", followed);
}

void PrintDivergence(const analysis::DivergenceReport& report) {
  PrintOrigins(report.origins);
  for (const auto& c : report.carried) {
    Print(stdout, "step %d rank %d: %s brings in what differs on rank %d\n",
          c.step, c.rank, c.call.c_str(), c.from_rank);
  }
  for (const std::string& note : report.notes) Print(stdout, "%s\n", note);
  const analysis::Unseen& u = report.unseen;
  if (report.origins.empty() && report.carried.empty()) {
    Print(stdout, "No difference in the %s that both sides recorded%s.\n",
          Counted(report.calls_compared, "call"),
          report.calls_differing > 0 ? " that began in one of them" : "");
  }
  PrintExplanations(report.explanations);
  if (!u.Any()) return;
  Print(stdout,
        "Not seen: %s of the target only, %d of the reference side only, %s "
        "without a partner, %d without values, %d lost\n",
        Counted(u.only_in_target, "call"), u.only_in_reference,
        Counted(u.rows_without_partner, "row"), u.rows_without_values, u.lost);
  for (const std::string& text : u.examples)
    Print(stdout, "  %s\n", text.c_str());
}

absl::StatusOr<analysis::Tolerance> ToleranceOf(const DivergenceFlags& flags) {
  analysis::Tolerance tolerance;
  tolerance.noise = flags.noise;
  if (flags.tolerance == "auto") return tolerance;
  double value = 0;
  if (!absl::SimpleAtod(flags.tolerance, &value) || !(value >= 0) ||
      !std::isfinite(value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tolerance ", flags.tolerance,
                     ": expected auto or a finite number >= 0"));
  }
  tolerance.fixed = value;
  return tolerance;
}

absl::StatusOr<analysis::DivergenceReport> Report(
    FileSystem* file_system, const Globals& globals, const std::string& target,
    const std::string& reference, const DivergenceFlags& flags,
    const analysis::MatchOptions& match, const analysis::Tolerance& tolerance) {
  RP_ASSIGN_OR_RETURN(
      const DumpInput n,
      DumpInput::Open(file_system, globals, target, {.job = flags.job}));
  RP_ASSIGN_OR_RETURN(const DumpInput b,
                      DumpInput::Open(file_system, globals, reference,
                                      {.job = flags.reference_job}));
  RP_ASSIGN_OR_RETURN(const DumpLayout dump, n.Find());
  RP_ASSIGN_OR_RETURN(const DumpLayout other, b.Find());
  PrintNote(dump);
  PrintNote(other);
  if (flags.layout.join()) {
    RP_ASSIGN_OR_RETURN(const JoinedRuns joined,
                        JoinedRuns::Make(file_system, flags.layout, dump, other,
                                         globals.json ? stderr : stdout));
    return analysis::FindDivergence(file_system, joined.target(),
                                    joined.reference(), match, tolerance);
  }
  if (flags.align.rules.empty()) {
    HintAtLayout(flags.layout, dump, other);
    RP_ASSIGN_OR_RETURN(
        analysis::DivergenceReport report,
        analysis::FindDivergence(file_system, dump, other, match, tolerance));
    if (report.calls_differing > 0 || !report.origins.empty())
      report.explanations = ExplanationsOf(file_system, dump, other, report);
    return report;
  }
  RP_ASSIGN_OR_RETURN(
      const AlignedDumps aligned,
      AlignedDumps::Make(file_system, flags.align, dump, other));
  PrintAligned(globals.json ? stderr : stdout, aligned.report());
  analysis::Tolerance of_two = tolerance;
  of_two.two_programs = true;
  return analysis::FindDivergence(file_system, aligned.target(),
                                  aligned.reference(), match, of_two);
}

// Returns NAME for "run:NAME@STEP", and an empty text for a path.
std::string RunOf(absl::string_view input) {
  if (!absl::ConsumePrefix(&input, "run:")) return "";
  return std::string(input.substr(0, input.rfind('@')));
}

struct Captured {
  int64_t step = -1;  // none: nothing differed
  std::string target;
  // Unset if the reference side is not in progress.
  std::optional<analysis::DivergenceReport> report;
};

// Records the calls of a report again, in full, on the next step that all runs
// in progress can reach.
absl::StatusOr<Captured> CaptureOrigins(
    FileSystem* file_system, const Globals& globals,
    const DivergenceFlags& flags, const analysis::MatchOptions& match,
    analysis::Tolerance tolerance, const analysis::DivergenceReport& report) {
  Captured captured;
  LiveRun target{RunOf(flags.target), {}};
  LiveRun reference{RunOf(flags.reference), {}};
  for (const Divergence& d : report.origins) {
    const auto add = [](const std::string& call, LiveRun* run) {
      if (call.empty() || absl::c_linear_search(run->calls, call)) {
        return;
      }
      run->calls.push_back(call);
    };
    add(d.call, &target);
    add(d.reference_call, &reference);
  }
  if (target.calls.empty()) return captured;
  const Client client(globals);
  std::vector<LiveRun> runs = {target};
  bool both = !reference.run.empty() && reference.run != target.run;
  if (both) {
    RP_ASSIGN_OR_RETURN(both, IsLive(client, reference.run));
  }
  if (both) runs.push_back(reference);
  RP_ASSIGN_OR_RETURN(captured.step,
                      CaptureCalls(client, runs, flags.wait_seconds));
  captured.target = absl::StrCat("run:", target.run, "@", captured.step);
  if (!both) return captured;
  tolerance.noise.clear();  // measured on other steps
  RP_ASSIGN_OR_RETURN(
      captured.report,
      Report(file_system, globals, captured.target,
             absl::StrCat("run:", reference.run, "@", captured.step), flags,
             match, tolerance));
  // The directory of a single step does not give the step's number.
  for (Divergence& d : captured.report->origins) d.step = captured.step;
  for (auto& c : captured.report->carried) c.step = captured.step;
  return captured;
}

void PrintCaptured(const Captured& captured) {
  if (captured.step < 0) {
    Print(stdout, "No call to record again.\n");
    return;
  }
  Print(stdout, "\nRecorded in full: %s\n", captured.target.c_str());
  if (captured.report.has_value()) {
    PrintDivergence(*captured.report);
  } else {
    Print(stdout,
          "The reference is not a run in progress, so there is nothing to "
          "compare with.\n");
  }
}

absl::Status FirstDivergence(const Globals& globals, DivergenceFlags& flags,
                             int* exit_code) {
  if (flags.layers->count() > 0) flags.mappings.layers = flags.layer_mapping;
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  if (!flags.align.rules.empty() && (flags.live || !flags.noise.empty())) {
    return absl::InvalidArgumentError(
        "--rules cannot be combined with --live or --noise, because it "
        "compares the aligned dumps");
  }
  if (!flags.align.rules.empty() && flags.mappings.layers.has_value()) {
    return absl::InvalidArgumentError(
        "--rules cannot be combined with --layer_mapping, because it compares "
        "the aligned dumps");
  }
  RP_RETURN_IF_ERROR(CheckLayoutFlags(
      flags.layout, !flags.align.rules.empty()          ? "--rules"
                    : flags.mappings.layers.has_value() ? "--layer_mapping"
                    : flags.live                        ? "--live"
                    : !flags.noise.empty()              ? "--noise"
                                                        : ""));
  RP_ASSIGN_OR_RETURN(const analysis::MatchOptions match,
                      ReadMappingFiles(file_system.get(), flags.mappings));
  RP_ASSIGN_OR_RETURN(const analysis::Tolerance tolerance, ToleranceOf(flags));
  if (flags.live && RunOf(flags.target).empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--live records calls of a run in progress; ",
                     flags.target, " is not a run:NAME"));
  }
  RP_ASSIGN_OR_RETURN(const analysis::DivergenceReport report,
                      Report(file_system.get(), globals, flags.target,
                             flags.reference, flags, match, tolerance));
  if (!report.origins.empty() || !report.carried.empty() ||
      report.calls_differing > 0 || report.unseen.Any()) {
    *exit_code = kPartial;
  }
  if (!globals.json) PrintDivergence(report);
  Captured captured;
  if (flags.live) {
    std::fflush(stdout);
    RP_ASSIGN_OR_RETURN(captured,
                        CaptureOrigins(file_system.get(), globals, flags, match,
                                       tolerance, report));
  }
  if (!globals.json) {
    if (flags.live) PrintCaptured(captured);
    return absl::OkStatus();
  }
  v1::DivergenceReport message = analysis::ToMessage(report);
  if (captured.step >= 0) {
    v1::DivergenceReport::Captured& again = *message.mutable_captured();
    again.set_step(captured.step);
    again.set_target(captured.target);
    if (captured.report.has_value())
      *again.mutable_report() = analysis::ToMessage(*captured.report);
  }
  PrintJson(ToJson(message));
  return absl::OkStatus();
}

}  // namespace

void RegisterFirstDivergenceCommand(const Registry& to) {
  const auto [divergence, flags] = to.Add<DivergenceFlags>(
      "first-divergence",
      "find the first calls whose outputs differ while their inputs match",
      FirstDivergence);
  AddTarget(divergence, &flags->target, "the dump in question")->required();
  AddReference(divergence, &flags->reference, "the dump to compare with")
      ->required();
  divergence->add_option("--tolerance", flags->tolerance,
                         "auto (from dtype and sum lengths), or a relative "
                         "difference");
  divergence->add_option(
      "--noise", flags->noise,
      "a dump that repeats the reference one: its distance is "
      "the noise floor");
  divergence->add_flag("--fuzzy_match", flags->mappings.fuzzy,
                       "-fm: match calls in order, whatever their numbers");
  AddApiMapping(divergence, &flags->mappings.apis);
  flags->layers = AddLayerMapping(divergence, &flags->layer_mapping);
  AddForce(divergence, &flags->force);
  AddJobs(divergence, &flags->job, &flags->reference_job);
  AddAlignFlags(divergence, &flags->align);
  AddLayoutFlags(divergence, &flags->layout);
  divergence->add_flag("--live", flags->live,
                       "ask the collector to record the calls that are found "
                       "again, with their tensors, on the next step");
  divergence
      ->add_option("--wait", flags->wait_seconds,
                   "seconds to wait for that step")
      ->check(NumberWithin(0.1, 3600.0));
}

}  // namespace rankprobe
