// SPDX-License-Identifier: Apache-2.0
// A step of a run in the archive as a reference for another run: shapes and md5
// of its forward calls, in pieces that fit a message.
//
// Threads: any; reads the store, so it waits for the disk.
// Failure: INVALID_ARGUMENT, NOT_FOUND (run, step or rank; several processes
// without a rank), RESOURCE_EXHAUSTED (a step beyond the limit).
#ifndef RANKPROBE_COLLECTOR_INGEST_REFERENCE_SOURCE_H_
#define RANKPROBE_COLLECTOR_INGEST_REFERENCE_SOURCE_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "collector/store/archive_reader.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// Limit for all pieces of one answer.
inline constexpr size_t kMaxReferenceBytes = 256 << 20;

// Reads the newest incarnation of the rank that recorded the step.
absl::StatusOr<std::vector<v1::ReferenceChunk>> ReadReference(
    ArchiveReader* archive, const v1::ReferenceRequest& untrusted,
    size_t max_bytes = kMaxReferenceBytes);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_REFERENCE_SOURCE_H_
