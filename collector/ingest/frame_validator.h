// SPDX-License-Identifier: Apache-2.0
// Checks of what comes off the wire, before anything trusts it. Pure functions.
#ifndef RANKPROBE_COLLECTOR_INGEST_FRAME_VALIDATOR_H_
#define RANKPROBE_COLLECTOR_INGEST_FRAME_VALIDATOR_H_

#include "absl/status/status.h"
#include "collector/ingest/decoded_size.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// Whether the frame has its place in the stream: INVALID_ARGUMENT ends it.
// `expected_sequence` is the next one of this incarnation; one below it is a
// duplicate and fine.
absl::Status CheckPlace(const v1::UploadFrame& untrusted,
                        uint64_t expected_sequence);

// INVALID_ARGUMENT naming what is wrong with what the frame holds: it alone is
// refused. `size`: of the frame; a chunk's bytes are compared with its
// checksum, unless that was made here (`own_checksum`).
absl::Status CheckContent(const v1::UploadFrame& untrusted,
                          const FrameSize& size, bool own_checksum = false);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_FRAME_VALIDATOR_H_
