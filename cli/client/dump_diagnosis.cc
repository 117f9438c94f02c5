// SPDX-License-Identifier: Apache-2.0
#include "cli/client/dump_diagnosis.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "analysis/calls/call_place.h"
#include "analysis/root_cause/overflow_check.h"
#include "analysis/root_cause/replicas.h"
#include "analysis/run_card/run_card.h"
#include "cli/client/cache_faults.h"
#include "cli/client/dump_rules.h"
#include "cli/output/ledger_text.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "common/text/ranges_text.h"
#include "common/text/visible_text.h"
#include "dump_format/read_manifest.h"

namespace rankprobe {
namespace {

std::string RunOf(const JsonValue& manifest) {
  const JsonValue* const run = manifest.Find("run");
  return run != nullptr && run->is_string() ? std::string(run->text) : "";
}

int64_t StepOfPlace(absl::string_view place) {
  int64_t step = -1;
  absl::ConsumePrefix(&place, "step");
  return absl::SimpleAtoi(place.substr(0, place.find('/')), &step) ? step : -1;
}

int64_t FirstStepOf(const std::set<std::string>& places) {
  int64_t first = INT64_MAX;
  for (const std::string& place : places)
    first = std::min(first, StepOfPlace(place));
  return first;
}

int64_t LastStepOf(const std::set<std::string>& places) {
  int64_t last = -1;
  for (const std::string& place : places)
    last = std::max(last, StepOfPlace(place));
  return last;
}

// Returns the run that wrote each place that only an earlier run wrote. A run
// of the same name whose steps all precede those of the newest run is continued
// by it and is not listed.
std::map<std::string, std::string> EarlierPlaces(const JsonValue& manifest) {
  std::map<std::string, std::string> earlier;
  const JsonValue* const runs = manifest.Find("earlier_runs");
  if (runs == nullptr) return earlier;
  const std::set<std::string> newest = PlacesOfManifest(manifest);
  for (const JsonValue& run : runs->items()) {
    // The files of such a run were moved to a directory of their own.
    if (run.Find("directory") != nullptr) continue;
    const std::set<std::string> places = PlacesOfManifest(run);
    if (RunOf(run) == RunOf(manifest) &&
        LastStepOf(places) < FirstStepOf(newest))
      continue;
    for (const std::string& place : places) {
      if (!newest.contains(place)) earlier.emplace(place, RunOf(run));
    }
  }
  return earlier;
}

// Returns the directories of the ranks whose process ended without a close().
std::set<std::string> EndedRanksOf(const JsonValue& manifest) {
  std::set<std::string> ranks;
  const JsonValue* const gaps = manifest.Find("gaps");
  if (gaps == nullptr) return ranks;
  for (const JsonValue& gap : gaps->items()) {
    const JsonValue* const reason = gap.Find("reason");
    const JsonValue* const rank = gap.Find("rank");
    if (reason != nullptr && reason->is_string() &&
        reason->text == "NOT_HEARD_OF" && rank != nullptr && rank->is_string())
      ranks.emplace(rank->text);
  }
  return ranks;
}

class DumpDiagnosis {
 public:
  DumpDiagnosis(FileSystem* file_system, const DiagnosedDump& dump,
                DiagnosisReport* report)
      : file_system_(file_system), dump_(dump), report_(report) {}

  absl::Status Run() {
    RP_ASSIGN_OR_RETURN(DumpLayout layout,
                        FindDumps(file_system_, dump_.path, dump_.job));
    if (!layout.note.empty()) report_->Note(layout.note);
    if (layout.kind == DumpLayout::Kind::kSteps)
      RP_RETURN_IF_ERROR(ReadManifestOf(&layout));
    if (layout.places.empty()) return absl::OkStatus();
    std::map<int64_t, DumpLayout> steps;
    for (const DumpPlace& place : layout.places) {
      DumpLayout& step = steps[analysis::StepOf(place)];
      step.kind = layout.kind == DumpLayout::Kind::kSteps
                      ? DumpLayout::Kind::kRanks
                      : layout.kind;
      step.debug = layout.debug;
      step.path = layout.kind == DumpLayout::Kind::kSteps
                      ? absl::StrCat(layout.path, "/step", place.step)
                      : layout.path;
      step.places.push_back(place);
    }
    RP_ASSIGN_OR_RETURN(const CacheFaults cache,
                        ReadCacheFaults(file_system_, layout));
    cache.AddTo(/*request=*/"", report_);
    RP_RETURN_IF_ERROR(LookAtOverflows(steps));
    analysis::ReplicaOptions options;
    options.groups = analysis::ReplicasByCards(file_system_, layout);
    RP_RETURN_IF_ERROR(LookAtReplicas(steps, options));
    return DiagnoseDumpByRules(file_system_, layout, report_);
  }
  const std::string& ended() const { return ended_; }

