// SPDX-License-Identifier: Apache-2.0
// diagnose: one answer of all analyses.
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "analysis/calls/call_place.h"
#include "analysis/root_cause/divergence_groups.h"
#include "analysis/root_cause/first_divergence.h"
#include "analysis/run_card/run_card.h"
#include "cli/app.h"
#include "cli/client/aligned_dumps.h"
#include "cli/client/cache_faults.h"
#include "cli/client/choose_run.h"
#include "cli/client/dump_diagnosis.h"
#include "cli/client/dump_input.h"
#include "cli/client/request_diagnosis.h"
#include "cli/client/request_tokens.h"
#include "cli/client/run_jobs.h"
#include "cli/client/run_rules.h"
#include "cli/client/run_scan.h"
#include "cli/client/run_scope.h"
#include "cli/exit_codes.h"
#include "cli/flags/analysis_flags.h"
#include "cli/output/diagnosis_html.h"
#include "cli/output/diagnosis_report.h"
#include "cli/output/diagnosis_text.h"
#include "cli/output/ledger_text.h"
#include "cli/output/output.h"
#include "cli/output/run_card_text.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "common/text/ranges_text.h"
#include "common/text/shell_word.h"
#include "dump_format/dump_layout.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {
namespace {

using Finding = DiagnosisReport::Finding;

// Steps before and after that of a finding, in the command that shows it.
constexpr int64_t kStepsAround = 2;

struct DiagnoseFlags {
  std::string input;
  std::string reference;
  std::string html;
  // For a server: one request, and how a reference of another program is
  // aligned.
  AlignFlags align;
  std::optional<int64_t> job, reference_job;
  int limit = 5;
  bool force = false;
};

// Returns " --job 1", or an empty text.
std::string JobWords(const DiagnoseFlags& flags) {
  return flags.job.has_value() ? absl::StrCat(" --job ", *flags.job) : "";
}

// Returns " --job 1 --reference-job 2", or what was given of it.
std::string BothJobsWords(const DiagnoseFlags& flags) {
  return absl::StrCat(JobWords(flags), flags.reference_job.has_value()
                                           ? absl::StrCat(" --reference-job ",
                                                          *flags.reference_job)
                                           : "");
}

// Returns " --request r1 --rules vllm-llama". `request` is the id, or empty.
std::string RequestWords(const AlignFlags& align, const std::string& request) {
  if (request.empty()) return "";
  std::string words = absl::StrCat(" --request ", ShellWord(request));
  if (!align.rules.empty())
    absl::StrAppend(&words, " --rules ", ShellWord(align.rules));
  if (!align.options.reference_request.empty()) {
    absl::StrAppend(&words, " --reference_request ",
                    ShellWord(align.options.reference_request));
  }
  return words;
}

class Diagnosis {
 public:
  Diagnosis(const Globals& globals, FileSystem* file_system,
            const DiagnoseFlags& flags)
      : globals_(globals), file_system_(file_system), flags_(flags) {}

  absl::StatusOr<v1::DiagnoseReport> Run() {
    absl::string_view run = flags_.input;
    if (!flags_.align.options.request.empty()) {
      RP_RETURN_IF_ERROR(LookAtRequest());
    } else if (absl::ConsumePrefix(&run, "run:") &&
               !absl::StrContains(run, '@')) {
      RP_RETURN_IF_ERROR(LookAtRun(std::string(run)));
    } else {
      RP_ASSIGN_OR_RETURN(
          const DumpInput input,
          DumpInput::Open(
              file_system_, globals_, flags_.input,
              {.payloads = false, .rank_directory = false, .job = flags_.job}));
      RP_ASSIGN_OR_RETURN(
          ended_,
          DiagnoseDump(file_system_, {input.path(), flags_.input, flags_.job},
                       &report_));
      report_.Unjudged(
          "values over steps (what moved, vanished, parted or changed "
          "between steps): scan reads them from the records of a collector. Of "
          "a directory only the rules are judged, and only if task monitor "
          "recorded it",
          absl::StrCat(kMonitorCommand,
                       ", with RANKPROBE_COLLECTOR, then rankprobe diagnose "
                       "run:NAME"));
    }
    if (!flags_.reference.empty()) RP_RETURN_IF_ERROR(LookAtReference());
    v1::DiagnoseReport report = report_.Take();
    if (request_.has_value()) {
      for (Finding& finding : *report.mutable_findings()) {
        const std::string tokens = request_->TokensOf(finding.step());
        if (!tokens.empty())
          finding.set_what(
              absl::StrCat(finding.what(), "; ", tokens, " of the request"));
      }
    }
    bool has_cause = false;
    for (Finding& finding : *report.mutable_findings()) {
      finding.set_command(CommandOf(finding));
      if (finding.by() == "first-divergence" && has_cause) {
        finding.add_numbers(
            absl::StrCat("probably a consequence of the first finding (",
                         report.findings(0).by(), ", step ",
                         report.findings(0).step(), ")"));
        break;
      }
      has_cause |=
          absl::StartsWith(finding.by(), "rule: ") && finding.sure() == "exact";
    }
    return report;
  }
  const std::string& ended() const { return ended_; }

