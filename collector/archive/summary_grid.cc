// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/summary_grid.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collector/archive/choose_steps.h"
#include "collector/archive/ledger.h"
#include "collector/archive/load_step.h"
#include "collector/archive/packed_row.h"
#include "collector/archive/rollup.h"
#include "collector/archive/run_steps.h"
#include "collector/archive/statistics_grid.h"
#include "collector/archive/summary_reader.h"
#include "common/base/status_macros.h"
#include "common/records/call_values.h"

namespace rankprobe {
namespace {

// Processes that are read between two checks for cancellation.
constexpr size_t kRangesAtOnce = 256;

// A process as a row, in the order of ranks.
struct RowOfRank {
  bool has_rank = false;
  int64_t number = 0;
  std::string name;
  bool operator<(const RowOfRank& other) const {
    return std::make_tuple(!has_rank, number, name) <
           std::make_tuple(!other.has_rank, other.number, other.name);
  }
};

RowOfRank RowOf(const v1::StepInfo& step) {
  return {step.has_rank(), step.has_rank() ? step.rank() : step.pid(),
          ProcessDirectory(step)};
}

class SummaryCells {
 public:
  SummaryCells(SummaryStat stat, int64_t first, int64_t last, size_t rows,
               size_t max_cells, uint64_t least_steps_per_column)
      : stat_(stat) {
    const auto columns = [&] {
      return static_cast<uint64_t>(last >> bits_) -
             static_cast<uint64_t>(first >> bits_) + 1;
    };
    while (columns() > 1 &&
           (columns() > max_cells / std::max<size_t>(rows, 1) ||
            uint64_t{1} << bits_ < least_steps_per_column)) {
      ++bits_;
    }
    first_column_ = first >> bits_;
    columns_.resize(columns());
    cells_.resize(rows * columns_.size());
  }

  // Steps that may be read together, as a power of 64.
  int level() const { return bits_ / kSummaryBits; }

  // DATA_LOSS for a summary of steps outside the request.
  absl::Status Add(size_t row, const StepSummary& summary) {
    const auto at =
        static_cast<size_t>((summary.first_step >> bits_) - first_column_);
    if (summary.steps > 0 && at >= columns_.size())
      return absl::DataLossError("a row of summaries is of other steps");
    totals_.Join(summary);
    if (summary.steps == 0) return absl::OkStatus();
    Column& column = columns_[at];
    column.first = std::min(column.first, summary.first_step);
    column.last = std::max(column.last, summary.last_step);
    Cell& cell = cells_[row * columns_.size() + at];
    cell.steps += summary.steps;
    column.steps = std::max(column.steps, cell.steps);
    const StepExtreme& extreme = stat_ == SummaryStat::kNorm  ? summary.norm
                                 : stat_ == SummaryStat::kMax ? summary.max
                                                              : summary.min;
    cell.extreme.Join(extreme, stat_ == SummaryStat::kMin);
    numbers_ += extreme.count;
    return absl::OkStatus();
  }

  void FillHead(v1::GridHead* head) const {
    uint64_t steps = 0;
    for (const Column& column : columns_) {
      if (column.steps == 0) continue;
      head->add_first_steps(column.first);
      head->add_last_steps(column.last);
      steps += column.steps;
    }
    head->set_steps(steps);
    head->set_steps_per_column(uint64_t{1} << bits_);
    head->set_rank_steps(totals_.steps);
    head->set_incomplete_rank_steps(totals_.incomplete);
    head->set_deleted_rank_steps(totals_.deleted);
    const uint64_t tensors =
        stat_ == SummaryStat::kNorm ? totals_.made : totals_.values;
    head->set_tensors(tensors);
    head->set_tensors_without(tensors - numbers_);
  }

  void FillRow(size_t row, int64_t rank, v1::GridRow* out) const {
    const auto full = [](uint64_t count) {
      return static_cast<uint32_t>(
          std::min<uint64_t>(count, std::numeric_limits<uint32_t>::max()));
    };
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i].steps == 0) continue;
      const StepExtreme& cell = cells_[row * columns_.size() + i].extreme;
      out->add_cells(cell.count > 0 ? cell.value : 0);
      out->add_counts(full(cell.count));
      out->add_non_finite(full(cell.non_finite));
      out->add_ranks(cell.count > 0 ? rank : -1);
    }
  }

 private:
  struct Column {
    int64_t first = std::numeric_limits<int64_t>::max(), last = -1;
    uint64_t steps = 0;
  };
  struct Cell {
    uint64_t steps = 0;
    StepExtreme extreme;
  };
  const SummaryStat stat_;
  int bits_ = 0;
  int64_t first_column_ = 0;
  std::vector<Column> columns_;
  std::vector<Cell> cells_;
  StepSummary totals_;
  uint64_t numbers_ = 0;
};

