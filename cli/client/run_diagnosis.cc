// SPDX-License-Identifier: Apache-2.0
#include "cli/client/run_diagnosis.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/client/cache_faults.h"
#include "cli/client/choose_run.h"
#include "cli/client/dump_diagnosis.h"
#include "cli/client/dump_input.h"
#include "cli/client/run_jobs.h"
#include "cli/client/run_rules.h"
#include "cli/client/run_scan.h"
#include "cli/client/run_scope.h"
#include "cli/output/diagnosis_text.h"
#include "cli/output/ledger_text.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "common/text/ranges_text.h"
#include "common/text/shell_word.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {
namespace {

class RunDiagnosis {
 public:
  RunDiagnosis(const Globals& globals, FileSystem* file_system,
               const DiagnosedRun& asked, DiagnosisReport* report)
      : globals_(globals),
        file_system_(file_system),
        asked_(asked),
        report_(report) {}

  absl::StatusOr<std::string> Diagnose() {
    const std::string& run = asked_.run;
    RunScanRequest request;
    request.run = run;
    RP_RETURN_IF_ERROR(ChooseJobOf(run, &request));
    RP_ASSIGN_OR_RETURN(
        const CacheFaults cache,
        AskCacheFaults(
            Client(globals_), run,
            job_.has_value() ? job_->incarnations : std::set<uint64_t>()));
    cache.AddTo(/*request=*/"", report_);
    absl::StatusOr<RunScan> scanned = ScanRun(globals_, request);
    // The witness of a server's cache also reports steps that were not
    // recorded.
    if (absl::IsNotFound(scanned.status()) && !cache.faults.empty()) {
      report_->Unjudged(std::string(scanned.status().message()),
                        "rankprobe enable --run NAME");
      return std::string();
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
      report_->Add(absl::StrCat("scan: ", analysis::ScanKindText(f.kind)),
                   f.step, f.rank, f.name, ScanFindingText(f), IsExact(f.kind));
      if (f.kind == analysis::ScanKind::kNonFinite && !non_finite.has_value())
        non_finite = f.step;
    }
    const std::string scope =
        absl::StrCat(Counted(scan.input.values.size(), "value"), " over ",
                     Counted(scan.head.steps(), "recorded step"));
    if (!non_finite.has_value()) {
      report_->Healthy(absl::StrCat(
          "no NaN, and no infinity outside of masks, in ", scope,
          overflows == 0
              ? ""
              : absl::StrCat(", but for ", Counted(overflows, "gradient"),
                             " of steps that the GradScaler skipped "
                             "before it lowered the loss scale")));
    }
    if (fallen > 0) {
      report_->Healthy(absl::StrCat(
          Counted(fallen, "downward move"),
          ": a value that falls is not a fault by itself (rankprobe "
          "scan --run ",
          run, ")"));
    }
    const ScanScope seen = ScopeOf(scan.input);
    if (scan.findings.empty() && !seen.judged.empty()) {
      report_->Healthy(absl::StrCat(
          "nothing ", absl::StrJoin(seen.judged, ", "), " in ", scope));
    }
    if (!seen.unjudged.empty()) {
      report_->Unjudged(
          absl::StrCat(
              "whether anything ", absl::StrJoin(seen.unjudged, ", "), ": ",
              scan.head.steps(), " are recorded",
              FollowEachOther(scan.input.steps) ? "" : ", not all successive"),
          scan.is_monitored_whole ? "" : kMonitorCommand);
    }
    if (!scan.groups.empty())
      report_->Healthy(absl::StrCat("replicas were compared within ",
                                    Counted(scan.groups.size(), "group"),
                                    " of ranks, found from equal parameters"));
    NoteTrainings(scan, report_);
    JudgeScope(scan, skipped);
    RP_ASSIGN_OR_RETURN(
        std::string ended,
        ReadEndedRanks(
            Client(globals_), run,
            job_.has_value() ? job_->incarnations : std::set<uint64_t>()));
    if (!ended.empty()) {
      report_->UnjudgedYet(
          absl::StrCat("what was recorded last by processes that ended early, "
                       "killed or without a close(): ",
                       ended),
          absl::StrCat("rankprobe ledger --run ", run));
    }
    RP_RETURN_IF_ERROR(LookAtRules(request, scan));
    report_->NameOwners(scan.input.values);
    if (non_finite.has_value())
      RP_RETURN_IF_ERROR(LookAtStep(run, *non_finite));
    return ended;
  }