 private:
  static bool IsExact(analysis::ScanKind kind) {
    using Kind = analysis::ScanKind;
    return !IsMove(kind) && kind != Kind::kVanished;
  }
  static bool IsMove(analysis::ScanKind kind) {
    return kind == analysis::ScanKind::kMove ||
           kind == analysis::ScanKind::kRankMoves;
  }

  // Returns the step of a finding as commands for one step expect it:
  // "run:train@5", "dump/step5".
  std::string StepOf(const Finding& finding) const {
    absl::string_view run = flags_.input;
    if (absl::ConsumePrefix(&run, "run:")) {
      return absl::StrCat("run:", run.substr(0, run.rfind('@')), "@",
                          finding.step());
    }
    const std::string step =
        absl::StrCat(flags_.input, "/step", finding.step());
    return file_system_->Exists(step) ? step : flags_.input;
  }

  // Returns the command that prints the numbers of the finding again.
  std::string CommandOf(const Finding& finding) const {
    return absl::StrCat(
        "rankprobe ", WordsOf(finding),
        absl::StartsWith(flags_.input, "run:") &&
                !globals_.collector_in_environment &&
                globals_.collector != Globals().collector
            ? absl::StrCat(" --collector ", ShellWord(globals_.collector))
            : "");
  }
  std::string WordsOf(const Finding& finding) const {
    if (finding.by() == "first-divergence") {
      const AlignFlags& align = flags_.align;
      return absl::StrCat(
          "first-divergence ", ShellWord(flags_.input), " ",
          ShellWord(flags_.reference), BothJobsWords(flags_),
          align.rules.empty() ? "" : RequestWords(align, request_->id()));
    }
    // Only an earlier step shows that these ranks are replicas.
    if (finding.by() == "replicas" && finding.sure() != "exact")
      return absl::StrCat("replicas ", ShellWord(flags_.input));
    if (finding.by() == "replicas")
      return absl::StrCat("replicas ", ShellWord(StepOf(finding)));
    if (finding.by() == "overflow_check") {
      return absl::StrCat("overflow_check ", ShellWord(StepOf(finding)),
                          JobWords(flags_));
    }
    if (finding.by() == kTokenRule) {
      return absl::StrCat("diagnose ", ShellWord(flags_.input),
                          JobWords(flags_),
                          RequestWords(flags_.align, request_->id()));
    }
    if (finding.by() == kCacheRule) {
      absl::string_view run = flags_.input;
      return absl::ConsumePrefix(&run, "run:") && !request_.has_value()
                 ? absl::StrCat("events --run ", ShellWord(run))
                 : absl::StrCat("diagnose ", ShellWord(StepOf(finding)));
    }
    // Rules and scan need the complete run. Some steps before and after show a
    // move.
    absl::string_view run = flags_.input;
    if (!absl::ConsumePrefix(&run, "run:"))
      return absl::StrCat("diagnose ", ShellWord(flags_.input));
    return absl::StrCat(
        "query --run ", ShellWord(run.substr(0, run.rfind('@'))),
        " --of all --rows rank --from-step ",
        std::max<int64_t>(0, finding.step() - kStepsAround), " --to-step ",
        finding.step() + kStepsAround, " ", ShellWord(finding.name()));
  }

