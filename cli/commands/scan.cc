// SPDX-License-Identifier: Apache-2.0
// scan: the first fault of a run, by the norms of its values over steps.
#include "analysis/scan/scan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/app.h"
#include "cli/client/away_notes.h"
#include "cli/client/run_jobs.h"
#include "cli/client/run_scan.h"
#include "cli/exit_codes.h"
#include "cli/flags/analysis_flags.h"
#include "cli/flags/ranges.h"
#include "cli/output/output.h"
#include "cli/output/sparkline.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "common/text/shell_word.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {
namespace {

constexpr size_t kPlotColumns = 40;
// Steps before and after that of a finding, in the command that continues the
// search.
constexpr int64_t kStepsAround = 2;

struct ScanFlags {
  std::string run, match, ranks;
  std::optional<int64_t> from_step, to_step, job;
  size_t window = analysis::ScanOptions().window;
  double factor = analysis::ScanOptions().factor;
  size_t limit = 20;
};

// The sign of a NaN is not significant.
std::string NumberText(double value) {
  return std::isnan(value) ? "nan" : absl::StrFormat("%.5g", value);
}

std::string WhatText(const analysis::ScanFinding& finding) {
  switch (finding.kind) {
    case analysis::ScanKind::kNonFinite:
      return NumberText(finding.now);
    case analysis::ScanKind::kRanksPart:
    case analysis::ScanKind::kNotAlike:
      if (!finding.of_group.empty()) {
        return absl::StrCat(NumberText(finding.before), " to ",
                            NumberText(finding.now), " over ranks ",
                            absl::StrJoin(finding.of_group, ","));
      }
      return absl::StrCat(NumberText(finding.before), " to ",
                          NumberText(finding.now), " over ranks");
    case analysis::ScanKind::kNoMore:
      return "";
    default:
      return absl::StrCat(NumberText(finding.before), " -> ",
                          NumberText(finding.now));
  }
}

std::string PlotOf(const analysis::ScanSeries& series) {
  std::vector<std::optional<double>> numbers;
  for (const analysis::ScanCell& cell : series.cells) {
    numbers.emplace_back(cell.count > 0 ? std::optional(cell.largest)
                                        : std::nullopt);
  }
  return Sparkline(numbers, kPlotColumns);
}

void PrintFindings(const ScanFlags& flags, const analysis::ScanInput& input,
                   const v1::GridHead& head,
                   const std::vector<analysis::ScanFinding>& found) {
  Table table({"STEP", "WHAT", "VALUE", "RANK", "NORM", "OTHERS", "STEPS"});
  for (size_t i = 0; i < found.size(); ++i) {
    if (flags.limit > 0 && i >= flags.limit) break;
    const analysis::ScanFinding& finding = found[i];
    table.Add({absl::StrCat(finding.step),
               std::string(analysis::ScanKindText(finding.kind)), finding.name,
               finding.rank < 0 ? "-" : absl::StrCat(finding.rank),
               WhatText(finding), absl::StrCat(finding.others),
               PlotOf(input.values[finding.value])});
  }
  if (!found.empty()) Print(stdout, "%s", Lines{table.ToText()});
  if (flags.limit > 0 && found.size() > flags.limit)
    Print(stdout, "%d more: --limit 0\n", found.size() - flags.limit);
  Print(stdout, "%s in %s over %s", Counted(found.size(), "finding"),
        Counted(input.values.size(), "value"),
        Counted(head.steps(), "recorded step"));
  if (head.steps_per_column() > 1)
    Print(stdout, ", %d steps together", head.steps_per_column());
  Print(stdout, "\n");
  if (input.steps.size() < 2 * analysis::ScanOptions().least) {
    Print(stdout,
          "too few steps: the usual range of a value needs at least %d of "
          "them; task "
          "monitor records them throughout a training\n",
          analysis::ScanOptions().least + 1);
  }
  if (found.empty()) return;
  Print(stdout,
        "Next: rankprobe query --run %s --of all --rows rank --from-step %d "
        "--to-step %d '%s'\n",
        flags.run, std::max<int64_t>(0, found[0].step - kStepsAround),
        found[0].step + kStepsAround, found[0].name);
  Print(stdout, "      rankprobe export --run %s --steps %d -o DIR\n",
        flags.run, found[0].step);
}

absl::Status Scan(const Globals& globals, const ScanFlags& flags,
                  int* exit_code) {
  RunScanRequest request;
  request.run = flags.run;
  request.match = flags.match;
  request.from_step = flags.from_step;
  request.to_step = flags.to_step;
  request.window = flags.window;
  request.factor = flags.factor;
  RP_ASSIGN_OR_RETURN(request.ranks, ParseRanges("--ranks", flags.ranks));
  RP_ASSIGN_OR_RETURN(const std::vector<RunJob> jobs,
                      ReadJobs(Client(globals), flags.run));
  RP_ASSIGN_OR_RETURN(
      const JudgedJob judged,
      ChooseJob(flags.run, jobs, flags.job,
                absl::StrCat("scan --run ", ShellWord(flags.run))));
  if (judged.only.has_value())
    request.incarnations.assign(judged.only->incarnations.begin(),
                                judged.only->incarnations.end());
  for (const std::string& note : judged.notes)
    Print(globals.json ? stderr : stdout, "%s.\n", note);
  RP_ASSIGN_OR_RETURN(const RunScan scan, ScanRun(globals, request));
  const v1::GridHead& head = scan.head;
  const analysis::ScanInput& input = scan.input;
  const std::vector<analysis::ScanFinding>& found = scan.findings;
  if (!found.empty() || SaidAway()) *exit_code = kPartial;
  if (!globals.json) {
    PrintFindings(flags, input, head, found);
    return absl::OkStatus();
  }
  v1::ScanReport report;
  report.set_steps(head.steps());
  report.set_values(input.values.size());
  for (const analysis::ScanFinding& finding : found) {
    v1::ScanReport::Finding* const out = report.add_findings();
    out->set_kind(std::string(analysis::ScanKindText(finding.kind)));
    out->set_step(finding.step);
    out->set_name(finding.name);
    if (finding.rank >= 0) out->set_rank(finding.rank);
    out->set_now(finding.now);
    out->set_before(finding.before);
    out->set_others(finding.others);
    out->mutable_of_ranks()->Assign(finding.of_group.begin(),
                                    finding.of_group.end());
  }
  PrintJson(ToJson(report));
  return absl::OkStatus();
}

}  // namespace

void RegisterScanCommand(const Registry& to) {
  const auto [verb, flags] = to.Add<ScanFlags>(
      "scan",
      "find where a run first went wrong: values that are not finite, "
      "move far off their course, vanish, or differ between ranks",
      Scan);
  verb->add_option("--run", flags->run, "the run")->required();
  verb->add_option("match", flags->match,
                   "names: a part of them, or a pattern with * and ?; all if "
                   "left out");
  verb->add_option("--from-step", flags->from_step, "the first step")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--to-step", flags->to_step, "the last step")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--ranks", flags->ranks, "like 0,2-3; all if left out")
      ->check(WhyNoRanges);
  AddJob(verb, &flags->job);
  verb->add_option("--window", flags->window,
                   "number of recorded steps from which a value's course is "
                   "computed; default 20")
      ->check(CLI::Range(2, 1000));
  verb->add_option("--factor", flags->factor,
                   "report moves of at least this factor; default 4")
      ->check(CLI::Range(1.0, 1e30));
  verb->add_option(
      "--limit", flags->limit,
      "maximum number of findings in the table; 0: all; default 20");
}

}  // namespace rankprobe
