// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/store_deletion.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/sealed/maintenance_log.h"
#include "collector/sealed/sealed_keys.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

using sealed::Maintenance;

void SetSteps(const std::set<int64_t>& steps, v1::SealedTombstone* tombstone) {
  for (const int64_t step : steps) {
    const int ranges = tombstone->steps_size();
    if (ranges > 0 && tombstone->steps(ranges - 1).last() + 1 == step) {
      tombstone->mutable_steps(ranges - 1)->set_last(step);
      continue;
    }
    v1::SealedStepRange* const range = tombstone->add_steps();
    range->set_first(step);
    range->set_last(step);
  }
}

}  // namespace

absl::StatusOr<v1::DeleteReport> DeleteFromStore(
    ObjectStore* store, const std::string& run,
    const std::optional<std::set<int64_t>>& steps, absl::Time now,
    const std::string& why) {
  RP_ASSIGN_OR_RETURN(const sealed::RunLog log, sealed::ReadRunLog(store, run));
  // The highest step by incarnation, if there is one.
  std::map<uint64_t, std::optional<int64_t>> processes;
  // Records of each step, as its last set counts them.
  std::map<std::pair<int64_t, uint64_t>, uint64_t> there, chosen;
  for (const v1::SealedLogEntry& set : log.sets) {
    for (const v1::IncarnationRow& row : set.incarnations())
      processes.try_emplace(row.identity().incarnation());
    for (const v1::SealedStep& step : set.steps()) {
      const v1::StepInfo& info = step.info();
      std::optional<int64_t>& highest = processes[info.incarnation()];
      highest = std::max(highest.value_or(info.step()), info.step());
      const Maintenance::Fate fate =
          log.maintenance.FateOf(info.step(), info.incarnation());
      if (fate == Maintenance::Fate::kGone) continue;
      const std::pair id(info.step(), info.incarnation());
      there[id] = std::max(there[id], info.records());
      if (fate == Maintenance::Fate::kDeleted) continue;
      if (!steps.has_value() || steps->count(info.step()) > 0)
        chosen[id] = std::max(chosen[id], info.records());
    }
  }
  bool is_known = !there.empty();
  for (const auto& [incarnation, highest] : processes)
    is_known = is_known || !log.maintenance.KnewWhenGone(incarnation);
  if (!is_known) {
    return absl::NotFoundError(
        absl::StrCat("there is no run \"", run, "\" in ", store->name()));
  }
  v1::DeleteReport report;
  report.set_later(true);
  if (steps.has_value() && chosen.empty()) return report;
  v1::SealedLogEntry entry;
  v1::SealedTombstone* const tombstone = entry.mutable_tombstone();
  if (steps.has_value()) SetSteps(*steps, tombstone);
  for (const auto& [incarnation, highest] : processes) {
    v1::SealedTombstoneProcess* const process = tombstone->add_processes();
    process->set_incarnation(incarnation);
    if (highest.has_value()) process->set_highest_step(*highest);
  }
  tombstone->set_unix_ns(absl::ToUnixNanos(now));
  tombstone->set_why(why);
  RP_RETURN_IF_ERROR(
      sealed::AppendEntry(store, run, sealed::kMaintenanceShard, entry)
          .status());
  report.set_steps(chosen.size());
  for (const auto& [id, records] : chosen)
    report.set_records(report.records() + records);
  return report;
}

absl::StatusOr<ExpiredSteps> ExpireInStore(
    ObjectStore* store, const std::string& run,
    const std::function<bool(int64_t step, uint64_t incarnation)>& wanted,
    absl::Time written_before, absl::Time now) {
  RP_ASSIGN_OR_RETURN(const sealed::RunLog log, sealed::ReadRunLog(store, run));
  // The highest step by incarnation, if there is one.
  std::map<uint64_t, std::optional<int64_t>> processes;
  std::set<std::pair<int64_t, uint64_t>> there;
  std::map<int64_t, int64_t> written;
  for (const v1::SealedLogEntry& set : log.sets) {
    for (const v1::IncarnationRow& row : set.incarnations())
      processes.try_emplace(row.identity().incarnation());
    for (const v1::SealedStep& step : set.steps()) {
      const v1::StepInfo& info = step.info();
      std::optional<int64_t>& highest = processes[info.incarnation()];
      highest = std::max(highest.value_or(info.step()), info.step());
      if (log.maintenance.FateOf(info.step(), info.incarnation()) !=
          Maintenance::Fate::kThere)
        continue;
      there.emplace(info.step(), info.incarnation());
      int64_t& last = written[info.step()];
      last = std::max(last, info.updated_unix_ns());
    }
  }
  ExpiredSteps expired;
  std::map<uint64_t, std::set<int64_t>> chosen;
  for (const auto& [step, incarnation] : there) {
    if (!wanted(step, incarnation) ||
        absl::FromUnixNanos(written[step]) >= written_before)
      continue;
    chosen[incarnation].insert(step);
    ++expired.steps;
  }
  if (chosen.empty()) return expired;
  expired.whole_run = expired.steps == there.size();
  std::vector<v1::SealedTombstone> tombstones;
  if (expired.whole_run) {
    v1::SealedTombstone& tombstone = tombstones.emplace_back();
    for (const auto& [incarnation, highest] : processes) {
      v1::SealedTombstoneProcess* const process = tombstone.add_processes();
      process->set_incarnation(incarnation);
      if (highest.has_value()) process->set_highest_step(*highest);
    }
  } else {
    // The steps of a tombstone apply to all of its processes: processes with
    // the same steps share one, as the ranks of one collector do.
    std::map<std::set<int64_t>, std::vector<uint64_t>> alike;
    for (const auto& [incarnation, steps] : chosen)
      alike[steps].push_back(incarnation);
    for (const auto& [steps, incarnations] : alike) {
      v1::SealedTombstone& tombstone = tombstones.emplace_back();
      SetSteps(steps, &tombstone);
      for (const uint64_t incarnation : incarnations) {
        v1::SealedTombstoneProcess* const process = tombstone.add_processes();
        process->set_incarnation(incarnation);
        if (const auto& highest = processes[incarnation]; highest.has_value())
          process->set_highest_step(*highest);
      }
    }
  }
  for (v1::SealedTombstone& tombstone : tombstones) {
    tombstone.set_unix_ns(absl::ToUnixNanos(now));
    tombstone.set_why("retention");
    v1::SealedLogEntry entry;
    entry.mutable_tombstone()->Swap(&tombstone);
    RP_RETURN_IF_ERROR(
        sealed::AppendEntry(store, run, sealed::kMaintenanceShard, entry)
            .status());
  }
  return expired;
}

}  // namespace rankprobe