 private:
  absl::Status ReadManifestOf(DumpLayout* layout) {
    JsonDocument document;
    RP_ASSIGN_OR_RETURN(const bool is_there,
                        ReadManifest(file_system_, layout->path, &document));
    if (!is_there) return absl::OkStatus();
    if (layout->jobs.empty())
      LeaveOutEarlierRuns(EarlierPlaces(document.root()), layout);
    for (const std::string& rank : EndedRanksOf(document.root())) {
      int64_t newest = -1;
      for (const DumpPlace& place : layout->places) {
        if (place.Name() == rank) newest = std::max(newest, place.step);
      }
      absl::StrAppend(&ended_, ended_.empty() ? "" : ", ",
                      EndedRankText(VisibleText(rank), newest));
    }
    return absl::OkStatus();
  }

  void LeaveOutEarlierRuns(const std::map<std::string, std::string>& earlier,
                           DumpLayout* layout) {
    std::map<std::string, std::vector<int64_t>> steps_of_run;
    std::erase_if(layout->places, [&](const DumpPlace& place) {
      const auto it =
          earlier.find(place.directory.substr(layout->path.size() + 1));
      if (it == earlier.end()) return false;
      std::vector<int64_t>& steps = steps_of_run[it->second];
      if (steps.empty() || steps.back() != place.step)
        steps.push_back(place.step);
      return true;
    });
    for (const auto& [run, steps] : steps_of_run) {
      report_->UnjudgedYet(
          absl::StrCat("steps ", RangesText(steps), " of an earlier job (run ",
                       run, "), which are in the same directory"),
          absl::StrCat("rankprobe diagnose ", layout->path, "/step",
                       steps.front(),
                       steps.size() > 1 ? " (each step by itself)" : ""));
    }
  }

  absl::Status LookAtOverflows(const std::map<int64_t, DumpLayout>& steps) {
    const int before = report_->findings();
    size_t calls = 0;
    for (const auto& [step, ranks] : steps) {
      RP_ASSIGN_OR_RETURN(const OverflowLook look,
                          DiagnoseOverflow(file_system_, ranks, step, report_));
      calls += look.calls;
      if (report_->findings() > before) return absl::OkStatus();
    }
    if (calls == 0) {
      report_->Unjudged(absl::StrCat("no call is recorded in ",
                                     Counted(steps.size(), "step")),
                        "rankprobe run --config FILE --on -- PROGRAM, with "
                        "\"level\": \"mix\" in FILE");
      return absl::OkStatus();
    }
    report_->Healthy(
        absl::StrCat("no call of ", Counted(steps.size(), "step"),
                     " makes a NaN or an infinity that later calls receive"));
    return absl::OkStatus();
  }

