// SPDX-License-Identifier: Apache-2.0
#include "collector/store/run_processes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rankprobe {

void RunProcesses::Add(const v1::StepInfo& step) {
  if (!incarnations_.insert(step.incarnation()).second) return;
  if (step.has_rank()) {
    // Processes that a job restarts have its name; without a name each
    // incarnation counts as a job.
    places_[absl::StrCat("rank", step.rank())].insert(
        step.job().empty() ? absl::StrCat("#", step.incarnation())
                           : step.job());
    return;
  }
  ++without_rank_;
  places_[absl::StrCat("proc", step.pid(), "@", step.host())];
  // Processes without ranks may have no job name.
  jobs_[step.host()].insert(step.job());
}

void RunProcesses::Describe(v1::RunInfo* run) const {
  size_t jobs = 0;
  for (const auto& [host, names] : jobs_) {
    // A process without a name may belong to the job that has one.
    const bool unnamed = names.size() > 1 && names.contains("");
    jobs = std::max(jobs, names.size() - (unnamed ? 1 : 0));
  }
  for (const auto& [place, of_place] : places_)
    jobs = std::max(jobs, of_place.size());
  run->set_ranks(places_.size());
  run->set_processes(incarnations_.size());
  run->set_jobs(jobs);
  run->set_processes_without_rank(without_rank_);
}

}  // namespace rankprobe