// `view` is null if the records cannot be read.
StepSummary SummarizeRecords(const v1::StepInfo& step, const StepView* view) {
  StepSummary summary;
  summary.first_step = summary.last_step = step.step();
  summary.steps = 1;
  summary.incomplete = step.complete() && view != nullptr ? 0 : 1;
  if (view == nullptr) return summary;
  for (const v1::CallPhase& call : view->calls) {
    ForEachNamedTensor(call, [&](TensorPlace at, absl::string_view,
                                 const v1::TensorSummary& tensor) {
      AddToSummary(IsGiven(at.section), tensor, &summary);
    });
  }
  return summary;
}

// Maps each process to its row.
class Rows {
 public:
  explicit Rows(const RunSteps& steps) {
    const auto add = [this](uint64_t incarnation, const v1::StepInfo& step) {
      if (of_.contains(incarnation)) return;
      const auto it = numbers_.try_emplace(RowOf(step)).first;
      it->second.push_back(incarnation);
      of_[incarnation] = 0;
    };
    for (const ProcessRange& range : steps.ranges)
      add(range.incarnation, StepOf(steps.Of(range), 0, v1::RollupHead()));
    for (const v1::StepInfo& step : steps.singles)
      add(step.incarnation(), step);
    for (const auto& [row, incarnations] : numbers_) {
      for (const uint64_t incarnation : incarnations)
        of_[incarnation] = rows.size();
      rows.push_back(row);
    }
  }

  size_t Of(uint64_t incarnation) const { return of_.at(incarnation); }

  std::vector<RowOfRank> rows;

 private:
  std::map<RowOfRank, std::vector<uint64_t>> numbers_;
  absl::flat_hash_map<uint64_t, size_t> of_;
};

// Extends the range to the end of the slot if it reaches the process' last
// step: there are no later steps, so the complete slot can be read instead of
// single steps.
void ToEndOfSlot(const RunSteps& steps, int level, ProcessRange* range) {
  const uint64_t slot_steps = uint64_t{1} << (level * kSummaryBits);
  if (range->last == static_cast<uint64_t>(steps.ends.at(range->incarnation))) {
    range->last = std::min(range->last | (slot_steps - 1),
                           static_cast<uint64_t>(steps.last_step));
  }
}