 private:
  static bool IsExact(analysis::ScanKind kind) {
    using Kind = analysis::ScanKind;
    return !IsMove(kind) && kind != Kind::kVanished;
  }
  static bool IsMove(analysis::ScanKind kind) {
    return kind == analysis::ScanKind::kMove ||
           kind == analysis::ScanKind::kRankMoves;
  }

  // If several jobs used the name, one of them is chosen.
  absl::Status ChooseJobOf(const std::string& run, RunScanRequest* request) {
    RP_ASSIGN_OR_RETURN(jobs_, ReadJobs(Client(globals_), run));
    RP_ASSIGN_OR_RETURN(
        JudgedJob judged,
        ChooseJob(
            run, jobs_, asked_.job,
            absl::StrCat("diagnose ", ShellWord(absl::StrCat("run:", run)))));
    for (std::string& note : judged.notes) report_->Note(std::move(note));
    for (auto& [what, command] : judged.unjudged)
      report_->UnjudgedYet(std::move(what), std::move(command));
    job_ = std::move(judged.only);
    if (job_.has_value())
      request->incarnations.assign(job_->incarnations.begin(),
                                   job_->incarnations.end());
    return absl::OkStatus();
  }

  void JudgeScope(const RunScan& scan, const std::vector<int64_t>& skipped) {
    if (!skipped.empty()) {
      report_->Note(absl::StrCat(
          "The GradScaler skipped the optimizer's step in ", skipped.size(),
          " of ", Counted(scan.head.steps(), "recorded step"), " (",
          RangesText(skipped),
          "), whose gradients are not finite: no parameter changed there"));
    }
    if (skipped.size() == scan.input.steps.size()) {
      report_->Unjudged(
          "parameters, updates and replicas: the optimizer took no step", "");
    } else if (!HasValuesOf(scan.input, "Parameter.") ||
               !HasValuesOf(scan.input, "Update.")) {
      report_->Unjudged(
          "parameters, updates and replicas: no parameter is recorded",
          scan.is_monitored_whole ? "" : kMonitorCommand);
    } else if (!scan.input.each_step || !FollowEachOther(scan.input.steps)) {
      report_->Unjudged(
          "whether parameters change between steps: not every step is "
          "recorded",
          kMonitorCommand);
    }
  }

  absl::Status LookAtRules(const RunScanRequest& request, const RunScan& scan) {
    RP_ASSIGN_OR_RETURN(RunRules rules, AskRules(globals_, request, scan));
    AddRules(std::move(rules), scan, report_);
    return absl::OkStatus();
  }

  // Finds the call in a step that is known to be bad.
  absl::Status LookAtStep(const std::string& run, int64_t step) {
    const auto input = DumpInput::Open(
        file_system_, globals_, absl::StrCat("run:", run, "@", step),
        {.payloads = false, .rank_directory = false, .job = asked_.job});
    const std::string record = absl::StrCat(
        "rankprobe run --run NAME --config FILE --on -- PROGRAM, with "
        "\"step\": [",
        step, "] and \"level\": \"mix\" in FILE");
    if (!input.ok() || IsReplaced(step)) {
      report_->Unjudged(
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
      look = DiagnoseOverflow(file_system_, *ranks, step, report_);
    if (!look.ok() || !look->is_made) {
      report_->Unjudged(absl::StrCat("which operator made it in step ", step,
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

  const Globals& globals_;
  FileSystem* const file_system_;
  const DiagnosedRun& asked_;
  DiagnosisReport* const report_;
  // The jobs of the run, and the chosen one if it is not the only one.
  std::vector<RunJob> jobs_;
  std::optional<RunJob> job_;
};

}  // namespace

absl::StatusOr<std::string> DiagnoseRun(const Globals& globals,
                                        FileSystem* file_system,
                                        const DiagnosedRun& asked,
                                        DiagnosisReport* report) {
  return RunDiagnosis(globals, file_system, asked, report).Diagnose();
}

}  // namespace rankprobe
