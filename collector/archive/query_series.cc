// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/query_series.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "collector/archive/grid_request.h"
#include "collector/archive/packed_row.h"
#include "collector/archive/rollup.h"
#include "collector/archive/statistics_grid.h"
#include "collector/archive/statistics_walk.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr int kMaxLines = 16;
constexpr size_t kMaxModulesListed = 10000;

class Series : public StatisticsVisitor {
 public:
  explicit Series(const v1::QuerySeriesRequest& request)
      : request_(request),
        smallest_(v1::GRID_REDUCER_MIN, {CellsOf(request.grid())}),
        largest_(v1::GRID_REDUCER_MAX, {CellsOf(request.grid())}),
        median_(v1::GRID_REDUCER_MEAN, {CellsOf(request.grid())}),
        deviation_(v1::GRID_REDUCER_MAX, {CellsOf(request.grid())}) {
    for (int i = 0; i < request.lines_size(); ++i)
      lines_.emplace_back(request.grid().reducer(),
                          StatisticsGrid::Limits{CellsOf(request.grid())});
  }

  absl::Status OnBegin(const std::vector<v1::StepInfo>&) override {
    return absl::OkStatus();
  }

  absl::Status OnRankStep(const v1::StepInfo& step) override {
    FinishRank();
    if (step.step() != step_) RP_RETURN_IF_ERROR(FinishStep());
    step_ = step.step();
    rank_ = step.has_rank() ? step.rank() : -1;
    for (StatisticsGrid* const grid : Grids())
      RP_RETURN_IF_ERROR(grid->BeginStep(step_));
    return absl::OkStatus();
  }

  absl::Status OnValue(const WalkedValue& value) override {
    head_.set_tensors(head_.tensors() + 1);
    if (!value.numbers[0].has_value()) {
      head_.set_tensors_without(head_.tensors_without() + 1);
      return absl::OkStatus();
    }
    const absl::string_view name =
        RowNameOf(request_.grid().rows(), value.entry, value.name);
    const auto it = row_of_name_.find(name);
    size_t row = 0;
    if (it != row_of_name_.end()) {
      row = it->second;
    } else {
      // All grids get the same rows, so that they have the same columns.
      for (StatisticsGrid* const grid : Grids())
        RP_RETURN_IF_ERROR(grid->AddRow(name));
      row = rows_.size();
      row_of_name_.emplace(name, row);
      rows_.emplace_back().name = std::string(name);
    }
    OfRank& own = rows_[row].own;
    if (own.count == 0) touched_.push_back(row);
    own.Add(*value.numbers[0], request_.grid().reducer());
    return absl::OkStatus();
  }

  absl::Status Finish() {
    FinishRank();
    return FinishStep();
  }

  absl::Status Write(const WalkReport& report,
                     absl::FunctionRef<absl::Status(v1::SeriesReply)> write) {
    largest_.FillHead(&head_);
    head_.set_rank_steps(report.rank_steps);
    head_.set_incomplete_rank_steps(report.incomplete_rank_steps);
    head_.set_deleted_rank_steps(report.deleted_rank_steps);
    head_.set_rolled_up_rank_steps(report.rolled_up_rank_steps);
    v1::SeriesReply reply;
    *reply.mutable_head() = head_;
    RP_RETURN_IF_ERROR(write(std::move(reply)));
    for (size_t i = 0; i < rows_.size(); ++i) {
      v1::SeriesReply one;
      v1::SeriesRow* const row = one.mutable_row();
      row->set_name(rows_[i].name);
      Fill(smallest_, i, row->mutable_smallest());
      Fill(largest_, i, row->mutable_largest());
      Fill(median_, i, row->mutable_median());
      Fill(deviation_, i, row->mutable_deviation());
      for (size_t line = 0; line < lines_.size(); ++line) {
        v1::GridRow* const own = row->add_lines();
        Fill(lines_[line], i, own);
        own->set_name(
            absl::StrCat("rank", request_.lines(static_cast<int>(line))));
      }
      RP_RETURN_IF_ERROR(write(std::move(one)));
    }
    return absl::OkStatus();
  }