  absl::Status LookAtRequest() {
    if (!flags_.align.rules.empty() && flags_.reference.empty())
      return absl::InvalidArgumentError("--rules aligns a --reference");
    DumpInput::Wanted wanted;
    wanted.payloads = !flags_.reference.empty();
    wanted.rank_directory = false;
    wanted.request = flags_.align.options.request;
    wanted.job = flags_.job;
    RP_ASSIGN_OR_RETURN(DumpInput input, DumpInput::Open(file_system_, globals_,
                                                         flags_.input, wanted));
    target_.emplace(std::move(input));
    RP_ASSIGN_OR_RETURN(const DumpLayout layout, target_->Find());
    RP_ASSIGN_OR_RETURN(RequestInDump request,
                        RequestInDump::Find(file_system_, layout, flags_.input,
                                            flags_.align.options.request));
    request_.emplace(std::move(request));
    RP_RETURN_IF_ERROR(request_->Diagnose(file_system_, &report_));
    if (flags_.reference.empty()) {
      report_.UnjudgedYet(
          "whether its numbers are right: there is nothing to compare them "
          "with",
          absl::StrCat("rankprobe diagnose ", ShellWord(flags_.input),
                       " --request ", ShellWord(request_->id()),
                       " --reference DUMP, of the same request on a correct "
                       "server, or with --rules of the same tokens in "
                       "transformers (examples/vllm/reference.py)"));
    }
    return absl::OkStatus();
  }

  absl::Status LookAtRun(const std::string& run) {
    RunScanRequest request;
    request.run = run;
    RP_RETURN_IF_ERROR(ChooseJobOf(run, &request));
    RP_ASSIGN_OR_RETURN(
        const CacheFaults cache,
        AskCacheFaults(
            Client(globals_), run,
            job_.has_value() ? job_->incarnations : std::set<uint64_t>()));
    cache.AddTo(/*request=*/"", &report_);
    absl::StatusOr<RunScan> scanned = ScanRun(globals_, request);
    // The witness of a server's cache also reports steps that were not
    // recorded.
    if (absl::IsNotFound(scanned.status()) && !cache.faults.empty()) {
      report_.Unjudged(std::string(scanned.status().message()),
                       "rankprobe enable --run NAME");
      return absl::OkStatus();
    }
    RP_RETURN_IF_ERROR(scanned.status());
    const std::optional<Plan> plan = PlanOfRun(Client(globals_), run);
    scanned->is_monitored_whole = IsMonitoredWhole(scanned->input) ||
                                  (plan.has_value() && MonitorsWhole(*plan));
    const RunScan& scan = *scanned;
    std::optional<int64_t> non_finite;
    size_t fallen = 0;
    const std::vector<int64_t> skipped = StepsSkippedByScaler(scan.input);
    const size_t overflows = OverflowsOfScaler(scan.input, skipped);
    for (const analysis::ScanFinding& f : scan.findings) {
      if (overflows > 0 && f.kind == analysis::ScanKind::kNonFinite) continue;
      // Gradients and losses become small in a healthy training; values that
      // die are reported as vanished.
      if (IsMove(f.kind) && f.now < f.before) {
        ++fallen;
        continue;
      }
      report_.Add(absl::StrCat("scan: ", analysis::ScanKindText(f.kind)),
                  f.step, f.rank, f.name, ScanFindingText(f), IsExact(f.kind));
      if (f.kind == analysis::ScanKind::kNonFinite && !non_finite.has_value())
        non_finite = f.step;
    }
    const std::string scope =
        absl::StrCat(Counted(scan.input.values.size(), "value"), " over ",
                     Counted(scan.head.steps(), "recorded step"));
    if (!non_finite.has_value()) {
      report_.Healthy(absl::StrCat(
          "no NaN, and no infinity outside of masks, in ", scope,
          overflows == 0
              ? ""
              : absl::StrCat(", but for ", Counted(overflows, "gradient"),
                             " of steps that the GradScaler skipped "
                             "before it lowered the loss scale")));
    }
    if (fallen > 0) {
      report_.Healthy(absl::StrCat(
          Counted(fallen, "downward move"),
          ": a value that falls is not a fault by itself (rankprobe "
          "scan --run ",
          run, ")"));
    }
    const ScanScope seen = ScopeOf(scan.input);
    if (scan.findings.empty() && !seen.judged.empty()) {
      report_.Healthy(absl::StrCat("nothing ", absl::StrJoin(seen.judged, ", "),
                                   " in ", scope));
    }
    if (!seen.unjudged.empty()) {
      report_.Unjudged(
          absl::StrCat("whether anything ", absl::StrJoin(seen.unjudged, ", "),
                       ": ", scan.head.steps(), " recorded"),
          scan.is_monitored_whole ? "" : kMonitorCommand);
    }
    if (!scan.groups.empty())
      report_.Healthy(absl::StrCat("replicas were compared within ",
                                   Counted(scan.groups.size(), "group"),
                                   " of ranks, found from equal parameters"));
    JudgeScope(scan, skipped);
    RP_ASSIGN_OR_RETURN(
        ended_, ReadEndedRanks(Client(globals_), run,
                               job_.has_value() ? job_->incarnations
                                                : std::set<uint64_t>()));
    if (!ended_.empty()) {
      report_.UnjudgedYet(
          absl::StrCat("what was recorded last by processes that ended early, "
                       "killed or without a close(): ",
                       ended_),
          absl::StrCat("rankprobe ledger --run ", run));
    }
    RP_RETURN_IF_ERROR(LookAtRules(request, scan));
    report_.NameOwners(scan.input.values);
    if (non_finite.has_value())
      RP_RETURN_IF_ERROR(LookAtStep(run, *non_finite));
    return absl::OkStatus();
  }

