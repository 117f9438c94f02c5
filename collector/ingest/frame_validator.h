// SPDX-License-Identifier: Apache-2.0
// Checks of untrusted frames before they are used. Pure functions.
#ifndef RANKPROBE_COLLECTOR_INGEST_FRAME_VALIDATOR_H_
#define RANKPROBE_COLLECTOR_INGEST_FRAME_VALIDATOR_H_

#include "absl/status/status.h"
#include "collector/ingest/decoded_size.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// Checks the frame's place in the stream; INVALID_ARGUMENT ends the stream.
// `expected_sequence` is the next one of this incarnation; a lower one is a
// duplicate and valid.
absl::Status CheckPlace(const v1::UploadFrame& untrusted,
                        uint64_t expected_sequence);

// Checks the frame's content. INVALID_ARGUMENT names the fault; only this frame
// is refused. `size` is that of the frame. A chunk's bytes are compared with
// its checksum, unless the collector computed that itself (`own_checksum`).
absl::Status CheckContent(const v1::UploadFrame& untrusted,
                          const FrameSize& size, bool own_checksum = false);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_FRAME_VALIDATOR_H_
