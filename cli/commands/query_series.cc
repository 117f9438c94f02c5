// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/query_series.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/client/answer_stream.h"
#include "cli/client/client.h"
#include "cli/client/grid_reply.h"
#include "cli/exit_codes.h"
#include "cli/output/grid_text.h"
#include "cli/output/output.h"
#include "cli/output/sparkline.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"

namespace rankprobe {
namespace {

constexpr size_t kSeriesPlotWidth = 40;

bool Fits(const v1::GridRow& row, int columns) {
  return row.cells_size() == columns && row.counts_size() == columns &&
         row.ranks_size() == columns;
}

std::optional<double> CellOf(const v1::GridRow& row, int column) {
  if (row.counts(column) == 0) return std::nullopt;
  return row.cells(column);
}

// Returns the column with the largest (or smallest) number, preferring NaN; -1
// if no column has a number.
int Extreme(const v1::GridRow& row, bool smallest) {
  int found = -1;
  for (int i = 0; i < row.cells_size(); ++i) {
    const std::optional<double> cell = CellOf(row, i);
    if (!cell.has_value()) continue;
    if (std::isnan(*cell)) return i;
    if (found < 0 ||
        (smallest ? *cell < row.cells(found) : *cell > row.cells(found)))
      found = i;
  }
  return found;
}

std::string RankAt(const v1::GridRow& row, int column) {
  return column < 0 || row.ranks(column) < 0 ? "-"
                                             : absl::StrCat(row.ranks(column));
}

class SeriesPrinter {
 public:
  SeriesPrinter(const Globals& globals, std::string statistic, size_t limit,
                bool csv)
      : globals_(globals),
        statistic_(std::move(statistic)),
        limit_(limit),
        csv_(csv) {}

  void Head(const v1::GridHead& head) {
    head_ = head;
    if (globals_.json) {
      PrintJson(ToJson(head));
    } else if (csv_) {
      Print(stdout,
            "name,steps,smallest,smallest_rank,median,largest,largest_rank,"
            "deviation,deviation_rank\n");
    }
  }

  void Row(const v1::SeriesRow& row) {
    if (limit_ > 0 && lines_ >= limit_) return;
    ++lines_;
    if (globals_.json) {
      PrintJson(ToJson(row));
    } else if (csv_) {
      CsvLines(row);
    } else {
      AddLine(row);
    }
  }

  void Finish() {
    if (globals_.json || csv_) {
      Print(stderr, "%s", Lines{MoreRowsText(head_, lines_)});
      return;
    }
    if (head_.tensors() > 0 && head_.first_steps_size() > 0)
      Print(stdout, "%s", Lines{table_.ToText()});
    Print(stdout, "%s", Lines{MoreRowsText(head_, lines_)});
    Print(stdout, "%s", Lines{WithoutText(head_, statistic_)});
    Print(stdout, "%s", Lines{NotWholeText(head_)});
  }

  const v1::GridHead& head() const { return head_; }

 private:
  int columns() const { return head_.first_steps_size(); }
  void CsvLines(const v1::SeriesRow& row) {
    const auto number = [](const v1::GridRow& of, int column) {
      const std::optional<double> cell = CellOf(of, column);
      return cell.has_value() ? ExactText(*cell) : std::string();
    };
    const auto rank = [](const v1::GridRow& of, int column) {
      return of.counts(column) == 0 || of.ranks(column) < 0
                 ? std::string()
                 : absl::StrCat(of.ranks(column));
    };
    for (int i = 0; i < columns(); ++i) {
      Print(stdout, "%s\n",
            absl::StrCat(
                CsvField(row.name()), ",", StepsText(head_, i), ",",
                number(row.smallest(), i), ",", rank(row.smallest(), i), ",",
                number(row.median(), i), ",", number(row.largest(), i), ",",
                rank(row.largest(), i), ",", number(row.deviation(), i), ",",
                rank(row.deviation(), i)));
    }
  }

