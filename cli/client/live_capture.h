// SPDX-License-Identifier: Apache-2.0
// Asks the collector to record chosen calls in full, once, on the same step of
// one run or of several that are in progress. Blocks until the step is in the
// archive. Used by verbs, on one thread.
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

// Is a rank of the run connected now?
absl::StatusOr<bool> IsLive(const Client& client, const std::string& run);

// The step. What the runs recorded before is switched on again afterwards,
// also on failure. FAILED_PRECONDITION when a run is not in progress,
// DEADLINE_EXCEEDED when the step is not in the archive in time.
absl::StatusOr<int64_t> CaptureCalls(const Client& client,
                                     const std::vector<LiveRun>& runs,
                                     double wait_seconds);

// The config.json with which exactly these calls are recorded with their
// tensors. INVALID_ARGUMENT when `config_json` is none.
absl::StatusOr<std::string> CaptureConfig(
    const std::string& config_json, const std::vector<std::string>& calls);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_LIVE_CAPTURE_H_