  // If several jobs used the name, one of them is chosen.
  absl::Status ChooseJobOf(const std::string& run, RunScanRequest* request) {
    RP_ASSIGN_OR_RETURN(jobs_, ReadJobs(Client(globals_), run));
    RP_ASSIGN_OR_RETURN(
        JudgedJob judged,
        ChooseJob(
            run, jobs_, flags_.job,
            absl::StrCat("diagnose ", ShellWord(absl::StrCat("run:", run)))));
    for (std::string& note : judged.notes) report_.Note(std::move(note));
    for (auto& [what, command] : judged.unjudged)
      report_.UnjudgedYet(std::move(what), std::move(command));
    job_ = std::move(judged.only);
    if (job_.has_value())
      request->incarnations.assign(job_->incarnations.begin(),
                                   job_->incarnations.end());
    return absl::OkStatus();
  }

  void JudgeScope(const RunScan& scan, const std::vector<int64_t>& skipped) {
    if (!skipped.empty()) {
      report_.Note(absl::StrCat(
          "The GradScaler skipped the optimizer's step in ", skipped.size(),
          " of ", Counted(scan.head.steps(), "recorded step"), " (",
          RangesText(skipped),
          "), whose gradients are not finite: no parameter changed there"));
    }
    if (skipped.size() == scan.input.steps.size()) {
      report_.Unjudged(
          "parameters, updates and replicas: the optimizer took no step", "");
    } else if (!HasValuesOf(scan.input, "Parameter.") ||
               !HasValuesOf(scan.input, "Update.")) {
      report_.Unjudged(
          "parameters, updates and replicas: no parameter is recorded",
          scan.is_monitored_whole ? "" : kMonitorCommand);
    } else if (!scan.input.each_step || !FollowEachOther(scan.input.steps)) {
      report_.Unjudged(
          "whether parameters change between steps: not every step is "
          "recorded",
          kMonitorCommand);
    }
  }

  absl::Status LookAtRules(const RunScanRequest& request, const RunScan& scan) {
    RP_ASSIGN_OR_RETURN(RunRules rules, AskRules(globals_, request, scan));
    AddRules(std::move(rules), scan, &report_);
    return absl::OkStatus();
  }

  // Finds the call in a step that is known to be bad.
  absl::Status LookAtStep(const std::string& run, int64_t step) {
    const auto input = DumpInput::Open(
        file_system_, globals_, absl::StrCat("run:", run, "@", step),
        {.payloads = false, .rank_directory = false, .job = flags_.job});
    const std::string record = absl::StrCat(
        "rankprobe run --run NAME --config FILE --on -- PROGRAM, with "
        "\"step\": [",
        step, "] and \"level\": \"mix\" in FILE");
    if (!input.ok() || IsReplaced(step)) {
      report_.Unjudged(
          absl::StrCat("the call of step ", step, ": ",
                       input.ok() ? "a later job recorded the step again"
                                  : input.status().message()),
          record);
      return absl::OkStatus();
    }
    auto ranks = FindDumps(file_system_, input->path());
    if (ranks.ok()) LeaveOutOtherJobs(&*ranks);
    absl::StatusOr<OverflowLook> look = OverflowLook();
    if (ranks.ok())
      look = DiagnoseOverflow(file_system_, *ranks, step, &report_);
    if (!look.ok() || !look->is_made) {
      report_.Unjudged(absl::StrCat("which operator made it in step ", step,
                                    ": no recorded call does"),
                       record);
    }
    return absl::OkStatus();
  }