  absl::Status LookAtReplicas(const std::map<int64_t, DumpLayout>& steps,
                              const analysis::ReplicaOptions& options) {
    analysis::ReplicaReport sum;
    analysis::HeldAlike alike;
    bool any = false;
    for (const auto& [step, ranks] : steps) {
      // A process without a rank holds no replica.
      if (std::count_if(ranks.places.begin(), ranks.places.end(),
                        [](const DumpPlace& place) { return !place.process; }) <
          2)
        continue;
      any = true;
      RP_ASSIGN_OR_RETURN(
          const analysis::ReplicaReport replicas,
          analysis::CheckReplicas(file_system_, ranks, options, &alike));
      sum.rows_compared += replicas.rows_compared;
      sum.transfers_compared += replicas.transfers_compared;
      sum.collectives_compared += replicas.collectives_compared;
      sum.rows_of_shards += replicas.rows_of_shards;
      if (replicas.differences.empty()) continue;
      AddDifference(replicas);
      sum.differences = replicas.differences;
      break;
    }
    if (sum.rows_of_shards > 0) {
      report_->UnjudgedYet(
          absl::StrCat(Counted(sum.rows_of_shards, "parameter"),
                       " with values that differ between ranks: shards of one "
                       "tensor, or replicas that differed before the first "
                       "recorded step"),
          absl::StrCat("rankprobe replicas ", dump_.given,
                       " --groups 0,1 (if ranks 0 and 1 should hold the "
                       "same)"));
    }
    if (any && sum.differences.empty() &&
        sum.rows_compared + sum.transfers_compared + sum.collectives_compared >
            0) {
      report_->Healthy(absl::StrCat(
          "equal on the ranks: ", Counted(sum.rows_compared, "parameter"), ", ",
          Counted(sum.transfers_compared, "transfer"), " and ",
          Counted(sum.collectives_compared, "collective")));
    }
    return absl::OkStatus();
  }

  void AddDifference(const analysis::ReplicaReport& replicas) {
    // Differences that are certain come first.
    const auto certain =
        std::find_if(replicas.differences.begin(), replicas.differences.end(),
                     [](const analysis::ReplicaDifference& one) {
                       return !one.only_alike_before;
                     });
    const bool exact = certain != replicas.differences.end();
    const analysis::ReplicaDifference& d =
        exact ? *certain : replicas.differences.front();
    DiagnosisReport::Finding* const finding = report_->Add(
        "replicas", d.step, -1, d.row,
        absl::StrCat(analysis::ReplicaKindName(d.kind),
                     exact ? " that should be the same on these ranks is not ("
                           : " that was the same on these ranks in an earlier "
                             "step differs: replicas that parted, or parts of "
                             "the model that each rank has for itself (",
                     replicas.differences.size(), " in this step)"),
        exact);
    finding->set_module(d.module);
    finding->set_code_line(d.code_line);
    for (const auto& [ranks, content] : d.values) {
      finding->add_numbers(
          absl::StrCat("rank ", absl::StrJoin(ranks, ","), ": ", content));
    }
  }

  FileSystem* const file_system_;
  const DiagnosedDump& dump_;
  DiagnosisReport* const report_;
  // Ranks whose process ended early.
  std::string ended_;
};

}  // namespace

absl::StatusOr<std::string> DiagnoseDump(FileSystem* file_system,
                                         const DiagnosedDump& dump,
                                         DiagnosisReport* report) {
  DumpDiagnosis diagnosis(file_system, dump, report);
  RP_RETURN_IF_ERROR(diagnosis.Run());
  return diagnosis.ended();
}

absl::StatusOr<OverflowLook> DiagnoseOverflow(FileSystem* file_system,
                                              const DumpLayout& ranks,
                                              int64_t step,
                                              DiagnosisReport* report) {
  OverflowLook look;
  RP_ASSIGN_OR_RETURN(const analysis::OverflowFindings findings,
                      analysis::CheckOverflow(file_system, ranks, {}));
  for (const analysis::OverflowOrigin& origin : findings.found) {
    DiagnosisReport::Finding* const finding = report->Add(
        "overflow_check", step, origin.rank, origin.call,
        origin.made.empty() ? absl::StrCat("was given a NaN or an infinity: ",
                                           analysis::CameInText(origin))
                            : absl::StrCat("makes ", origin.made),
        true);
    look.is_made |= !origin.made.empty();
    finding->set_module(origin.module);
    finding->set_code_line(origin.code_line);
    for (const std::string& text : origin.inputs)
      finding->add_numbers(absl::StrCat("in  ", text));
    for (const std::string& text : origin.outputs)
      finding->add_numbers(absl::StrCat("out ", text));
  }
  look.calls = findings.calls;
  return look;
}

}  // namespace rankprobe