 private:
  // The numbers of one rank's step.
  struct OfRank {
    double value = 0;
    uint64_t count = 0;
    void Add(double number, v1::GridReducer reducer) {
      if (count++ > 0 && reducer == v1::GRID_REDUCER_MEAN) {
        value += number;
      } else if (count == 1 || Beats(number, reducer)) {
        value = number;
      }
    }
    // NaN takes precedence over all numbers.
    bool Beats(double number, v1::GridReducer reducer) const {
      if (std::isnan(value) || std::isnan(number)) return !std::isnan(value);
      return reducer == v1::GRID_REDUCER_MIN ? number < value : number > value;
    }
  };
  struct SeriesOfName {
    std::string name;
    OfRank own;
    // Numbers of the current step, by rank.
    std::vector<std::pair<int64_t, double>> numbers;
  };

  std::vector<StatisticsGrid*> Grids() {
    std::vector<StatisticsGrid*> all = {&smallest_, &largest_, &median_,
                                        &deviation_};
    for (StatisticsGrid& line : lines_) all.push_back(&line);
    return all;
  }

  void FinishRank() {
    for (const size_t row : touched_) {
      SeriesOfName& series = rows_[row];
      const OfRank own = std::exchange(series.own, OfRank());
      if (series.numbers.empty()) step_rows_.push_back(row);
      series.numbers.emplace_back(
          rank_, request_.grid().reducer() == v1::GRID_REDUCER_MEAN
                     ? own.value / static_cast<double>(own.count)
                     : own.value);
    }
    touched_.clear();
  }

  absl::Status FinishStep() {
    for (const size_t row : step_rows_) {
      SeriesOfName& series = rows_[row];
      RP_RETURN_IF_ERROR(AddStep(series));
      series.numbers.clear();
    }
    step_rows_.clear();
    return absl::OkStatus();
  }

  absl::Status AddStep(const SeriesOfName& series) {
    std::vector<double> numbers;
    for (const auto& [rank, number] : series.numbers) {
      RP_RETURN_IF_ERROR(smallest_.Add(series.name, rank, number));
      RP_RETURN_IF_ERROR(largest_.Add(series.name, rank, number));
      for (size_t i = 0; i < lines_.size(); ++i) {
        if (request_.lines(static_cast<int>(i)) == rank)
          RP_RETURN_IF_ERROR(lines_[i].Add(series.name, rank, number));
      }
      numbers.push_back(number);
    }
    const std::optional<double> median = MedianOf(std::move(numbers));
    if (!median.has_value()) return absl::OkStatus();
    RP_RETURN_IF_ERROR(median_.Add(series.name, -1, *median));
    if (series.numbers.size() < 2) return absl::OkStatus();
    for (const auto& [rank, number] : series.numbers) {
      RP_RETURN_IF_ERROR(
          deviation_.Add(series.name, rank, DeviationFrom(*median, number)));
    }
    return absl::OkStatus();
  }

  void Fill(const StatisticsGrid& grid, size_t row, v1::GridRow* out) const {
    *out = grid.Row(row);
    out->clear_name();
    if (request_.grid().packed()) PackRow(out);
  }

  const v1::QuerySeriesRequest& request_;
  StatisticsGrid smallest_, largest_, median_, deviation_;
  std::vector<StatisticsGrid> lines_;
  v1::GridHead head_;
  std::vector<SeriesOfName> rows_;
  absl::flat_hash_map<std::string, size_t> row_of_name_;
  // Rows of the current rank, and of the current step.
  std::vector<size_t> touched_, step_rows_;
  int64_t step_ = -1, rank_ = -1;
};

absl::StatusOr<uint64_t> CountUnrolled(const QuerySources& sources,
                                       const std::string& name,
                                       std::optional<uint32_t> run) {
  uint64_t unrolled = 0;
  if (run.has_value()) {
    RP_RETURN_IF_ERROR(
        sources.series->ForEachUnrolled(*run, [&](int64_t, uint64_t) {
          ++unrolled;
          return absl::OkStatus();
        }));
    return unrolled;
  }
  // Without rollups every step is read from its records.
  RP_ASSIGN_OR_RETURN(const std::vector<v1::StepInfo> steps,
                      sources.records->ListSteps(name));
  for (const v1::StepInfo& step : steps)
    unrolled += !step.deleted() && step.records() > 0 ? 1 : 0;
  return unrolled;
}

}  // namespace

