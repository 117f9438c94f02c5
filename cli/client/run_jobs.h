// SPDX-License-Identifier: Apache-2.0
// The jobs that recorded a run. A name may be used again, by another job or by one
// that continues the first, so the steps may belong to several trainings. Jobs are
// distinguished by the name that `rankprobe run` gives a job, by two processes of
// one rank, and by the times of processes without a rank. JobsOf() is pure.
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
  // "rank3", "proc4711"
  std::set<std::string> places;
  std::set<int64_t> steps;
  // Of the process that began first.
  int64_t pid = 0;
  std::string host;
  // When the first and the last of its records came.
  int64_t first_ns = 0, last_ns = 0;
};

// In the order in which they began. steps: of one run.
std::vector<RunJob> JobsOf(const std::vector<v1::StepInfo>& steps);

// "job 1, process 12 on h (steps 0-9, until 2026-11-28 14:00:00); job 2, .."
std::string JobsText(const std::vector<RunJob>& jobs);

// What is judged of a run.
struct JudgedJob {
  // None: one job alone has the run, or each goes on where the one before ended.
  std::optional<RunJob> only;
  // Lines that say so; and what the other jobs have, with the command that judges it.
  std::vector<std::string> notes;
  std::vector<std::pair<std::string, std::string>> unjudged;
};

// `wanted`: number of a job, from 1 in the order of JobsOf(); else the newest.
// INVALID_ARGUMENT where there is no such job.
absl::StatusOr<JudgedJob> ChooseJob(const std::string& run,
                                    const std::vector<RunJob>& jobs,
                                    std::optional<int64_t> wanted,
                                    const std::string& verb);

// Empty where one job alone has the run, and where there is no such run: the next
// question reports that.
absl::StatusOr<std::vector<RunJob>> ReadJobs(const Client& client,
                                             const std::string& run);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_RUN_JOBS_H_
