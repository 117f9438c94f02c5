// SPDX-License-Identifier: Apache-2.0
// Decoded size of a received frame: its bytes and what each message and string
// in it costs besides. An estimate that is never far below the truth; far
// cheaper than protobuf's own SpaceUsedLong, which goes by reflection.
// Stateless.
#ifndef RANKPROBE_COLLECTOR_INGEST_DECODED_SIZE_H_
#define RANKPROBE_COLLECTOR_INGEST_DECODED_SIZE_H_

#include <cstdint>

#include "collector/ingest/received_frame.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// What one frame may take. One of 1 MiB that is full of small integers, the
// worst that an agent sends, takes some 20 MiB; one of empty messages over 60.
inline constexpr uint64_t kMaxDecodedBytes = 32 << 20;

// Each walks the whole frame: measured once and handed on.
struct FrameSize {
  // As it came.
  uint64_t encoded = 0;
  // As it is held: the encoded bytes and what they cost besides.
  uint64_t memory = 0;
};

// `encoded_bytes`: what the frame's ByteSizeLong is.
FrameSize SizeOf(const v1::UploadFrame& frame, uint64_t encoded_bytes);
// As it lies in its memory, where a sender may have made more of it than is in the
// frame now.
FrameSize SizeOf(const ReceivedFrame& frame, uint64_t encoded_bytes);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_DECODED_SIZE_H_
