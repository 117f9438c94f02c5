// SPDX-License-Identifier: Apache-2.0
// List of the existing runs, for the error about a run that does not exist.
// Stateless.
#ifndef RANKPROBE_CLI_CLIENT_KNOWN_RUNS_H_
#define RANKPROBE_CLI_CLIENT_KNOWN_RUNS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rankprobe/v1/archive.grpc.pb.h"
#include "rankprobe/v1/control.grpc.pb.h"

namespace rankprobe {

class Client;
struct Globals;

// Whether the run has a plan; true if the collector refuses to answer. Returns
// UNAVAILABLE if it does not answer.
absl::StatusOr<bool> HasPlan(const Client& client, const std::string& run);

// Returns OK if ranks, a plan or an archive of the run exist, or if this cannot
// be determined; UNAVAILABLE as HasPlan() does; else NOT_FOUND with the
// existing runs and `advice` at the end.
absl::Status CheckRunIsThere(const Client& client, const std::string& run,
                             absl::string_view advice);

// For verbs whose answer is empty for an unknown run: returns that error for a
// person. A program (--json) may be waiting for the run, so it gets only a line
// on standard error. `run` may be empty for all runs.
absl::Status SayNoSuchRun(const Client& client, const Globals& globals,
                          const std::string& run);

// Appends the existing runs to a NOT_FOUND that says `no run named "x"`;
// returns any other status unchanged.
absl::Status WithRunsThereAre(const Client& client, const absl::Status& status);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_KNOWN_RUNS_H_
