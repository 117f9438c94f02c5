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
#include "absl/types/span.h"
#include "collector/archive/choose_steps.h"
#include "collector/archive/ledger.h"
#include "collector/archive/load_step.h"
#include "collector/archive/rollup.h"
#include "collector/archive/rollup_reader.h"
#include "collector/archive/statistics_grid.h"
#include "common/base/status_macros.h"
#include "common/records/call_values.h"
#include "common/records/entry_names.h"
#include "common/text/glob.h"
#include "common/text/visible_text.h"
#include "dump_format/statistics_json.h"

namespace rankprobe {
namespace {

constexpr uint32_t kUsualCells = 100000, kMostCells = 1000000;
constexpr size_t kMaxMatchBytes = 4096;

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

class Query {
 public:
  Query(const v1::QueryGridRequest& request, Stat stat)
      : request_(request),
        stat_(stat),
        is_glob_(request.match().find_first_of("*?") != std::string::npos),
        grid_(request.reducer(), {Cells(request)}) {}

  // Rows of ranks are in the order of their numbers, whoever came first.
  absl::Status AddRanks(const std::vector<v1::StepInfo>& steps) {
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

  // Whether the question is about it; name() is its name then.
  bool Wants(bool given, absl::string_view entry, absl::string_view name) {
    if (request_.values() == v1::GRID_VALUES_OUTPUTS && given) return false;
    if (request_.values() == v1::GRID_VALUES_INPUTS && !given) return false;
    value_.assign(entry.data(), entry.size());
    if (!name.empty()) absl::StrAppend(&value_, ".", name);
    return is_glob_ ? GlobMatches(request_.match(), value_)
                    : absl::StrContains(value_, request_.match());
  }
  const std::string& name() const { return value_; }

  absl::Status AddStep(Store* store, const v1::StepInfo& step,
                       RollupReader* rollups) {
    RP_RETURN_IF_ERROR(grid_.BeginStep(step.step()));
    head_.set_rank_steps(head_.rank_steps() + 1);
    if (!step.complete())
      head_.set_incomplete_rank_steps(head_.incomplete_rank_steps() + 1);
    const std::string process = ProcessDirectory(step);
    const int64_t rank = step.has_rank() ? step.rank() : -1;
    RP_ASSIGN_OR_RETURN(
        const bool rolled_up,
        rollups->ForEachValue(step, [&](const RollupReader::Name& name,
                                        std::optional<double> number) {
          value_.assign(name.value);
          return AddNumber(name.entry, process, rank, number);
        }));
    if (rolled_up) {
      head_.set_rolled_up_rank_steps(head_.rolled_up_rank_steps() + 1);
      return absl::OkStatus();
    }
    RP_ASSIGN_OR_RETURN(const StepView view,
                        LoadStep(store, KeyOf(request_.run(), step)));
    absl::Status status;
    for (const v1::CallPhase& call : view.calls) {
      ForEachNamedTensor(call, [&](CallSection section, absl::string_view name,
                                   const v1::TensorSummary& tensor) {
        if (status.ok() && Wants(IsGiven(section), call.entry(), name)) {
          status = AddNumber(call.entry(), process, rank,
                             StatisticOf(tensor, stat_));
        }
      });
      RP_RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  }

  absl::Status Write(size_t deleted,
                     absl::FunctionRef<absl::Status(v1::GridReply)> write) {
    grid_.FillHead(&head_);
    head_.set_deleted_rank_steps(deleted);
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

  absl::Status AddNumber(const std::string& entry, const std::string& process,
                         int64_t rank, std::optional<double> number) {
    head_.set_tensors(head_.tensors() + 1);
    if (!number.has_value()) {
      head_.set_tensors_without(head_.tensors_without() + 1);
      return absl::OkStatus();
    }
    return grid_.Add(RowOf(entry, process), rank, *number);
  }

  absl::string_view RowOf(const std::string& entry,
                          const std::string& process) const {
    switch (request_.rows()) {
      case v1::GRID_ROWS_CALL:
        return entry;
      case v1::GRID_ROWS_MODULE: {
        const absl::string_view module = ModuleOfEntry(entry);
        if (!module.empty()) return module;
        // "Functional.relu" of "Functional.relu.0.forward".
        const absl::string_view op = OpOfEntry(entry);
        if (op.empty()) return entry;
        return absl::string_view(entry).substr(
            0, static_cast<size_t>(op.data() - entry.data()) + op.size());
      }
      case v1::GRID_ROWS_RANK:
        return process;
      default:
        return value_;
    }
  }

  const v1::QueryGridRequest& request_;
  const Stat stat_;
  const bool is_glob_;
  StatisticsGrid grid_;
  v1::GridHead head_;
  // Name of the value that is looked at.
  std::string value_;
};

absl::Status Check(const v1::QueryGridRequest& request) {
  if (!v1::GridRows_IsValid(request.rows()) ||
      !v1::GridReducer_IsValid(request.reducer()) ||
      !v1::GridValues_IsValid(request.values()))
    return absl::InvalidArgumentError(
        "unknown kind of rows, values or reducer");
  if (request.match().size() > kMaxMatchBytes)
    return absl::InvalidArgumentError("a pattern has at most 4,096 bytes");
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
  IntSet steps;
  if (request.has_first_step() || request.has_last_step()) {
    steps = IntSet::OfIntervals(
        {{request.has_first_step() ? request.first_step() : 0,
          request.has_last_step() ? request.last_step()
                                  : std::numeric_limits<int64_t>::max()}});
  }
  RP_ASSIGN_OR_RETURN(const std::vector<v1::StepInfo> all,
                      store->ListSteps(request.run(), steps));
  const ChosenSteps chosen = ChooseSteps(
      all, IntSet({request.ranks().begin(), request.ranks().end()}));
  Query query(request, stat);
  RP_RETURN_IF_ERROR(query.AddRanks(chosen.steps));
  RollupReader rollups(store, stat);
  RP_RETURN_IF_ERROR(rollups.Open(
      request.run(),
      [&](bool given,
          const v1::RollupName& name) -> std::optional<std::string> {
        if (!query.Wants(given, name.entry(), name.value()))
          return std::nullopt;
        return query.name();
      }));
  for (size_t next = 0, read = 0; next < chosen.steps.size(); ++next) {
    if (cancelled()) return absl::CancelledError("the caller has gone");
    if (next == read) {
      const absl::Span<const v1::StepInfo> portion =
          absl::MakeConstSpan(chosen.steps).subspan(next, rollups.portion());
      RP_RETURN_IF_ERROR(rollups.Read(portion));
      read += portion.size();
    }
    RP_RETURN_IF_ERROR(query.AddStep(store, chosen.steps[next], &rollups));
  }
  return query.Write(chosen.deleted.size(), write);
}

}  // namespace rankprobe
