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

// What "run:NAME@STEP/rankR" may mean.
struct RunPlace {
  std::string run;
  // Empty: all.
  std::vector<int64_t> steps;
  std::vector<int64_t> ranks;
};

// The last @ first; the name of a run may have one of its own, so that all of it is
// the second meaning. INVALID_ARGUMENT: it is no such name.
absl::StatusOr<std::vector<RunPlace>> ParseRunPlace(absl::string_view name);

// Exports it into `dump.path` in one of the threads of `pool`, where a query would
// wait, too; see FetchJobDump.
absl::StatusOr<std::string> FetchDump(ArchiveReader* store,
                                      FileSystem* file_system, WorkerPool* pool,
                                      const JobDump& dump, uint64_t max_bytes,
                                      const std::function<bool()>& cancelled);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_PAGE_DUMPS_H_
