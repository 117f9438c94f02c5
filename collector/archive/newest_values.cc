// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/newest_values.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "collector/archive/ledger.h"
#include "collector/archive/run_steps.h"
#include "collector/archive/statistics_walk.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Limit for a label of a monitor; a longer one is a mistake.
constexpr size_t kMaxNameBytes = 1024;

using StepOfProcess = std::map<std::string, int64_t>;

// Returns the newest step of each process that is rolled up and not deleted.
absl::StatusOr<StepOfProcess> FindNewest(const QuerySources& sources,
                                         const std::string& run) {
  StepOfProcess newest;
  const auto take = [&newest](const v1::StepInfo& step) {
    const auto [it, fresh] =
        newest.emplace(ProcessDirectory(step), step.step());
    if (!fresh) it->second = std::max(it->second, step.step());
  };
  RP_ASSIGN_OR_RETURN(
      std::optional<RunSteps> found,
      FindRunSteps(sources, run, 0, std::numeric_limits<int64_t>::max(),
                   IntSet()));
  if (!found.has_value()) return newest;
  for (const v1::StepInfo& step : found->singles) {
    if (!found->unrolled.contains({step.incarnation(), step.step()}))
      take(step);
  }
  // Searches backwards, in growing pieces, so that a long run is not scanned
  // for its end. A range is finished once something was found in it.
  std::vector<ProcessRange> open = std::move(found->ranges);
  for (uint64_t piece = 64; !open.empty(); piece *= 64) {
    std::vector<ProcessRange> ends = open;
    for (ProcessRange& range : ends)
      range.first = range.last - std::min(range.last - range.first, piece - 1);
    std::vector<bool> done(open.size());
    RP_RETURN_IF_ERROR(sources.series->ForEachHeadIn(
        found->run, ends,
        [&](size_t range, int64_t step, const v1::RollupHead& head) {
          if (head.deleted()) return absl::OkStatus();
          done[range] = true;
          take(StepOf(found->Of(ends[range]), step, head));
          return absl::OkStatus();
        }));
    std::vector<ProcessRange> rest;
    for (size_t i = 0; i < open.size(); ++i) {
      if (done[i] || ends[i].first == open[i].first) continue;
      rest.push_back(open[i]);
      rest.back().last = ends[i].first - 1;
    }
    open = std::move(rest);
  }
  return newest;
}

// Takes the values of a process' newest step.
class Newest final : public StatisticsVisitor {
 public:
  Newest(std::string run, const StepOfProcess& newest, size_t max_values,
         NewestValues* out)
      : run_(std::move(run)),
        newest_(newest),
        max_values_(max_values),
        out_(*out) {}

  absl::Status OnBegin(const std::vector<v1::StepInfo>&) override {
    return absl::OkStatus();
  }

  absl::Status OnRankStep(const v1::StepInfo& step) override {
    const std::string process = ProcessDirectory(step);
    const auto it = newest_.find(process);
    wanted_ = it != newest_.end() && it->second == step.step();
    if (!wanted_) return absl::OkStatus();
    const auto [place, fresh] = places_.emplace(process, out_.steps.size());
    if (fresh) out_.steps.push_back({run_, process, step.step()});
    place_ = place->second;
    return absl::OkStatus();
  }

  absl::Status OnValue(const WalkedValue& value) override {
    // If two patterns match the value, the first one has already added it.
    if (!wanted_ ||
        !known_.insert(absl::StrCat(place_, " ", value.name)).second) {
      return absl::OkStatus();
    }
    if (out_.values.size() >= max_values_ ||
        value.name.size() > kMaxNameBytes) {
      ++out_.left_out;
      return absl::OkStatus();
    }
    NewestValue& taken = out_.values.emplace_back();
    taken.step = place_;
    taken.name = std::string(value.name);
    std::copy(value.numbers.begin(), value.numbers.end(),
              taken.numbers.begin());
    return absl::OkStatus();
  }

 private:
  const std::string run_;
  const StepOfProcess& newest_;
  const size_t max_values_;
  NewestValues& out_;
  std::map<std::string, size_t> places_;
  absl::flat_hash_set<std::string> known_;
  // State of the current rank-step.
  bool wanted_ = false;
  size_t place_ = 0;
};

}  // namespace

absl::StatusOr<NewestValues> ReadNewestValues(
    const QuerySources& sources, absl::Span<const std::string> runs,
    absl::Span<const std::string> patterns, size_t max_values,
    absl::FunctionRef<bool()> stopped) {
  NewestValues out;
  const std::vector<Stat> stats(kNewestStats.begin(), kNewestStats.end());
  for (const std::string& run : runs) {
    if (stopped()) {
      out.complete = false;
      return out;
    }
    const absl::StatusOr<StepOfProcess> newest = FindNewest(sources, run);
    if (absl::IsNotFound(newest.status())) continue;
    RP_RETURN_IF_ERROR(newest.status());
    std::set<int64_t> steps;
    for (const auto& [process, step] : *newest) steps.insert(step);
    Newest visitor(run, *newest, max_values, &out);
    ValueSelection selection;
    selection.run = run;
    for (const int64_t step : steps) {
      selection.steps = IntSet({step});
      for (const std::string& pattern : patterns) {
        selection.match = pattern;
        const absl::Status walked =
            WalkStatistics(sources, selection, stats, stopped, &visitor)
                .status();
        if (absl::IsCancelled(walked)) {
          out.complete = false;
          return out;
        }
        RP_RETURN_IF_ERROR(walked);
      }
    }
  }
  return out;
}

}  // namespace rankprobe
