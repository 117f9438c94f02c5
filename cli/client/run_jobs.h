// SPDX-License-Identifier: Apache-2.0
// The jobs that recorded a run. A name may be used again, by another job or by
// one that continues the first, so the steps may belong to several trainings.
// Jobs are distinguished by the name that `rankprobe run` gives a job, by two
// processes of one rank, and by the times of processes without a rank. JobsOf()
// is pure.
#ifndef RANKPROBE_CLI_CLIENT_RUN_JOBS_H_
#define RANKPROBE_CLI_CLIENT_RUN_JOBS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client/client.h"

namespace rankprobe {

struct RunJob {
  std::set<uint64_t> incarnations;
  // Directories such as "rank3" and "proc4711".
  std::set<std::string> places;
  std::set<int64_t> steps;
  // Of the process that started first.
  int64_t pid = 0;
  std::string host;
  // Arrival times of the first and the last record.
  int64_t first_ns = 0, last_ns = 0;
};

// Returns the jobs in the order of their start. `steps` are those of one run.
std::vector<RunJob> JobsOf(const std::vector<v1::StepInfo>& steps);

// Returns "job 1, process 12 on h (steps 0-9, until 2026-11-28 14:00:00); job
// 2, .."
std::string JobsText(const std::vector<RunJob>& jobs);

// The part of a run that is judged.
struct JudgedJob {
  // Unset if the run has only one job, or if each job continues the one before.
  std::optional<RunJob> only;
  // Lines about the choice, and the data of the other jobs with the command
  // that judges it.
  std::vector<std::string> notes;
  std::vector<std::pair<std::string, std::string>> unjudged;
};

// Chooses job number `wanted`, counted from 1 in the order of JobsOf(), or the
// newest. Returns INVALID_ARGUMENT if there is no such job.
absl::StatusOr<JudgedJob> ChooseJob(const std::string& run,
                                    const std::vector<RunJob>& jobs,
                                    std::optional<int64_t> wanted,
                                    const std::string& verb);

// Returns the jobs, or an empty list if the run has only one job or does not
// exist; the next call reports the latter.
absl::StatusOr<std::vector<RunJob>> ReadJobs(const Client& client,
                                             const std::string& run);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_RUN_JOBS_H_