absl::Status ReadRanges(const QuerySources& sources, const RunSteps& steps,
                        const Rows& rows, SummaryStat stat,
                        absl::FunctionRef<bool()> cancelled,
                        SummaryCells* cells) {
  const absl::Span<const ProcessRange> all = steps.ranges;
  for (size_t next = 0; next < all.size(); next += kRangesAtOnce) {
    if (cancelled()) return absl::CancelledError("the caller has disconnected");
    const auto asked = all.subspan(next, kRangesAtOnce);
    std::vector<ProcessRange> portion(asked.begin(), asked.end());
    for (ProcessRange& range : portion)
      ToEndOfSlot(steps, cells->level(), &range);
    RP_RETURN_IF_ERROR(ReadSummaries(
        sources.series, steps.run, portion, cells->level(), stat,
        [&](size_t range, int64_t, const StepSummary& summary) {
          return cells->Add(rows.Of(portion[range].incarnation), summary);
        }));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<SummaryStat> SummaryFor(const v1::QueryGridRequest& request,
                                      Stat stat) {
  if (request.rows() != v1::GRID_ROWS_RANK || !request.match().empty())
    return std::nullopt;
  const bool all = request.values() == v1::GRID_VALUES_ALL;
  if (stat == kNorm && request.values() == v1::GRID_VALUES_OUTPUTS &&
      request.reducer() == v1::GRID_REDUCER_MAX)
    return SummaryStat::kNorm;
  if (stat == kMax && all && request.reducer() == v1::GRID_REDUCER_MAX)
    return SummaryStat::kMax;
  if (stat == kMin && all && request.reducer() == v1::GRID_REDUCER_MIN)
    return SummaryStat::kMin;
  return std::nullopt;
}

absl::StatusOr<bool> QuerySummaries(
    const QuerySources& sources, const v1::QueryGridRequest& request,
    SummaryStat stat, size_t max_cells, absl::FunctionRef<bool()> cancelled,
    absl::FunctionRef<absl::Status(v1::GridReply)> write,
    std::vector<std::string>* unreadable) {
  RP_ASSIGN_OR_RETURN(
      std::optional<RunSteps> steps,
      FindRunSteps(
          sources, request.run(),
          request.has_first_step() ? std::max<int64_t>(request.first_step(), 0)
                                   : 0,
          request.has_last_step() ? request.last_step()
                                  : std::numeric_limits<int64_t>::max(),
          IntSet({request.ranks().begin(), request.ranks().end()}),
          {request.incarnations().begin(), request.incarnations().end()}));
  if (!steps.has_value()) return false;
  v1::GridReply reply;
  if (request.skip_unrolled()) {
    const auto skipped = std::remove_if(
        steps->singles.begin(), steps->singles.end(),
        [&](const v1::StepInfo& step) {
          return steps->unrolled.contains({step.incarnation(), step.step()});
        });
    reply.mutable_head()->set_skipped_rank_steps(
        static_cast<uint64_t>(steps->singles.end() - skipped));
    steps->singles.erase(skipped, steps->singles.end());
  }
  const Rows rows(*steps);
  if (rows.rows.size() > max_cells)
    return StatisticsGrid::TooManyRows(max_cells);
  int64_t first = std::numeric_limits<int64_t>::max(), last = -1;
  for (const ProcessRange& range : steps->ranges) {
    first = std::min(first, static_cast<int64_t>(range.first));
    last = std::max(last, static_cast<int64_t>(range.last));
  }
  for (const v1::StepInfo& step : steps->singles) {
    first = std::min(first, step.step());
    last = std::max(last, step.step());
  }
  if (last < 0) first = last = 0;
  SummaryCells cells(stat, first, last, rows.rows.size(), max_cells,
                     request.least_steps_per_column());
  RP_RETURN_IF_ERROR(
      ReadRanges(sources, *steps, rows, stat, cancelled, &cells));
  uint64_t unrolled = 0;
  std::vector<ProcessRange> heads;
  for (const v1::StepInfo& step : steps->singles) {
    if (!steps->unrolled.contains({step.incarnation(), step.step()})) {
      const auto number = static_cast<uint64_t>(step.step());
      heads.push_back({step.incarnation(), number, number});
      continue;
    }
    if (cancelled()) return absl::CancelledError("the caller has disconnected");
    const absl::StatusOr<StepView> view =
        LoadStep(sources.records, KeyOf(request.run(), step));
    if (IsDamage(view.status())) {
      unreadable->push_back(UnreadableText(step, view.status()));
    } else {
      RP_RETURN_IF_ERROR(view.status());
    }
    RP_RETURN_IF_ERROR(
        cells.Add(rows.Of(step.incarnation()),
                  SummarizeRecords(step, view.ok() ? &*view : nullptr)));
    ++unrolled;
  }
  std::sort(heads.begin(), heads.end(), [](const auto& a, const auto& b) {
    return std::tie(a.incarnation, a.first) < std::tie(b.incarnation, b.first);
  });
  RP_RETURN_IF_ERROR(sources.series->ForEachHeadIn(
      steps->run, heads,
      [&](size_t i, int64_t step, const v1::RollupHead& head) {
        return cells.Add(rows.Of(heads[i].incarnation), SummaryOf(step, head));
      }));
  v1::GridHead* const head = reply.mutable_head();
  cells.FillHead(head);
  head->set_rows(rows.rows.size());
  head->set_from_summaries(true);
  head->set_rolled_up_rank_steps(head->rank_steps() - unrolled);
  head->set_deleted_rank_steps(head->deleted_rank_steps() + steps->deleted);
  RP_RETURN_IF_ERROR(write(std::move(reply)));
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    v1::GridReply one;
    one.mutable_row()->set_name(rows.rows[i].name);
    cells.FillRow(i, rows.rows[i].has_rank ? rows.rows[i].number : -1,
                  one.mutable_row());
    if (request.packed()) PackRow(one.mutable_row());
    RP_RETURN_IF_ERROR(write(std::move(one)));
  }
  return true;
}

}  // namespace rankprobe
