// SPDX-License-Identifier: Apache-2.0
// query: one statistic over the steps of a run, as lines of a table.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/app.h"
#include "cli/client/answer_stream.h"
#include "cli/client/grid_reply.h"
#include "cli/commands/query_series.h"
#include "cli/exit_codes.h"
#include "cli/flags/choice.h"
#include "cli/flags/ranges.h"
#include "cli/output/grid_text.h"
#include "cli/output/output.h"
#include "cli/output/sparkline.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr size_t kPlotWidth = 60;
constexpr size_t kUsualLines = 50;  // of a table

struct QueryFlags {
  std::string run, match, ranks, statistic = "Norm";
  std::optional<int64_t> from_step, to_step;
  v1::GridRows rows = v1::GRID_ROWS_VALUE;
  v1::GridValues of = v1::GRID_VALUES_OUTPUTS;
  v1::GridReducer reduce = v1::GRID_REDUCER_MAX;
  std::optional<size_t> limit;
  bool csv = false, over_ranks = false, names = false;
  bool heat = false;
};

size_t LimitOf(const Globals& globals, const QueryFlags& flags) {
  return flags.limit.value_or(flags.csv || globals.json ? 0 : kUsualLines);
}

// Prints rows as they arrive, in the requested form.
class GridPrinter {
 public:
  GridPrinter(const Globals& globals, const QueryFlags& flags)
      : globals_(globals), flags_(flags), limit_(LimitOf(globals, flags)) {}

  void Head(const v1::GridHead& head) {
    head_ = head;
    if (globals_.json) {
      PrintJson(ToJson(head));
    } else if (flags_.csv) {
      std::string line = "name";
      for (int i = 0; i < head.first_steps_size(); ++i)
        absl::StrAppend(&line, ",", StepsText(head, i));
      Print(stdout, "%s\n", line);
    }
  }

  void Row(const v1::GridRow& row) {
    if (limit_ > 0 && lines_ >= limit_) return;
    ++lines_;
    if (globals_.json) {
      PrintJson(ToJson(row));
    } else if (flags_.csv) {
      std::string line = CsvField(row.name());
      for (int i = 0; i < row.cells_size(); ++i) {
        absl::StrAppend(&line, ",",
                        row.counts(i) > 0 ? ExactText(row.cells(i)) : "");
      }
      Print(stdout, "%s\n", line);
    } else {
      AddLine(row);
    }
  }

  void Finish() {
    if (globals_.json || flags_.csv) {
      Print(stderr, "%s", Lines{MoreRowsText(head_, lines_)});
      return;
    }
    if (flags_.heat) AddHeat();
    if (head_.tensors() > 0 && columns() > 0) {
      Print(stdout, "%s", Lines{table_.ToText()});
      Print(stdout, "%s of %s in steps %d to %d", ReduceText(),
            flags_.statistic, head_.first_steps(0),
            *head_.last_steps().rbegin());
      if (head_.steps_per_column() > 1) {
        Print(stdout, ", steps of %d numbers a column",
              head_.steps_per_column());
      }
      if (flags_.heat && scale_.low.has_value()) {
        Print(stdout, "; shades from %s to %s%s", ShortText(scale_.low),
              ShortText(scale_.high),
              scale_.logarithmic() ? ", logarithmic" : "");
      }
      Print(stdout, "\n");
    }
    Print(stdout, "%s", Lines{MoreRowsText(head_, lines_)});
    Print(stdout, "%s", Lines{WithoutText(head_, flags_.statistic)});
    Print(stdout, "%s", Lines{NotWholeText(head_)});
  }

  const v1::GridHead& head() const { return head_; }

 private:
  int columns() const { return head_.first_steps_size(); }
  std::string ReduceText() const {
    return flags_.reduce == v1::GRID_REDUCER_MAX   ? "largest"
           : flags_.reduce == v1::GRID_REDUCER_MIN ? "smallest"
                                                   : "mean";
  }

  void AddLine(const v1::GridRow& row) {
    std::vector<std::optional<double>> numbers;
    std::optional<double> smallest, largest, last;
    uint64_t non_finite = 0;
    std::string first_bad = "-";
    for (int i = 0; i < row.cells_size(); ++i) {
      if (row.counts(i) == 0) {
        numbers.emplace_back();
        continue;
      }
      const double number = row.cells(i);
      numbers.emplace_back(number);
      last = number;
      if (row.non_finite(i) > 0 && non_finite == 0)
        first_bad = StepsText(head_, i);
      non_finite += row.non_finite(i);
      if (!std::isfinite(number)) continue;
      smallest = std::min(smallest.value_or(number), number);
      largest = std::max(largest.value_or(number), number);
    }
    std::vector<std::string> line = {
        row.name(),
        ShortText(smallest),
        ShortText(largest),
        ShortText(last),
        absl::StrCat(non_finite),
        first_bad,
        flags_.heat ? "" : Sparkline(numbers, kPlotWidth)};
    if (!flags_.heat) {
      table_.Add(line);
      return;
    }
    scale_.Add(numbers);
    waiting_.emplace_back(std::move(line), std::move(numbers));
  }

  // All rows share one scale, which the last row may still change.
  void AddHeat() {
    for (auto& [line, numbers] : waiting_) {
      line.back() = HeatRow(numbers, scale_, kPlotWidth);
      table_.Add(line);
    }
  }

