// SPDX-License-Identifier: Apache-2.0
// Decoded size of a received frame: its bytes and the overhead of each message
// and string in it. An estimate that is never far below the real size; far
// cheaper than protobuf's SpaceUsedLong, which uses reflection.
// Stateless.
#ifndef RANKPROBE_COLLECTOR_INGEST_DECODED_SIZE_H_
#define RANKPROBE_COLLECTOR_INGEST_DECODED_SIZE_H_

#include <cstdint>

#include "collector/ingest/received_frame.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// Limit for one frame. One of 1 MiB that is full of small integers, the worst
// that an agent sends, takes some 20 MiB; one of empty messages over 60.
inline constexpr uint64_t kMaxDecodedBytes = 32 << 20;

// Computing a size walks the complete frame, so it is measured once and passed
// along.
struct FrameSize {
  // Size as received.
  uint64_t encoded = 0;
  // Size in memory: the encoded bytes and the overhead.
  uint64_t memory = 0;
};

// `encoded_bytes` is the frame's ByteSizeLong.
FrameSize SizeOf(const v1::UploadFrame& frame, uint64_t encoded_bytes);
// The size in its arena, in which a sender may have made more than is in the
// frame now.
FrameSize SizeOf(const ReceivedFrame& frame, uint64_t encoded_bytes);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_DECODED_SIZE_H_
