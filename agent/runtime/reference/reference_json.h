// SPDX-License-Identifier: Apache-2.0
// Reader of a dump.json in pieces, which returns what a reference needs of it.
// The file is not trusted: depth, names and shapes are bounded, numbers may
// have any value, and an item of over 1 MiB is not read as a tensor, so that
// only a small part of the file is in memory at once.
#ifndef RANKPROBE_AGENT_RUNTIME_REFERENCE_REFERENCE_JSON_H_
#define RANKPROBE_AGENT_RUNTIME_REFERENCE_REFERENCE_JSON_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// Calls `add` for each forward of the file; an error of `add` ends the reading.
// Returns NOT_FOUND, RESOURCE_EXHAUSTED (larger than `max_bytes`) or DATA_LOSS
// (malformed).
absl::Status ReadReferenceJson(
    FileSystem* file_system, const std::string& path, uint64_t max_bytes,
    const std::function<absl::Status(const v1::ReferenceEntry&)>& add);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_REFERENCE_REFERENCE_JSON_H_
