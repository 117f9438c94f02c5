// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/run_steps.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "collector/archive/choose_steps.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Limit for rank-steps that are read one by one.
constexpr size_t kMaxSingles = 1 << 20;
// Limit for processes of one rank; each pair of them is compared.
constexpr size_t kMaxProcesses = 1 << 10;

struct Process {
  uint64_t incarnation = 0;
  int64_t first = 0, last = 0;
};

using StepIntervals = std::vector<std::pair<int64_t, int64_t>>;

// Returns them ascending and disjoint.
StepIntervals Joined(StepIntervals intervals) {
  std::sort(intervals.begin(), intervals.end());
  StepIntervals out;
  for (const auto& interval : intervals) {
    if (!out.empty() && interval.first <= out.back().second) {
      out.back().second = std::max(out.back().second, interval.second);
    } else {
      out.push_back(interval);
    }
  }
  return out;
}

// Returns the steps that more than one process may have.
StepIntervals Disputed(const std::vector<Process>& processes) {
  StepIntervals out;
  for (size_t i = 0; i < processes.size(); ++i) {
    for (size_t k = i + 1; k < processes.size(); ++k) {
      const int64_t first = std::max(processes[i].first, processes[k].first);
      const int64_t last = std::min(processes[i].last, processes[k].last);
      if (first <= last) out.emplace_back(first, last);
    }
  }
  return Joined(std::move(out));
}

bool IsIn(const StepIntervals& intervals, int64_t step) {
  const auto it = std::upper_bound(
      intervals.begin(), intervals.end(), step,
      [](int64_t s, const auto& interval) { return s < interval.first; });
  return it != intervals.begin() && step <= std::prev(it)->second;
}

bool IsAskedFor(const v1::Identity& identity, const IntSet& ranks,
                const OfIncarnations& incarnations) {
  return IsChosen(incarnations, identity.incarnation()) &&
         (ranks.all() ||
          (identity.has_rank() && ranks.Contains(identity.rank())));
}

// Adds the remaining steps of a process.
void AddRest(const Process& process, const StepIntervals& without,
             std::vector<ProcessRange>* out) {
  int64_t next = process.first;
  const auto add = [&](int64_t last) {
    if (next <= last) {
      out->push_back({process.incarnation, static_cast<uint64_t>(next),
                      static_cast<uint64_t>(last)});
    }
  };
  for (const auto& [first, last] : without) {
    if (last < process.first || first > process.last) continue;
    add(first - 1);
    if (last >= process.last) return;
    next = std::max(next, last + 1);
  }
  add(process.last);
}

}  // namespace

v1::StepInfo StepOf(const v1::Identity& identity, int64_t step,
                    const v1::RollupHead& head) {
  v1::StepInfo info;
  info.set_step(step);
  if (identity.has_rank()) info.set_rank(identity.rank());
  info.set_pid(identity.pid());
  info.set_host(identity.host());
  info.set_incarnation(identity.incarnation());
  info.set_records(head.records());
  info.set_deleted(head.deleted());
  info.set_complete(!head.incomplete() && !head.deleted());
  return info;
}

absl::StatusOr<std::optional<RunSteps>> FindRunSteps(
    const QuerySources& sources, const std::string& run, int64_t first_step,
    int64_t last_step, const IntSet& ranks,
    const OfIncarnations& incarnations) {
  if (sources.series == nullptr) return std::optional<RunSteps>();
  RunSteps out;
  out.last_step = last_step;
  RP_ASSIGN_OR_RETURN(out.run, sources.series->RunNumber(run));
  // A step that is rolled up between this read and the next one may be read
  // from its records, which give the same result.
  std::map<uint64_t, StepIntervals> unrolled;
  std::set<std::pair<int64_t, uint64_t>> sought;
  RP_RETURN_IF_ERROR(sources.series->ForEachUnrolled(
      out.run, [&](int64_t step, uint64_t incarnation) {
        if (step < first_step || step > last_step) return absl::OkStatus();
        unrolled[incarnation].emplace_back(step, step);
        return absl::OkStatus();
      }));
  std::map<std::pair<bool, int64_t>, std::vector<Process>> by_rank;
  RP_RETURN_IF_ERROR(sources.records->ForEachIncarnation(
      run, [&](const v1::IncarnationRow& row) {
        const v1::Identity& identity = row.identity();
        if (!IsAskedFor(identity, ranks, incarnations)) return;
        const int64_t first = std::max(first_step, row.lowest_step());
        const int64_t last = std::min(last_step, row.highest_step());
        if (!row.has_lowest_step() || first > last) return;
        out.processes[identity.incarnation()] = identity;
        out.ends[identity.incarnation()] = row.highest_step();
        by_rank[{!identity.has_rank(),
                 identity.has_rank() ? identity.rank() : identity.pid()}]
            .push_back({identity.incarnation(), first, last});
      }));
  std::vector<ProcessRange> disputed_ranges;
  for (auto& [rank, processes] : by_rank) {
    if (processes.size() > kMaxProcesses) return std::optional<RunSteps>();
    const StepIntervals disputed = Disputed(processes);
    for (const Process& process : processes) {
      StepIntervals without = disputed;
      if (const auto own = unrolled.find(process.incarnation);
          own != unrolled.end()) {
        for (const auto& [step, same] : own->second) {
          if (step < process.first || step > process.last) continue;
          out.unrolled.emplace(process.incarnation, step);
          sought.emplace(step, process.incarnation);
          if (!IsIn(disputed, step)) without.emplace_back(step, step);
        }
        without = Joined(std::move(without));
      }
      AddRest(process, without, &out.ranges);
      for (const auto& [first, last] : disputed) {
        const auto from = static_cast<uint64_t>(std::max(first, process.first));
        const auto to = static_cast<uint64_t>(std::min(last, process.last));
        if (first <= process.last && last >= process.first)
          disputed_ranges.push_back({process.incarnation, from, to});
      }
    }
  }
  if (sought.size() > kMaxSingles) return std::optional<RunSteps>();
  const auto ascending = [](const ProcessRange& a, const ProcessRange& b) {
    return std::tie(a.incarnation, a.first) < std::tie(b.incarnation, b.first);
  };
  std::sort(out.ranges.begin(), out.ranges.end(), ascending);
  std::sort(disputed_ranges.begin(), disputed_ranges.end(), ascending);
  const absl::Status looked = sources.series->ForEachHeadIn(
      out.run, disputed_ranges,
      [&](size_t range, int64_t step, const v1::RollupHead&) {
        sought.emplace(step, disputed_ranges[range].incarnation);
        return sought.size() > kMaxSingles ? absl::OutOfRangeError("too many")
                                           : absl::OkStatus();
      });
  if (sought.size() > kMaxSingles) return std::optional<RunSteps>();
  RP_RETURN_IF_ERROR(looked);
  RP_ASSIGN_OR_RETURN(const std::vector<v1::StepInfo> found,
                      sources.series->FindSteps(
                          out.run, std::vector<std::pair<int64_t, uint64_t>>(
                                       sought.begin(), sought.end())));
  ChosenSteps chosen = ChooseSteps(found, IntSet());
  out.singles = std::move(chosen.steps);
  out.deleted = chosen.deleted.size();
  return std::optional<RunSteps>(std::move(out));
}

}  // namespace rankprobe
