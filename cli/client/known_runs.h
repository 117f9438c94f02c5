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

// Whether the run has a plan; true if the collector refuses to say. UNAVAILABLE: it
// does not answer.
absl::StatusOr<bool> HasPlan(const Client& client, const std::string& run);

// OK if ranks, a plan or an archive of the run exist, or if this cannot be
// determined. UNAVAILABLE as of HasPlan(). Else NOT_FOUND, with the existing runs;
// `advice` ends the line.
absl::Status CheckRunIsThere(const Client& client, const std::string& run,
                             absl::string_view advice);

// Of a verb that answers for any name, with nothing: a person gets that error,
// a program (--json), which may wait for the run, a line on standard error.
// `run` may be empty: all.
absl::Status SayNoSuchRun(const Client& client, const Globals& globals,
                          const std::string& run);

// A NOT_FOUND that says `no run named "x"`, with the runs that are there; any
// other status as it is.
absl::Status WithRunsThereAre(const Client& client, const absl::Status& status);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_KNOWN_RUNS_H_
