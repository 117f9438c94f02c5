// SPDX-License-Identifier: Apache-2.0
// Settings of an agent: explicit values override the environment.
//   RANKPROBE_COLLECTOR  host:port
//   RANKPROBE_RUN        name of the run; else TORCHELASTIC_RUN_ID, else
//                        host-pid-time
//   RANKPROBE_JOB        what `rankprobe run` started together
//   RANK, WORLD_SIZE     as torchrun sets them
//   RANKPROBE_REPLICA    the same text in processes that hold the same
//                        parameters: of several collectors they come to one
//   RANKPROBE_QUEUE_MB   byte budget of the agent, MiB
//   RANKPROBE_POLICY     block, stats_only or drop_newest
//   RANKPROBE_WAIT_MS    how long the training waits for the collector (10,000):
//                        for room in the queue, for what a step recorded, at
//                        the end, and under "fail" at the start
//   RANKPROBE_ON_COLLECTOR_MISSING
//                        ignore, spool or fail (session.h)
//   RANKPROBE_SPOOL      directory that keeps frames until they are committed
//   RANKPROBE_STOP       committed or kept: what the end of a step waits for
//   RANKPROBE_LANE       off: payloads go over the connection even where the
//                        collector is on this host
//   RANKPROBE_RESEND     set: equal payloads are sent again, for measurements
//   RANKPROBE_TLS_*, RANKPROBE_TOKEN_FILE: common/rpc/channel_security.h
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_OPTIONS_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_OPTIONS_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "agent/runtime/session/session.h"

namespace rankprobe {

struct AgentSettings {
  std::string collector;
  std::string run;
  std::optional<int64_t> rank;
  std::optional<int64_t> world_size;
  ChannelSecurityFiles security;
  // "ignore", "spool" or "fail".
  std::string on_collector_missing;
  // If set, StopBarrier::kKept is used, with its files in this directory.
  std::string kept_directory;
};

// Reads one variable; returns null if it is not set.
using Environment = std::function<const char*(const char*)>;

// Returns INVALID_ARGUMENT for a variable that cannot be parsed.
// SessionOptions.collector stays empty if no collector was named.
absl::StatusOr<SessionOptions> MakeSessionOptions(
    const AgentSettings& settings, const Environment& environment,
    const Clock& clock);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_OPTIONS_H_
