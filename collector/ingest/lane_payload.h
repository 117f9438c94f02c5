// SPDX-License-Identifier: Apache-2.0
// A chunk whose bytes lie in memory that its rank shares: they are copied once,
// and everything that follows (checksum, digest, segment) uses this copy. If
// the rank changes its memory meanwhile, that changes what is copied, never
// what was checked.
// Thread-safe: pure functions.
#ifndef RANKPROBE_COLLECTOR_INGEST_LANE_PAYLOAD_H_
#define RANKPROBE_COLLECTOR_INGEST_LANE_PAYLOAD_H_

#include "absl/status/status.h"
#include "common/io/shared_memory.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// Returns whether the frame holds a chunk whose bytes are in shared memory.
inline bool IsOnLane(const v1::UploadFrame& untrusted) {
  return untrusted.has_chunk() && untrusted.chunk().has_lane();
}

// Replaces the reference by the bytes and their checksum. INVALID_ARGUMENT: the
// frame has to be refused. `memory` is null if the session shares none.
absl::Status TakeFromLane(const SharedMemoryReader* memory,
                          v1::UploadFrame* untrusted);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_LANE_PAYLOAD_H_