  // An export has the newest record of the step for each rank, which may be of
  // another job.
  void LeaveOutOtherJobs(DumpLayout* ranks) const {
    if (!job_.has_value()) return;
    std::erase_if(ranks->places, [&](const DumpPlace& place) {
      return !job_->places.contains(
          place.directory.substr(place.directory.rfind('/') + 1));
    });
  }
  // Whether a later job recorded the step again.
  bool IsReplaced(int64_t step) const {
    return job_.has_value() && absl::c_any_of(jobs_, [&](const RunJob& other) {
             return other.first_ns > job_->first_ns &&
                    other.steps.contains(step);
           });
  }

  static std::string GroundOf(const analysis::Divergence& d) {
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
      const DumpLayout& target, const DumpLayout& reference) {
    AlignFlags align = flags_.align;
    align.options.request = request_->id();
    RP_ASSIGN_OR_RETURN(
        const AlignedDumps aligned,
        AlignedDumps::Make(file_system_, align, target, reference));
    analysis::Tolerance tolerance;
    tolerance.two_programs = true;
    if (aligned.report().left_out > 0) {
      report_.UnjudgedYet(
          absl::StrCat(Counted(aligned.report().left_out, "value"),
                       " that could not be aligned with the reference"),
          absl::StrCat("rankprobe align ", ShellWord(flags_.input), " ",
                       ShellWord(flags_.reference), " --rules ",
                       ShellWord(align.rules), " (it lists them)"));
    }
    return analysis::FindDivergence(file_system_, aligned.target(),
                                    aligned.reference(), {}, tolerance);
  }

  absl::Status LookAtReference() {
    if (!target_.has_value()) {
      RP_ASSIGN_OR_RETURN(DumpInput input,
                          DumpInput::Open(file_system_, globals_, flags_.input,
                                          {.job = flags_.job}));
      target_.emplace(std::move(input));
    }
    const DumpInput& target = *target_;
    DumpInput::Wanted wanted;
    // On another server the request has the name that the client gave it.
    if (request_.has_value() && flags_.align.rules.empty())
      wanted.request = flags_.align.options.request;
    wanted.job = flags_.reference_job;
    RP_ASSIGN_OR_RETURN(
        const DumpInput reference,
        DumpInput::Open(file_system_, globals_, flags_.reference, wanted));
    // Two programs are not two runs of one experiment, so run cards do not
    // explain why they differ.
    const bool are_runs = flags_.align.rules.empty();
    RP_ASSIGN_OR_RETURN(DumpLayout target_dumps, target.Find());
    RP_ASSIGN_OR_RETURN(const DumpLayout reference_dumps, reference.Find());
    if (!reference_dumps.note.empty()) report_.Note(reference_dumps.note);
    if (are_runs && request_.has_value()) {
      // A directory has the steps of all requests.
      std::erase_if(target_dumps.places, [&](const DumpPlace& place) {
        return request_->TokensOf(analysis::StepOf(place)).empty();
      });
    }
    RP_ASSIGN_OR_RETURN(
        const analysis::DivergenceReport divergence,
        are_runs ? analysis::FindDivergence(file_system_, target_dumps,
                                            reference_dumps, {}, {})
                 : CompareAligned(target_dumps, reference_dumps));
    const analysis::DivergenceGroups groups =
        analysis::GroupOrigins(divergence.origins);
    bool is_first = true;
    for (const auto& group : groups.groups) {
      const analysis::Divergence& d = divergence.origins[group.origin];
      Finding* const finding = report_.Add(
          "first-divergence", d.step, d.rank, d.call,
          absl::StrCat(
              d.row, " differs from the reference; ", GroundOf(d),
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
                 file_system_, target_dumps, reference_dumps, divergence))
          finding->add_numbers(absl::StrCat("the runs differ in ", line));
      }
      const std::string followed = analysis::FollowedText(groups);
      if (!followed.empty()) finding->add_numbers(followed);
    }
    if (divergence.origins.empty()) {
      report_.Healthy(absl::StrCat("no difference from the reference in the ",
                                   Counted(divergence.calls_compared, "call"),
                                   " that both sides recorded"));
    }
    if (divergence.unseen.Any()) {
      report_.UnjudgedYet(
          "calls and values of one side only, or without numbers",
          absl::StrCat("rankprobe first-divergence ", flags_.input, " ",
                       flags_.reference, " (it lists them)"));
    }
    return absl::OkStatus();
  }

