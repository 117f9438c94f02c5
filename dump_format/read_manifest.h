// SPDX-License-Identifier: Apache-2.0
// Reader of the manifest.json of an export: its runs, files and gaps.
// A function without state.
#ifndef RANKPROBE_DUMP_FORMAT_READ_MANIFEST_H_
#define RANKPROBE_DUMP_FORMAT_READ_MANIFEST_H_

#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/file_system.h"
#include "dump_format/json_value.h"

namespace rankprobe {

// Parses manifest.json of `directory` into `document`. Returns false if there
// is none. INVALID_ARGUMENT: it is not JSON, or files, gaps or earlier_runs are
// not lists of objects. RESOURCE_EXHAUSTED: it is larger than 256 MiB.
absl::StatusOr<bool> ReadManifest(FileSystem* file_system,
                                  const std::string& directory,
                                  JsonDocument* document);

// The places ("step3/rank0") of the files in a manifest, or in one of its
// earlier_runs.
std::set<std::string> PlacesOfManifest(const JsonValue& manifest);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_READ_MANIFEST_H_
