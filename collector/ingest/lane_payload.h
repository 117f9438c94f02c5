// SPDX-License-Identifier: Apache-2.0
// A chunk whose bytes lie in memory that its rank has handed over: they are
// copied once, and everything that follows (checksum, digest, segment) sees this
// copy. What the rank does to its memory meanwhile changes what is copied, never
// what was checked.
// Thread-safe: pure functions.
#ifndef RANKPROBE_COLLECTOR_INGEST_LANE_PAYLOAD_H_
#define RANKPROBE_COLLECTOR_INGEST_LANE_PAYLOAD_H_

#include "absl/status/status.h"
#include "common/io/shared_memory.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// Whether the frame holds a chunk that says where its bytes lie.
inline bool IsOnLane(const v1::UploadFrame& untrusted) {
  return untrusted.has_chunk() && untrusted.chunk().has_lane();
}

// Puts the bytes and their checksum in the place of the reference.
// INVALID_ARGUMENT: the frame is to be refused. `memory` null: the session has
// handed none over.
absl::Status TakeFromLane(const SharedMemoryReader* memory,
                          v1::UploadFrame* untrusted);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_LANE_PAYLOAD_H_
