// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/statistics_walk.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collector/archive/choose_steps.h"
#include "collector/archive/ledger.h"
#include "collector/archive/load_step.h"
#include "collector/archive/rollup.h"
#include "collector/archive/rollup_reader.h"
#include "collector/archive/run_steps.h"
#include "common/base/status_macros.h"
#include "common/records/call_values.h"
#include "common/text/glob.h"
#include "dump_format/statistics_json.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxMatchBytes = 4096;

absl::Status WalkRecords(const StepView& view, const std::vector<Stat>& stats,
                         ValueChooser* chooser, StatisticsVisitor* visitor) {
  std::vector<std::optional<double>> numbers(stats.size());
  absl::Status status;
  for (const v1::CallPhase& call : view.calls) {
    ForEachNamedTensor(call, [&](TensorPlace at, absl::string_view name,
                                 const v1::TensorSummary& tensor) {
      if (!status.ok() ||
          !chooser->Wants(IsGiven(at.section), call.entry(), name))
        return;
      for (size_t i = 0; i < stats.size(); ++i)
        numbers[i] = StatisticOf(tensor, stats[i]);
      status = visitor->OnValue({call.entry(), chooser->name(), numbers});
    });
    RP_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

struct RankSteps {
  // By step, then by rank.
  std::vector<v1::StepInfo> steps;
  size_t deleted = 0;
};

// Returns the steps that the derived statistics list; nullopt if they cannot
// list this selection.
absl::StatusOr<std::optional<RankSteps>> FindRolledUpSteps(
    const QuerySources& sources, const ValueSelection& selection) {
  const absl::Span<const IntInterval> wanted = selection.steps.intervals();
  if (!selection.steps.all() && wanted.size() != 1) return std::nullopt;
  RP_ASSIGN_OR_RETURN(
      std::optional<RunSteps> found,
      FindRunSteps(sources, selection.run,
                   wanted.empty() ? 0 : wanted.front().first,
                   wanted.empty() ? std::numeric_limits<int64_t>::max()
                                  : wanted.front().last,
                   selection.ranks, selection.incarnations));
  if (!found.has_value()) return std::nullopt;
  RankSteps out;
  out.deleted = found->deleted;
  out.steps = std::move(found->singles);
  RP_RETURN_IF_ERROR(sources.series->ForEachHeadIn(
      found->run, found->ranges,
      [&](size_t range, int64_t step, const v1::RollupHead& head) {
        if (head.deleted()) {
          ++out.deleted;
        } else {
          out.steps.push_back(
              StepOf(found->Of(found->ranges[range]), step, head));
        }
        return absl::OkStatus();
      }));
  const auto place = [](const v1::StepInfo& step) {
    return std::make_tuple(step.step(), !step.has_rank(),
                           step.has_rank() ? step.rank() : step.pid());
  };
  const auto before = [&](const v1::StepInfo& a, const v1::StepInfo& b) {
    return place(a) < place(b);
  };
  // The steps of one process are already sorted.
  if (!std::is_sorted(out.steps.begin(), out.steps.end(), before))
    std::sort(out.steps.begin(), out.steps.end(), before);
  return out;
}

absl::StatusOr<RankSteps> FindRankSteps(const QuerySources& sources,
                                        const ValueSelection& selection) {
  absl::StatusOr<std::optional<RankSteps>> rolled_up =
      FindRolledUpSteps(sources, selection);
  // If derived statistics are damaged, the records are still complete.
  if (!IsDamage(rolled_up.status())) {
    RP_RETURN_IF_ERROR(rolled_up.status());
    if (rolled_up->has_value()) return **std::move(rolled_up);
  }
  RP_ASSIGN_OR_RETURN(
      std::vector<v1::StepInfo> all,
      sources.records->ListSteps(selection.run, selection.steps));
  std::erase_if(all, [&](const v1::StepInfo& step) {
    return !IsChosen(selection.incarnations, step.incarnation());
  });
  ChosenSteps chosen = ChooseSteps(all, selection.ranks);
  RankSteps out;
  out.steps = std::move(chosen.steps);
  out.deleted = chosen.deleted.size();
  return out;
}

}  // namespace

absl::StatusOr<ValueChooser> ValueChooser::Make(const std::string& match,
                                                v1::GridValues values) {
  if (!v1::GridValues_IsValid(values))
    return absl::InvalidArgumentError("unknown kind of values");
  if (match.size() > kMaxMatchBytes)
    return absl::InvalidArgumentError("a pattern has at most 4,096 bytes");
  return ValueChooser(match, values);
}

bool ValueChooser::Wants(bool given, absl::string_view entry,
                         absl::string_view name) {
  if (values_ == v1::GRID_VALUES_OUTPUTS && given) return false;
  if (values_ == v1::GRID_VALUES_INPUTS && !given) return false;
  name_.assign(entry.data(), entry.size());
  if (!name.empty()) absl::StrAppend(&name_, ".", name);
  return is_glob_ ? GlobMatches(match_, name_)
                  : absl::StrContains(name_, match_);
}

absl::StatusOr<WalkReport> WalkStatistics(const QuerySources& sources,
                                          const ValueSelection& selection,
                                          const std::vector<Stat>& stats,
                                          absl::FunctionRef<bool()> cancelled,
                                          StatisticsVisitor* visitor) {
  RP_ASSIGN_OR_RETURN(ValueChooser chooser,
                      ValueChooser::Make(selection.match, selection.values));
  RP_ASSIGN_OR_RETURN(const RankSteps chosen,
                      FindRankSteps(sources, selection));
  RP_RETURN_IF_ERROR(visitor->OnBegin(chosen.steps));
  RollupReader rollups(sources.series, stats);
  RP_RETURN_IF_ERROR(rollups.Open(
      selection.run,
      [&](bool given,
          const v1::RollupName& name) -> std::optional<std::string> {
        if (!chooser.Wants(given, name.entry(), name.value()))
          return std::nullopt;
        return chooser.name();
      }));
  WalkReport report;
  report.deleted_rank_steps = chosen.deleted;
  for (size_t next = 0, read = 0; next < chosen.steps.size(); ++next) {
    if (cancelled()) return absl::CancelledError("the caller has disconnected");
    if (next == read) {
      const absl::Span<const v1::StepInfo> portion =
          absl::MakeConstSpan(chosen.steps).subspan(next, rollups.portion());
      RP_RETURN_IF_ERROR(rollups.Read(portion));
      read += portion.size();
    }
    const v1::StepInfo& step = chosen.steps[next];
    ++report.rank_steps;
    if (!step.complete()) ++report.incomplete_rank_steps;
    RP_RETURN_IF_ERROR(visitor->OnRankStep(step));
    RP_ASSIGN_OR_RETURN(
        const bool rolled_up,
        rollups.ForEachValue(
            step, [&](const RollupReader::Name& name,
                      absl::Span<const std::optional<double>> numbers) {
              return visitor->OnValue({name.entry, name.value, numbers});
            }));
    if (rolled_up) {
      ++report.rolled_up_rank_steps;
      continue;
    }
    const absl::StatusOr<StepView> view =
        LoadStep(sources.records, KeyOf(selection.run, step));
    if (IsDamage(view.status())) {
      if (step.complete()) ++report.incomplete_rank_steps;
      report.unreadable.push_back(UnreadableText(step, view.status()));
      continue;
    }
    RP_RETURN_IF_ERROR(view.status());
    RP_RETURN_IF_ERROR(WalkRecords(*view, stats, &chooser, visitor));
  }
  return report;
}

}  // namespace rankprobe
