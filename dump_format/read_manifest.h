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

// Parses manifest.json of `directory` into `document`. False: there is none.
// INVALID_ARGUMENT: it is not JSON, or files, gaps or earlier_runs are no lists
// of objects. RESOURCE_EXHAUSTED: it has more than 256 MiB.
absl::StatusOr<bool> ReadManifest(FileSystem* file_system,
                                  const std::string& directory,
                                  JsonDocument* document);

// The places ("step3/rank0") of the files that a manifest, or one of its
// earlier_runs, lists.
std::set<std::string> PlacesOfManifest(const JsonValue& manifest);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_READ_MANIFEST_H_
