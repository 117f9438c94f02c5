// SPDX-License-Identifier: Apache-2.0
#include "collector/store/retention.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/dedup_window.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Newest steps of a connected rank that are kept even above the limit.
constexpr int64_t kKeptUnderPressure = 2;

struct RunStep {
  std::string run;
  int64_t step = 0;
  // Time of the last write by any of its ranks.
  int64_t updated_unix_ns = 0;
};

class Pass {
 public:
  Pass(Store* store, const absl::flat_hash_set<uint64_t>& live)
      : store_(store), live_(live) {}

  // Returns the steps that may be deleted, the oldest first. With `keep_steps`,
  // without those whose payloads a connected rank may refer to.
  absl::StatusOr<std::vector<RunStep>> Candidates(
      std::optional<int64_t> keep_steps) {
    std::vector<RunStep> out;
    RP_ASSIGN_OR_RETURN(const std::vector<v1::RunInfo> runs,
                        store_->ListRuns());
    for (const v1::RunInfo& run : runs) {
      RP_ASSIGN_OR_RETURN(const std::vector<v1::StepInfo> steps,
                          store_->ListSteps(run.run()));
      int64_t keep_from = INT64_MAX;
      if (keep_steps.has_value()) {
        RP_ASSIGN_OR_RETURN(
            keep_from, store_->KeepFromStep(run.run(), live_, *keep_steps));
      }
      std::map<int64_t, RunStep> by_step;
      std::set<int64_t> busy;
      for (const v1::StepInfo& step : steps) {
        // Deleting a step whose payloads must stay returns no space.
        if (step.deleted() || step.step() >= keep_from) continue;
        RunStep& entry = by_step[step.step()];
        entry.run = run.run();
        entry.step = step.step();
        entry.updated_unix_ns =
            std::max(entry.updated_unix_ns, step.updated_unix_ns());
        if (!step.has_expected_records() && live_.contains(step.incarnation()))
          busy.insert(step.step());
      }
      for (auto& [number, step] : by_step) {
        if (busy.count(number) == 0) out.push_back(std::move(step));
      }
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const RunStep& a, const RunStep& b) {
                       return a.updated_unix_ns < b.updated_unix_ns;
                     });
    return out;
  }

  // Returns the bytes of the freed payloads.
  absl::StatusOr<uint64_t> DeleteSteps(absl::Span<const RunStep> steps,
                                       int64_t keep_steps, bool reclaim) {
    uint64_t bytes = 0;
    std::map<std::string, std::set<int64_t>> by_run;
    for (const RunStep& step : steps) by_run[step.run].insert(step.step);
    for (auto& [run, numbers] : by_run) {
      DeleteOptions options{.run = run,
                            .live_incarnations = live_,
                            .keep_steps = keep_steps,
                            .reclaim = reclaim};
      RP_ASSIGN_OR_RETURN(const bool all, IsAll(run, numbers));
      if (!all) options.steps = numbers;
      const absl::StatusOr<v1::DeleteReport> done = store_->Delete(options);
      // The run was deleted by another caller meanwhile.
      if (absl::IsNotFound(done.status())) continue;
      RP_RETURN_IF_ERROR(done.status());
      bytes += done->payload_bytes();
      report.steps_deleted += numbers.size();
      if (all) ++report.runs_deleted;
    }
    return bytes;
  }

  // Deletes the oldest steps until `wanted` bytes are free. Ranks and steps
  // share payloads, so the size of a step is known only after its deletion:
  // each pass deletes as many steps as the rest should need on average.
  absl::StatusOr<uint64_t> Free(uint64_t wanted, uint64_t live_bytes,
                                int64_t keep_steps) {
    RP_ASSIGN_OR_RETURN(const std::vector<RunStep> steps,
                        Candidates(keep_steps));
    // The share of rollups per step, as if all had the same size.
    const uint64_t rollup_bytes =
        steps.empty() ? 0 : store_->RollupBytes() / steps.size();
    uint64_t freed = 0;
    for (size_t next = 0; next < steps.size() && freed < wanted;) {
      const double share = static_cast<double>(wanted - freed) /
                           static_cast<double>(std::max<uint64_t>(
                               live_bytes - std::min(freed, live_bytes), 1));
      const auto left = static_cast<double>(steps.size() - next);
      const size_t count =
          std::clamp<size_t>(static_cast<size_t>(std::min(share, 1.0) * left),
                             1, steps.size() - next);
      RP_ASSIGN_OR_RETURN(
          const uint64_t bytes,
          DeleteSteps(absl::MakeConstSpan(steps).subspan(next, count),
                      keep_steps, /*reclaim=*/false));
      freed += bytes + rollup_bytes * count;
      next += count;
    }
    return freed;
  }

  absl::Status LimitBytes(uint64_t max_bytes) {
    const uint64_t goal = max_bytes - max_bytes / 10;
    for (const int64_t keep_steps :
         {kCollectorKeepsSteps, kKeptUnderPressure}) {
      while (ArchiveBytes(store_) > max_bytes) {
        // Leaves room for dead chunks in segments that also have live ones.
        const uint64_t may_live = goal - goal / 10;
        const uint64_t rollups = store_->RollupBytes();
        const uint64_t live = report.garbage.live_bytes + rollups;
        if (live <= may_live) break;
        RP_ASSIGN_OR_RETURN(const uint64_t freed,
                            Free(live - may_live, live, keep_steps));
        // If rollups are small, LevelDB's own compactions reclaim them.
        if (rollups > max_bytes / 20) store_->CompactRollups();
        const uint64_t left = store_->RollupBytes();
        RP_ASSIGN_OR_RETURN(
            report.garbage,
            store_->CollectGarbage(live_, goal > left ? goal - left : 1));
        if (freed == 0) break;
      }
    }
    // Dead bytes of the segment being written are reclaimed with it, so they do
    // not count.
    report.over_limit =
        ArchiveBytes(store_) > max_bytes &&
        report.garbage.live_bytes + store_->RollupBytes() > goal;
    return absl::OkStatus();
  }

  RetentionReport report;

 private:
  // Returns whether these are all steps of the run and no rank of it is
  // connected.
  absl::StatusOr<bool> IsAll(const std::string& run,
                             const std::set<int64_t>& numbers) {
    RP_ASSIGN_OR_RETURN(const std::vector<v1::StepInfo> steps,
                        store_->ListSteps(run));
    bool all =
        std::all_of(steps.begin(), steps.end(), [&](const v1::StepInfo& step) {
          return step.deleted() || numbers.count(step.step()) > 0;
        });
    RP_RETURN_IF_ERROR(
        store_->ForEachIncarnation(run, [&](const v1::IncarnationRow& row) {
          all = all && !live_.contains(row.identity().incarnation());
        }));
    return all;
  }

  Store* const store_;
  const absl::flat_hash_set<uint64_t>& live_;
};

}  // namespace