  const Globals& globals_;
  FileSystem* const file_system_;
  const DiagnoseFlags& flags_;
  DiagnosisReport report_;
  // The dump of `input`, if it was opened with its tensors, and the requested
  // request.
  std::optional<DumpInput> target_;
  std::optional<RequestInDump> request_;
  // For a run: its jobs, and the chosen one if it is not the only one.
  std::vector<RunJob> jobs_;
  std::optional<RunJob> job_;
  // For a run: its processes that ended without a goodbye.
  std::string ended_;
};

absl::Status WriteText(FileSystem* file_system, const std::string& path,
                       const std::string& text) {
  if (path == "-") {
    Print(stdout, "%s", Lines{text});
    return absl::OkStatus();
  }
  const auto file =
      file_system->OpenForWrite(path, FileSystem::OpenMode::kTruncate);
  if (!file.ok()) return absl::InvalidArgumentError(file.status().message());
  RP_RETURN_IF_ERROR((*file)->Append(text));
  return (*file)->Close();
}

absl::Status Diagnose(const Globals& globals, const DiagnoseFlags& flags,
                      int* exit_code) {
  if (globals.json && flags.html == "-") {
    return absl::InvalidArgumentError(
        "--json and --html - both want standard output");
  }
  const std::unique_ptr<FileSystem> file_system = OpenInputs(flags.force);
  Diagnosis diagnosis(globals, file_system.get(), flags);
  RP_ASSIGN_OR_RETURN(const v1::DiagnoseReport report, diagnosis.Run());
  // Unusual values are reported, but are not a fault by themselves.
  if (!report.findings().empty() && report.findings(0).sure() == "exact")
    *exit_code = kPartial;
  if (!flags.html.empty()) {
    const DiagnosisPage page = {
        .input = flags.input,
        .command = absl::StrCat(
            "rankprobe diagnose ", ShellWord(flags.input),
            flags.reference.empty() ? "" : " ",
            flags.reference.empty() ? "" : ShellWord(flags.reference),
            BothJobsWords(flags),
            RequestWords(flags.align, flags.align.options.request)),
        .ended = diagnosis.ended(),
        .time = absl::Now()};
    RP_RETURN_IF_ERROR(
        WriteText(file_system.get(), flags.html, DiagnosisHtml(report, page)));
  }
  if (globals.json) {
    PrintJson(ToJson(report));
  } else if (flags.html != "-") {
    PrintDiagnosis(report, diagnosis.ended(), flags.limit);
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterDiagnoseCommand(const Registry& to) {
  const auto [verb, flags] = to.Add<DiagnoseFlags>(
      "diagnose",

      "give one ranked answer: what went wrong first, where, how sure, "
      "and what was not recorded",
      Diagnose);
  AddInput(verb, "input", &flags->input,
           "run:NAME, run:NAME@STEP, or a step or dump directory")
      ->required();
  verb->add_option("--reference,reference", flags->reference,
                   "a correct run or dump to compare with");
  AddJobs(verb, &flags->job, &flags->reference_job);
  CLI::Option* const request =
      verb->add_option("--request", flags->align.options.request,
                       "of a server: only the steps of this request, by its id "
                       "or a part of it");
  CLI::Option* const rules =
      verb->add_option("--rules", flags->align.rules,
                       "align the reference, which is of another program, by "
                       "rules: a file, or vllm-llama, vllm-qwen2, vllm-mixtral")
          ->needs(request);
  verb->add_option("--reference_request",
                   flags->align.options.reference_request,
                   "with --rules: the request on the reference side")
      ->needs(rules);
  verb->add_option("--limit", flags->limit,
                   "maximum number of findings; 0: all; default 5")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--html", flags->html,
                   "write the answer as a page without a server, too; -: to "
                   "standard output");
  AddForce(verb, &flags->force);
}

}  // namespace rankprobe
