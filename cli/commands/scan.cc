// SPDX-License-Identifier: Apache-2.0
// scan: where a run first went wrong, by the norms of its values over steps.
#include "analysis/scan/scan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/app.h"
#include "cli/client/grid_reply.h"
#include "cli/exit_codes.h"
#include "cli/flags/ranges.h"
#include "cli/output/output.h"
#include "cli/output/sparkline.h"
#include "common/base/status_macros.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {
namespace {

constexpr uint32_t kMostCells = 1000000;
constexpr size_t kPlotColumns = 40;

struct ScanFlags {
  std::string run, match, ranks;
  std::optional<int64_t> from_step, to_step;
  size_t window = analysis::ScanOptions().window;
  double factor = analysis::ScanOptions().factor;
  size_t limit = 20;
};

// The rows of one question, each checked against the head.
absl::Status ReadGrid(const Client& client, const v1::QueryGridRequest& request,
                      v1::GridHead* head,
                      absl::FunctionRef<void(const v1::GridRow&)> take) {
  grpc::ClientContext context;
  // The collector goes through the records of the steps, however many.
  client.Prepare(&context, /*extra_seconds=*/3600);
  const auto reader = client.archive->QueryGrid(&context, request);
  return ReadGridReply(
      client, &context, reader.get(),
      [head](const v1::GridHead& came) { *head = came; },
      [&take](const v1::GridRow& row, int columns) {
        if (row.cells_size() != columns || row.counts_size() != columns ||
            row.ranks_size() != columns || row.non_finite_size() != columns)
          return false;
        take(row);
        return true;
      });
}

absl::StatusOr<v1::QueryGridRequest> RequestOf(const ScanFlags& flags) {
  v1::QueryGridRequest request;
  request.set_run(flags.run);
  request.set_match(flags.match);
  request.set_values(v1::GRID_VALUES_ALL);
  request.set_max_cells(kMostCells);
  if (flags.from_step.has_value()) request.set_first_step(*flags.from_step);
  if (flags.to_step.has_value()) request.set_last_step(*flags.to_step);
  RP_ASSIGN_OR_RETURN(const std::vector<int64_t> ranks,
                      ParseRanges("--ranks", flags.ranks));
  request.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  return request;
}

// The largest and the smallest over the ranks of what is asked for.
absl::StatusOr<analysis::ScanInput> ReadCells(const Client& client,
                                              v1::QueryGridRequest request,
                                              v1::GridHead* head) {
  analysis::ScanInput input;
  absl::flat_hash_map<std::string, size_t> index;
  RP_RETURN_IF_ERROR(
      ReadGrid(client, request, head, [&](const v1::GridRow& row) {
        index.emplace(row.name(), input.values.size());
        analysis::ScanSeries& series = input.values.emplace_back();
        series.name = row.name();
        for (int i = 0; i < row.cells_size(); ++i) {
          analysis::ScanCell& cell = series.cells.emplace_back();
          cell.largest = cell.smallest = row.cells(i);
          cell.count = row.counts(i);
          cell.non_finite = row.non_finite(i);
          cell.largest_rank = cell.smallest_rank = row.ranks(i);
        }
      }));
  for (const int64_t step : head->first_steps()) input.steps.push_back(step);
  if (input.steps.empty()) return input;
  // The same columns, though the run may go on meanwhile.
  request.set_first_step(head->first_steps(0));
  request.set_last_step(*head->last_steps().rbegin());
  request.set_reducer(v1::GRID_REDUCER_MIN);
  v1::GridHead second;
  RP_RETURN_IF_ERROR(
      ReadGrid(client, request, &second, [&](const v1::GridRow& row) {
        const auto it = index.find(row.name());
        if (it == index.end() ||
            second.first_steps_size() != head->first_steps_size())
          return;
        std::vector<analysis::ScanCell>& cells = input.values[it->second].cells;
        for (int i = 0; i < row.cells_size(); ++i) {
          analysis::ScanCell& cell = cells[static_cast<size_t>(i)];
          // A rank that came between the two questions is in one of them alone.
          if (cell.count != row.counts(i)) continue;
          cell.smallest = row.cells(i);
          cell.smallest_rank = row.ranks(i);
        }
      }));
  return input;
}

bool HasMoves(const std::vector<analysis::ScanFinding>& found) {
  return std::any_of(found.begin(), found.end(),
                     [](const analysis::ScanFinding& finding) {
                       return finding.kind == analysis::ScanKind::kMove ||
                              finding.kind == analysis::ScanKind::kRankMoves;
                     });
}

// Which of the values are one number that may pass through 0, by their means.
absl::Status ReadSigns(const Globals& globals, const ScanFlags& flags,
                       const v1::GridHead& head, analysis::ScanInput* input) {
  RP_ASSIGN_OR_RETURN(v1::QueryGridRequest request, RequestOf(flags));
  request.set_statistic("Mean");
  request.set_first_step(head.first_steps(0));
  request.set_last_step(*head.last_steps().rbegin());
  v1::GridHead of_means;
  RP_ASSIGN_OR_RETURN(
      const analysis::ScanInput read,
      ReadCells(Client(globals), std::move(request), &of_means));
  absl::flat_hash_map<std::string, const std::vector<analysis::ScanCell>*>
      means;
  for (const analysis::ScanSeries& series : read.values)
    means.emplace(series.name, &series.cells);
  for (analysis::ScanSeries& series : input->values) {
    const auto it = means.find(series.name);
    series.passes_zero =
        it != means.end() && analysis::MayPassZero(series, *it->second);
  }
  return absl::OkStatus();
}

// The sign of a NaN is no news.
std::string NumberText(double value) {
  return std::isnan(value) ? "nan" : absl::StrFormat("%.5g", value);
}

std::string WhatText(const analysis::ScanFinding& finding) {
  switch (finding.kind) {
    case analysis::ScanKind::kNonFinite:
      return NumberText(finding.now);
    case analysis::ScanKind::kRanksPart:
    case analysis::ScanKind::kNotAlike:
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
  Print(stdout, "%d %s in %d values over %d recorded steps", found.size(),
        found.size() == 1 ? "finding" : "findings", input.values.size(),
        head.steps());
  if (head.steps_per_column() > 1)
    Print(stdout, ", %d steps together", head.steps_per_column());
  Print(stdout, "\n");
  if (input.steps.size() < 2 * analysis::ScanOptions().least) {
    Print(stdout,
          "few steps: a course is known from %d on, task monitor records it "
          "over a whole training\n",
          analysis::ScanOptions().least + 1);
  }
  if (found.empty()) return;
  Print(stdout, "Go on: rankprobe query --run %s --of all --rows rank '%s'\n",
        flags.run, found[0].name);
  Print(stdout, "       rankprobe export --run %s --steps %d -o DIR\n",
        flags.run, found[0].step);
}

absl::Status Scan(const Globals& globals, const ScanFlags& flags,
                  int* exit_code) {
  v1::GridHead head;
  RP_ASSIGN_OR_RETURN(v1::QueryGridRequest request, RequestOf(flags));
  RP_ASSIGN_OR_RETURN(analysis::ScanInput input,
                      ReadCells(Client(globals), std::move(request), &head));
  // "0 findings" of a pattern with a slip would pass for a sound run.
  if (input.values.empty()) {
    return absl::NotFoundError(
        absl::StrCat("nothing to scan: no norm of ",
                     flags.match.empty() ? "any tensor" : flags.match, " in ",
                     head.steps(), " recorded steps"));
  }
  analysis::ScanOptions options;
  options.window = flags.window;
  options.least = std::min(options.least, flags.window);
  options.factor = flags.factor;
  std::vector<analysis::ScanFinding> found = analysis::Scan(input, options);
  // Asked for only where it matters: it costs as much as all before it.
  if (HasMoves(found)) {
    RP_RETURN_IF_ERROR(ReadSigns(globals, flags, head, &input));
    found = analysis::Scan(input, options);
  }
  if (!found.empty()) *exit_code = kPartial;
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
  }
  PrintJson(ToJson(report));
  return absl::OkStatus();
}

}  // namespace

void RegisterScanCommand(CLI::App* app, Globals* globals,
                         ParsedCommand* command) {
  CLI::App* const verb = app->add_subcommand(
      "scan",
      "where a run first went wrong: what is not finite, moves far off its "
      "course, vanishes, or parts between ranks");
  AddGlobals(verb, globals);
  auto flags = std::make_shared<ScanFlags>();
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
  verb->add_option("--window", flags->window,
                   "recorded steps that a value's course is taken from; "
                   "default 20")
      ->check(CLI::Range(2, 1000));
  verb->add_option("--factor", flags->factor,
                   "a move is at least this much; default 4")
      ->check(CLI::Range(1.0, 1e30));
  verb->add_option("--limit", flags->limit,
                   "at most so many findings in the table; 0: all; default 20");
  verb->callback([command, flags] {
    command->run = [flags](const Globals& g, int* code) {
      return Scan(g, *flags, code);
    };
  });
}

}  // namespace rankprobe
