// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/query_grid.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collector/archive/ledger.h"
#include "collector/archive/statistics_grid.h"
#include "collector/archive/statistics_walk.h"
#include "common/base/status_macros.h"
#include "common/records/entry_names.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

constexpr uint32_t kUsualCells = 100000, kMostCells = 1000000;

absl::StatusOr<Stat> ParseStatistic(const std::string& name) {
  if (name.empty()) return kNorm;
  std::vector<absl::string_view> known;
  for (size_t i = 0; i < kStatCount; ++i) {
    if (absl::EqualsIgnoreCase(kStatInfo[i].key, name))
      return static_cast<Stat>(i);
    known.push_back(kStatInfo[i].key);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no statistic \"", VisibleText(name), "\"; there are ",
                   absl::StrJoin(known, ", ")));
}

class Query : public StatisticsVisitor {
 public:
  explicit Query(const v1::QueryGridRequest& request)
      : request_(request), grid_(request.reducer(), {Cells(request)}) {}

  // Rows of ranks are in the order of their numbers, whoever came first.
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
    return grid_.Add(RowOf(value), rank_, *value.numbers[0]);
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
      RP_RETURN_IF_ERROR(write(std::move(reply)));
    }
    return absl::OkStatus();
  }

 private:
  static size_t Cells(const v1::QueryGridRequest& request) {
    return request.max_cells() == 0 ? kUsualCells
                                    : std::min(request.max_cells(), kMostCells);
  }

  absl::string_view RowOf(const WalkedValue& value) const {
    switch (request_.rows()) {
      case v1::GRID_ROWS_CALL:
        return value.entry;
      case v1::GRID_ROWS_MODULE: {
        const absl::string_view module = ModuleOfEntry(value.entry);
        if (!module.empty()) return module;
        // "Functional.relu" of "Functional.relu.0.forward".
        const absl::string_view op = OpOfEntry(value.entry);
        if (op.empty()) return value.entry;
        return value.entry.substr(
            0, static_cast<size_t>(op.data() - value.entry.data()) + op.size());
      }
      case v1::GRID_ROWS_RANK:
        return process_;
      default:
        return value.name;
    }
  }

  const v1::QueryGridRequest& request_;
  StatisticsGrid grid_;
  v1::GridHead head_;
  // Of the rank-step that is looked at.
  std::string process_;
  int64_t rank_ = -1;
};

absl::Status Check(const v1::QueryGridRequest& request) {
  if (!v1::GridRows_IsValid(request.rows()) ||
      !v1::GridReducer_IsValid(request.reducer()))
    return absl::InvalidArgumentError("unknown kind of rows or reducer");
  if (request.has_first_step() && request.has_last_step() &&
      request.first_step() > request.last_step())
    return absl::InvalidArgumentError("the first step is behind the last one");
  return absl::OkStatus();
}

}  // namespace

absl::Status QueryGrid(Store* store, const v1::QueryGridRequest& request,
                       absl::FunctionRef<bool()> cancelled,
                       absl::FunctionRef<absl::Status(v1::GridReply)> write) {
  RP_RETURN_IF_ERROR(Check(request));
  RP_ASSIGN_OR_RETURN(const Stat stat, ParseStatistic(request.statistic()));
  ValueSelection selection;
  selection.run = request.run();
  if (request.has_first_step() || request.has_last_step()) {
    selection.steps = IntSet::OfIntervals(
        {{request.has_first_step() ? request.first_step() : 0,
          request.has_last_step() ? request.last_step()
                                  : std::numeric_limits<int64_t>::max()}});
  }
  selection.ranks = IntSet({request.ranks().begin(), request.ranks().end()});
  selection.match = request.match();
  selection.values = request.values();
  Query query(request);
  RP_ASSIGN_OR_RETURN(
      const WalkReport report,
      WalkStatistics(store, selection, {stat}, cancelled, &query));
  return query.Write(report, write);
}

}  // namespace rankprobe
