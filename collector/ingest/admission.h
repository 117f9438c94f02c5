// Checks of what comes off the wire, before anything trusts it. Pure functions.
#ifndef RANKPROBE_COLLECTOR_INGEST_ADMISSION_H_
#define RANKPROBE_COLLECTOR_INGEST_ADMISSION_H_

#include "absl/status/status.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// INVALID_ARGUMENT naming what is wrong with the frame; `expected_sequence` is
// the next one of this incarnation. A sequence below it is a duplicate and
// fine.
absl::Status CheckFrame(const v1::UploadFrame& untrusted,
                        uint64_t expected_sequence);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_ADMISSION_H_