std::optional<double> MedianOf(std::vector<double> numbers) {
  numbers.erase(
      std::remove_if(numbers.begin(), numbers.end(),
                     [](double number) { return !std::isfinite(number); }),
      numbers.end());
  if (numbers.empty()) return std::nullopt;
  const auto middle =
      numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  if (numbers.size() % 2 == 1) return *middle;
  const double below = *std::max_element(numbers.begin(), middle);
  // Not (a + b) / 2, because the sum may overflow.
  return below / 2 + *middle / 2;
}

double DeviationFrom(double median, double number) {
  if (number == median) return 0;
  if (!std::isfinite(number) || median == 0)
    return std::numeric_limits<double>::infinity();
  return std::abs(number / median - 1);
}

absl::Status QuerySeries(const QuerySources& sources,
                         const v1::QuerySeriesRequest& request,
                         absl::FunctionRef<bool()> cancelled,
                         absl::FunctionRef<absl::Status(v1::SeriesReply)> write,
                         std::vector<std::string>* unreadable) {
  RP_RETURN_IF_ERROR(CheckGridRequest(request.grid()));
  if (request.grid().rows() == v1::GRID_ROWS_RANK) {
    return absl::InvalidArgumentError(
        "a series is over ranks: rows of values, calls or modules");
  }
  if (request.lines_size() > kMaxLines) {
    return absl::InvalidArgumentError(
        absl::StrCat("at most ", kMaxLines, " ranks have lines of their own"));
  }
  RP_ASSIGN_OR_RETURN(const Stat stat,
                      ParseStatistic(request.grid().statistic()));
  Series series(request);
  RP_ASSIGN_OR_RETURN(const WalkReport report,
                      WalkStatistics(sources, SelectionOf(request.grid()),
                                     {stat}, cancelled, &series));
  if (unreadable != nullptr) *unreadable = report.unreadable;
  RP_RETURN_IF_ERROR(series.Finish());
  return series.Write(report, write);
}

absl::StatusOr<v1::ListModulesResponse> ListModules(
    const QuerySources& sources, const v1::ListModulesRequest& request) {
  if (!v1::GridRows_IsValid(request.rows()) ||
      request.rows() == v1::GRID_ROWS_RANK)
    return absl::InvalidArgumentError("names are of values, calls or modules");
  // Absent if the archive has no rollups, so that it has no names of values
  // either.
  std::optional<uint32_t> run;
  if (sources.series != nullptr) {
    RP_ASSIGN_OR_RETURN(run, sources.series->RunNumber(request.run()));
  }
  RP_ASSIGN_OR_RETURN(ValueChooser chooser,
                      ValueChooser::Make(request.match(), request.values()));
  std::vector<v1::ModuleName> names;
  absl::flat_hash_map<std::string, size_t> places;
  const auto take = [&](uint32_t id, const v1::RollupName& name) {
    if (!chooser.Wants(id >= kFirstGivenValue, name.entry(), name.value()))
      return absl::OkStatus();
    const absl::string_view row =
        RowNameOf(request.rows(), name.entry(), chooser.name());
    const auto [it, is_new] = places.try_emplace(row, names.size());
    if (is_new) names.emplace_back().set_name(std::string(row));
    v1::ModuleName& module = names[it->second];
    module.set_values(module.values() + 1);
    return absl::OkStatus();
  };
  if (run.has_value())
    RP_RETURN_IF_ERROR(sources.series->ForEachRollupName(*run, take));
  v1::ListModulesResponse response;
  const size_t limit =
      request.limit() == 0
          ? kMaxModulesListed
          : std::min<size_t>(request.limit(), kMaxModulesListed);
  size_t next = std::min<uint64_t>(request.skip(), names.size());
  for (; next < names.size() &&
         static_cast<size_t>(response.modules_size()) < limit;
       ++next)
    response.add_modules()->Swap(&names[next]);
  response.set_truncated(next < names.size());
  RP_ASSIGN_OR_RETURN(const uint64_t unrolled,
                      CountUnrolled(sources, request.run(), run));
  response.set_unrolled_rank_steps(unrolled);
  return response;
}

}  // namespace rankprobe