  const Globals& globals_;
  const QueryFlags& flags_;
  const size_t limit_;  // rows; 0: all
  v1::GridHead head_;
  size_t lines_ = 0;
  PlotScale scale_;
  std::vector<
      std::pair<std::vector<std::string>, std::vector<std::optional<double>>>>
      waiting_;
  Table table_{{"NAME", "MIN", "MAX", "LAST", "NAN/INF", "FIRST AT", "STEPS"}};
};

absl::Status Query(const Globals& globals, const QueryFlags& flags,
                   int* exit_code) {
  // --json may precede the verb, where the parser's excludes() has no effect.
  if (globals.json && (flags.csv || flags.heat)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--json excludes ", flags.csv ? "--csv" : "--heat"));
  }
  v1::QueryGridRequest request;
  request.set_run(flags.run);
  request.set_match(flags.match);
  request.set_statistic(flags.statistic);
  request.set_rows(flags.rows);
  request.set_values(flags.of);
  request.set_reducer(flags.reduce);
  if (flags.from_step.has_value()) request.set_first_step(*flags.from_step);
  if (flags.to_step.has_value()) request.set_last_step(*flags.to_step);
  RP_ASSIGN_OR_RETURN(const std::vector<int64_t> ranks,
                      ParseRanges("--ranks", flags.ranks));
  request.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  const size_t limit = LimitOf(globals, flags);
  if (flags.names) return PrintNames(globals, request, limit, flags.csv);
  if (flags.over_ranks)
    return PrintOverRanks(globals, request, limit, flags.csv, exit_code);
  const Client client(globals);
  // The collector reads the records of the steps, however many.
  AnswerStream<v1::GridReply> reader(client, /*extra_seconds=*/3600,
                                     &ArchiveStub::QueryGrid, request);
  GridPrinter printer(globals, flags);
  RP_RETURN_IF_ERROR(ReadGridReply(
      &reader, [&](const v1::GridHead& head) { printer.Head(head); },
      [&](const v1::GridRow& row, int columns) {
        if (row.cells_size() != columns || row.counts_size() != columns ||
            row.non_finite_size() != columns)
          return false;
        printer.Row(row);
        return true;
      }));
  printer.Finish();
  *exit_code = ExitCodeOf(printer.head(), request.match());
  return absl::OkStatus();
}

}  // namespace

void RegisterQueryCommand(const Registry& to) {
  const auto [verb, flags] = to.Add<QueryFlags>(
      "query",

      "print one statistic over the steps of a run: by tensor, call, "
      "module or rank",
      Query);
  verb->add_option("--run", flags->run, "the run")->required();
  verb->add_option("match", flags->match,
                   "names: a part of them, or a pattern with * and ?; all if "
                   "left out");
  verb->add_option("--rows", flags->rows, "what a row is; default value")
      ->transform(OneOf<v1::GridRows>({{"value", v1::GRID_ROWS_VALUE},
                                       {"call", v1::GRID_ROWS_CALL},
                                       {"module", v1::GRID_ROWS_MODULE},
                                       {"rank", v1::GRID_ROWS_RANK}}));
  CLI::Option* const statistic = verb->add_option(
      "--statistic", flags->statistic,
      "as dump.json names it: Norm (default), Max, Min, Mean, or "
      "an extra one that was recorded");
  CLI::Option* const reduce =
      verb->add_option("--reduce", flags->reduce,
                       "how several numbers of a cell are reduced; default max")
          ->transform(
              OneOf<v1::GridReducer>({{"max", v1::GRID_REDUCER_MAX},
                                      {"min", v1::GRID_REDUCER_MIN},
                                      {"mean", v1::GRID_REDUCER_MEAN}}));
  verb->add_option("--of", flags->of,
                   "outputs (default; gradients among them), inputs or all")
      ->transform(OneOf<v1::GridValues>({{"outputs", v1::GRID_VALUES_OUTPUTS},
                                         {"inputs", v1::GRID_VALUES_INPUTS},
                                         {"all", v1::GRID_VALUES_ALL}}));
  CLI::Option* const from_step =
      verb->add_option("--from-step", flags->from_step, "the first step")
          ->check(CLI::NonNegativeNumber);
  CLI::Option* const to_step =
      verb->add_option("--to-step", flags->to_step, "the last step")
          ->check(CLI::NonNegativeNumber);
  CLI::Option* const ranks =
      verb->add_option("--ranks", flags->ranks, "like 0,2-3; all if left out")
          ->check(WhyNoRanges);
  verb->add_option(
      "--limit", flags->limit,
      "maximum number of rows; 0: all; default 50 in a table, all in csv "
      "and JSON");
  CLI::Option* const heat = verb->add_flag(
      "--heat", flags->heat,
      "shade all rows of the table on one scale, not each row on its own");
  verb->add_flag("--csv", flags->csv, "rows of csv, a column for each step")
      ->excludes(heat);
  CLI::Option* const over_ranks =
      verb->add_flag("--over-ranks", flags->over_ranks,
                     "compare ranks: the smallest and the largest number, and "
                     "the rank farthest from the median")
          ->excludes(heat);
  CLI::Option* const names = verb->add_flag(
      "--names", flags->names,
      "list the names that query can show, without their numbers");
  // Names cover all ranks and steps.
  for (CLI::Option* const other :
       {statistic, reduce, from_step, to_step, ranks, heat, over_ranks})
    names->excludes(other);
}

}  // namespace rankprobe
