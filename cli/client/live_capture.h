// SPDX-License-Identifier: Apache-2.0
// Capture of chosen calls in full, once, on the same step of one or several
// runs in progress. Blocks until the step is in the archive. Used by verbs, on
// one thread.
#ifndef RANKPROBE_CLI_CLIENT_LIVE_CAPTURE_H_
#define RANKPROBE_CLI_CLIENT_LIVE_CAPTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client/client.h"

namespace rankprobe {

struct LiveRun {
  std::string run;
  std::vector<std::string> calls;  // entries of a dump, never empty
};

// Returns whether a rank of the run is connected.
absl::StatusOr<bool> IsLive(const Client& client, const std::string& run);

// Captures the calls and returns the step. The previous configuration of each
// run is restored afterwards, also on failure. Returns FAILED_PRECONDITION if a
// run is not in progress, DEADLINE_EXCEEDED if the step is not in the archive
// in time.
absl::StatusOr<int64_t> CaptureCalls(const Client& client,
                                     const std::vector<LiveRun>& runs,
                                     double wait_seconds);

// Returns a config.json that records exactly these calls with their tensors.
// Returns INVALID_ARGUMENT if `config_json` is not a configuration.
absl::StatusOr<std::string> CaptureConfig(
    const std::string& config_json, const std::vector<std::string>& calls);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_LIVE_CAPTURE_H_
