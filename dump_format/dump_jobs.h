// SPDX-License-Identifier: Apache-2.0
// Several jobs that recorded processes without a rank into one dump_path: which
// directory belongs to which of them, and the one that is read.
#ifndef RANKPROBE_DUMP_FORMAT_DUMP_JOBS_H_
#define RANKPROBE_DUMP_FORMAT_DUMP_JOBS_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {

// Keeps in `layout` the places of one job, if a step in it has more than one
// process without a rank, and adds a note about it. `wanted`: the number of a
// job, from 1 in the order of manifest.json, or else of the pids; if absent,
// the newest. INVALID_ARGUMENT names the jobs: there is no such job, or the
// newest is not known because there is no manifest.json.
absl::Status ChooseJobOfDump(FileSystem* file_system,
                             std::optional<int64_t> wanted, DumpLayout* layout);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_DUMP_JOBS_H_
