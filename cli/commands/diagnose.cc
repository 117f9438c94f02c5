// SPDX-License-Identifier: Apache-2.0
// diagnose: one answer of all analyses.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cli/app.h"
#include "cli/client/cache_faults.h"
#include "cli/client/dump_diagnosis.h"
#include "cli/client/dump_input.h"
#include "cli/client/reference_diagnosis.h"
#include "cli/client/request_diagnosis.h"
#include "cli/client/request_tokens.h"
#include "cli/client/run_diagnosis.h"
#include "cli/client/run_scope.h"
#include "cli/exit_codes.h"
#include "cli/flags/analysis_flags.h"
#include "cli/output/diagnosis_html.h"
#include "cli/output/diagnosis_report.h"
#include "cli/output/diagnosis_text.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
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
      RP_ASSIGN_OR_RETURN(
          ended_, DiagnoseRun(globals_, file_system_,
                              {std::string(run), flags_.job}, &report_));
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

  absl::Status LookAtReference() {
    if (!target_.has_value()) {
      RP_ASSIGN_OR_RETURN(DumpInput input,
                          DumpInput::Open(file_system_, globals_, flags_.input,
                                          {.job = flags_.job}));
      target_.emplace(std::move(input));
    }
    return DiagnoseReference(
        globals_, file_system_,
        {*target_, flags_.input, flags_.reference, flags_.reference_job,
         flags_.align, request_.has_value() ? &*request_ : nullptr},
        &report_);
  }

  const Globals& globals_;
  FileSystem* const file_system_;
  const DiagnoseFlags& flags_;
  DiagnosisReport report_;
  // The dump of `input`, if it was opened with its tensors, and the requested
  // request.
  std::optional<DumpInput> target_;
  std::optional<RequestInDump> request_;
  // The processes that ended without a goodbye.
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
