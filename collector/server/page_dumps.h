// SPDX-License-Identifier: Apache-2.0
// Runs of the archive as files, for jobs of the page. Thread-safe functions.
#ifndef RANKPROBE_COLLECTOR_SERVER_PAGE_DUMPS_H_
#define RANKPROBE_COLLECTOR_SERVER_PAGE_DUMPS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/rpc/worker_pool.h"
#include "collector/store/archive_reader.h"
#include "common/io/file_system.h"
#include "web/jobs/job_commands.h"

namespace rankprobe {

// A possible meaning of "run:NAME@STEP/rankR".
struct RunPlace {
  std::string run;
  // Empty: all.
  std::vector<int64_t> steps;
  std::vector<int64_t> ranks;
};

// Returns the possible meanings. The first splits at the last @; because the
// name of a run may contain one, the complete text is the second.
// INVALID_ARGUMENT if it is not such a name.
absl::StatusOr<std::vector<RunPlace>> ParseRunPlace(absl::string_view name);

// Exports the dump to `dump.path` on a thread of `pool`, in turn with queries;
// see FetchJobDump.
absl::StatusOr<std::string> FetchDump(ArchiveReader* store,
                                      FileSystem* file_system, WorkerPool* pool,
                                      const JobDump& dump, uint64_t max_bytes,
                                      const std::function<bool()>& cancelled);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_PAGE_DUMPS_H_
