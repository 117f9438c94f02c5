// SPDX-License-Identifier: Apache-2.0
// A session's counters. A plain value.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_SESSION_STATS_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_SESSION_STATS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace rankprobe {

struct SessionStats {
  bool connected = false;
  // How long the collector has not acknowledged what it was sent; infinite if
  // the connection was given up for that and none was made since.
  absl::Duration silence;
  uint64_t queue_bytes = 0;
  uint64_t queue_peak_bytes = 0;
  uint64_t records = 0;
  uint64_t payloads = 0;
  uint64_t payload_bytes = 0;
  // Payload bytes not sent because the run has them already.
  uint64_t deduplicated_bytes = 0;
  // Payload bytes for which a collector on this host received the offset
  // instead.
  uint64_t lane_bytes = 0;
  uint64_t lost_records = 0;
  uint64_t lost_payloads = 0;
  uint64_t reconnects = 0;
  uint64_t committed_sequence = 0;
  uint64_t blocked_ns = 0;
  uint64_t spool_bytes = 0;
  // Last connection problem, for a person; empty if there is none.
  std::string last_error;
  // How payloads are sent, for a person: "shared memory", or over the
  // connection and why. Empty before the first large payload.
  std::string lane;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_SESSION_STATS_H_
