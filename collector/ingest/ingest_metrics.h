// SPDX-License-Identifier: Apache-2.0
// Counters of the ingest path, read by the metrics endpoint.
// Threads: any; each counter is exact, together they are not one snapshot.
#ifndef RANKPROBE_COLLECTOR_INGEST_INGEST_METRICS_H_
#define RANKPROBE_COLLECTOR_INGEST_INGEST_METRICS_H_

#include <atomic>
#include <cstdint>

#include "common/base/duration_histogram.h"

namespace rankprobe {

struct IngestMetrics {
  std::atomic<uint64_t> accepted_frames{0};
  std::atomic<uint64_t> accepted_bytes{0};
  // Part of accepted_bytes that was read from memory of ranks on this host.
  std::atomic<uint64_t> lane_bytes{0};
  std::atomic<uint64_t> duplicate_frames{0};
  // Frames that were refused, alone or with the stream that sent them.
  std::atomic<uint64_t> refused_frames{0};
  // Frames that did not match their checksum on arrival; they are requested
  // again.
  std::atomic<uint64_t> damaged_frames{0};
  // Times that uploads had to wait because there was no space.
  std::atomic<uint64_t> no_space_retries{0};
  std::atomic<uint64_t> committed_bytes{0};
  DurationHistogram commit_seconds;
  DurationHistogram sync_seconds;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_INGEST_METRICS_H_
