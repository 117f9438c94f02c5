#include "collector/store/retention.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/status_macros.h"

namespace rankprobe {
namespace {

struct RunStep {
  std::string run;
  int64_t step = 0;
  // Of the rank that wrote last.
  int64_t updated_unix_ns = 0;
};

class Pass {
 public:
  Pass(Store* store, const absl::flat_hash_set<uint64_t>& live)
      : store_(store), live_(live) {}

  // Steps that may go, the oldest first.
  absl::StatusOr<std::vector<RunStep>> Candidates(bool only_freeable) {
    std::vector<RunStep> out;
    RP_ASSIGN_OR_RETURN(const std::vector<v1::RunInfo> runs,
                        store_->ListRuns());
    for (const v1::RunInfo& run : runs) {
      RP_ASSIGN_OR_RETURN(const std::vector<v1::StepInfo> steps,
                          store_->ListSteps(run.run()));
      int64_t keep_from = INT64_MAX;
      if (only_freeable) {
        RP_ASSIGN_OR_RETURN(
            keep_from,
            store_->KeepFromStep(run.run(), live_, kCollectorKeepsSteps));
      }
      std::map<int64_t, RunStep> by_step;
      std::set<int64_t> busy;
      for (const v1::StepInfo& step : steps) {
        // Deleting a step whose payloads must stay gives nothing back.
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

  absl::Status DeleteSteps(const std::vector<RunStep>& steps) {
    std::map<std::string, std::set<int64_t>> by_run;
    for (const RunStep& step : steps) by_run[step.run].insert(step.step);
    for (auto& [run, numbers] : by_run) {
      DeleteOptions options;
      options.run = run;
      options.live_incarnations = live_;
      RP_ASSIGN_OR_RETURN(const bool all, IsAll(run, numbers));
      if (!all) options.steps = numbers;
      const absl::StatusOr<v1::DeleteReport> done = store_->Delete(options);
      // Somebody else was quicker.
      if (absl::IsNotFound(done.status())) continue;
      RP_RETURN_IF_ERROR(done.status());
      report.steps_deleted += numbers.size();
      if (all) ++report.runs_deleted;
    }
    return absl::OkStatus();
  }

  RetentionReport report;

 private:
  // Nothing of the run would stay, and nobody is connected to it.
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

absl::StatusOr<RetentionReport> ApplyRetention(
    Store* store, const RetentionOptions& options, absl::Time now,
    const absl::flat_hash_set<uint64_t>& live_incarnations) {
  Pass pass(store, live_incarnations);
  if (options.max_age != absl::InfiniteDuration()) {
    const int64_t before = absl::ToUnixNanos(now - options.max_age);
    RP_ASSIGN_OR_RETURN(std::vector<RunStep> steps,
                        pass.Candidates(/*only_freeable=*/false));
    steps.erase(std::find_if(steps.begin(), steps.end(),
                             [before](const RunStep& step) {
                               return step.updated_unix_ns >= before;
                             }),
                steps.end());
    RP_RETURN_IF_ERROR(pass.DeleteSteps(steps));
  }
  RP_ASSIGN_OR_RETURN(pass.report.garbage,
                      store->CollectGarbage(live_incarnations));
  if (options.max_bytes == 0) return pass.report;
  // How much a step gives back is known only when it is gone: ranks and steps
  // share payloads. A tenth of the steps at a time.
  while (pass.report.garbage.live_bytes > options.max_bytes) {
    RP_ASSIGN_OR_RETURN(std::vector<RunStep> steps,
                        pass.Candidates(/*only_freeable=*/true));
    if (steps.empty()) break;
    steps.resize(std::max<size_t>(1, steps.size() / 10));
    RP_RETURN_IF_ERROR(pass.DeleteSteps(steps));
    RP_ASSIGN_OR_RETURN(pass.report.garbage,
                        store->CollectGarbage(live_incarnations));
  }
  return pass.report;
}

}  // namespace rankprobe
