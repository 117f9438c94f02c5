// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/query_grid.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collector/archive/grid_request.h"
#include "collector/archive/ledger.h"
#include "collector/archive/packed_row.h"
#include "collector/archive/statistics_grid.h"
#include "collector/archive/statistics_walk.h"
#include "collector/archive/summary_grid.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

class Query : public StatisticsVisitor {
 public:
  explicit Query(const v1::QueryGridRequest& request)
      : request_(request), grid_(request.reducer(), {CellsOf(request)}) {}

  // Rows of ranks are in the order of their numbers, whichever came first.
  absl::Status OnBegin(const std::vector<v1::StepInfo>& steps) override {
    if (request_.rows() != v1::GRID_ROWS_RANK) return absl::OkStatus();
    std::set<std::tuple<bool, int64_t, std::string>> ranks;
    for (const v1::StepInfo& step : steps) {
      ranks.emplace(!step.has_rank(),
                    step.has_rank() ? step.rank() : step.pid(),
                    ProcessDirectory(step));
    }
    for (const auto& [without, number, name] : ranks)
      RP_RETURN_IF_ERROR(grid_.AddRow(name));
    return absl::OkStatus();
  }

  absl::Status OnRankStep(const v1::StepInfo& step) override {
    process_ = ProcessDirectory(step);
    rank_ = step.has_rank() ? step.rank() : -1;
    return grid_.BeginStep(step.step());
  }

  absl::Status OnValue(const WalkedValue& value) override {
    head_.set_tensors(head_.tensors() + 1);
    if (!value.numbers[0].has_value()) {
      head_.set_tensors_without(head_.tensors_without() + 1);
      return absl::OkStatus();
    }
    const bool finite =
        std::all_of(value.numbers.begin(), value.numbers.end(),
                    [](const std::optional<double>& number) {
                      return !number.has_value() || std::isfinite(*number);
                    });
    return grid_.Add(RowOf(value), rank_, *value.numbers[0], finite);
  }

  absl::Status Write(const WalkReport& report,
                     absl::FunctionRef<absl::Status(v1::GridReply)> write) {
    grid_.FillHead(&head_);
    head_.set_rank_steps(report.rank_steps);
    head_.set_incomplete_rank_steps(report.incomplete_rank_steps);
    head_.set_deleted_rank_steps(report.deleted_rank_steps);
    head_.set_rolled_up_rank_steps(report.rolled_up_rank_steps);
    v1::GridReply reply;
    *reply.mutable_head() = head_;
    RP_RETURN_IF_ERROR(write(std::move(reply)));
    for (size_t i = 0; i < grid_.rows(); ++i) {
      reply.Clear();
      *reply.mutable_row() = grid_.Row(i);
      if (request_.packed()) PackRow(reply.mutable_row());
      RP_RETURN_IF_ERROR(write(std::move(reply)));
    }
    return absl::OkStatus();
  }

 private:
  absl::string_view RowOf(const WalkedValue& value) const {
    return request_.rows() == v1::GRID_ROWS_RANK
               ? absl::string_view(process_)
               : RowNameOf(request_.rows(), value.entry, value.name);
  }

  const v1::QueryGridRequest& request_;
  StatisticsGrid grid_;
  v1::GridHead head_;
  // State of the current rank-step.
  std::string process_;
  int64_t rank_ = -1;
};

}  // namespace

absl::Status QueryGrid(const QuerySources& sources,
                       const v1::QueryGridRequest& request,
                       absl::FunctionRef<bool()> cancelled,
                       absl::FunctionRef<absl::Status(v1::GridReply)> write,
                       std::vector<std::string>* unreadable) {
  std::vector<std::string> ignored;
  if (unreadable == nullptr) unreadable = &ignored;
  RP_RETURN_IF_ERROR(CheckGridRequest(request));
  RP_ASSIGN_OR_RETURN(const Stat stat, ParseStatistic(request.statistic()));
  if (const std::optional<SummaryStat> summary = SummaryFor(request, stat);
      summary.has_value()) {
    const absl::StatusOr<bool> answered =
        QuerySummaries(sources, request, *summary, CellsOf(request), cancelled,
                       write, unreadable);
    // Nothing is written before everything is read, so if summaries are damaged
    // the records can answer instead.
    if (!IsDamage(answered.status())) {
      RP_RETURN_IF_ERROR(answered.status());
      if (*answered) return absl::OkStatus();
    }
  }
  // Only both extremes together show whether all of a tensor is finite.
  std::vector<Stat> stats = {stat};
  if (stat == kMax) stats.push_back(kMin);
  if (stat == kMin) stats.push_back(kMax);
  Query query(request);
  RP_ASSIGN_OR_RETURN(
      const WalkReport report,
      WalkStatistics(sources, SelectionOf(request), stats, cancelled, &query));
  *unreadable = report.unreadable;
  return query.Write(report, write);
}

}  // namespace rankprobe