  void AddLine(const v1::SeriesRow& row) {
    const auto text = [](const v1::GridRow& of, int column) {
      return column < 0 ? std::string("-")
                        : ShortText(std::optional<double>(of.cells(column)));
    };
    const int low = Extreme(row.smallest(), /*smallest=*/true);
    const int high = Extreme(row.largest(), /*smallest=*/false);
    const int astray = Extreme(row.deviation(), /*smallest=*/false);
    std::vector<std::optional<double>> plot;
    plot.reserve(static_cast<size_t>(columns()));
    for (int i = 0; i < columns(); ++i)
      plot.push_back(CellOf(row.deviation(), i));
    table_.Add({row.name(), text(row.smallest(), low),
                RankAt(row.smallest(), low), text(row.largest(), high),
                RankAt(row.largest(), high), text(row.deviation(), astray),
                RankAt(row.deviation(), astray),
                astray < 0 ? "-" : StepsText(head_, astray),
                Sparkline(plot, kSeriesPlotWidth)});
  }

  const Globals& globals_;
  const std::string statistic_;
  const size_t limit_;  // rows; 0: all
  const bool csv_;
  v1::GridHead head_;
  size_t lines_ = 0;
  Table table_{{"NAME", "MIN", "RANK", "MAX", "RANK", "DEVIATION", "RANK", "AT",
                "DEVIATION OVER STEPS"}};
};

}  // namespace

absl::Status PrintOverRanks(const Globals& globals,
                            const v1::QueryGridRequest& grid, size_t limit,
                            bool csv, int* exit_code) {
  v1::QuerySeriesRequest request;
  *request.mutable_grid() = grid;
  const Client client(globals);
  AnswerStream<v1::SeriesReply> reader(client, /*extra_seconds=*/3600,
                                       &ArchiveStub::QuerySeries, request);
  SeriesPrinter printer(globals, grid.statistic(), limit, csv);
  RP_RETURN_IF_ERROR(ReadGridReply(
      &reader, [&](const v1::GridHead& head) { printer.Head(head); },
      [&](const v1::SeriesRow& row, int columns) {
        if (!Fits(row.smallest(), columns) || !Fits(row.largest(), columns) ||
            !Fits(row.median(), columns) || !Fits(row.deviation(), columns))
          return false;
        printer.Row(row);
        return true;
      }));
  printer.Finish();
  *exit_code = ExitCodeOf(printer.head(), grid.match());
  return absl::OkStatus();
}

absl::Status PrintNames(const Globals& globals,
                        const v1::QueryGridRequest& grid, size_t limit,
                        bool csv) {
  v1::ListModulesRequest request;
  request.set_run(grid.run());
  request.set_match(grid.match());
  request.set_values(grid.values());
  request.set_rows(grid.rows());
  const Client client(globals);
  Table table({"NAME", "VALUES"});
  if (csv && !globals.json) Print(stdout, "name,values\n");
  uint64_t printed = 0, unrolled = 0;
  bool more = true, truncated = false;
  while (more) {
    request.set_skip(printed);
    if (limit > 0) {
      request.set_limit(static_cast<uint32_t>(
          std::min<uint64_t>(limit - printed, uint64_t{1} << 31)));
    }
    RP_ASSIGN_OR_RETURN(const v1::ListModulesResponse response,
                        client.Ask(&ArchiveStub::ListModules, request));
    for (const v1::ModuleName& module : response.modules()) {
      if (globals.json) {
        PrintJson(ToJson(module));
      } else if (csv) {
        Print(stdout, "%s,%d\n", CsvField(module.name()), module.values());
      } else {
        table.Add({module.name(), absl::StrCat(module.values())});
      }
    }
    printed += static_cast<uint64_t>(response.modules_size());
    unrolled = response.unrolled_rank_steps();
    // An empty answer that announces more would never end.
    more = response.truncated() && response.modules_size() > 0 &&
           (limit == 0 || printed < limit);
    truncated = response.truncated();
  }
  const bool is_table = !globals.json && !csv;
  if (is_table) Print(stdout, "%s", Lines{table.ToText()});
  std::FILE* const notes = is_table ? stdout : stderr;
  if (truncated) {
    Print(notes, "more names: narrow them with a pattern, or --limit 0\n");
  }
  if (unrolled > 0) {
    Print(notes, "not rolled up yet: %s, whose names may be missing\n",
          Counted(unrolled, "rank-step"));
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