uint64_t ArchiveBytes(Store* store) {
  return store->SegmentBytes() + store->RollupBytes();
}

absl::StatusOr<RetentionReport> ApplyRetention(
    Store* store, const RetentionOptions& options, absl::Time now,
    const absl::flat_hash_set<uint64_t>& live_incarnations) {
  Pass pass(store, live_incarnations);
  if (options.max_age != absl::InfiniteDuration()) {
    const int64_t before = absl::ToUnixNanos(now - options.max_age);
    RP_ASSIGN_OR_RETURN(std::vector<RunStep> steps,
                        pass.Candidates(std::nullopt));
    steps.erase(std::find_if(steps.begin(), steps.end(),
                             [before](const RunStep& step) {
                               return step.updated_unix_ns >= before;
                             }),
                steps.end());
    RP_RETURN_IF_ERROR(
        pass.DeleteSteps(steps, kCollectorKeepsSteps, /*reclaim=*/true)
            .status());
  }
  // Above the limit, segments that are partly dead are rewritten before steps
  // are deleted.
  const uint64_t target =
      options.max_bytes > 0 && ArchiveBytes(store) > options.max_bytes
          ? std::max<uint64_t>(
                options.max_bytes -
                    std::min(options.max_bytes, store->RollupBytes()),
                1)
          : 0;
  RP_ASSIGN_OR_RETURN(pass.report.garbage,
                      store->CollectGarbage(live_incarnations, target));
  if (options.max_bytes > 0)
    RP_RETURN_IF_ERROR(pass.LimitBytes(options.max_bytes));
  return pass.report;
}

}  // namespace rankprobe
