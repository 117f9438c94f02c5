// SPDX-License-Identifier: Apache-2.0
// All statistics of chosen values of a run as batches of columns, one row per
// value.
// Threads: may run in several threads at once over one Store.
// Failure: as WalkStatistics; the writer's first error.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_READ_VALUES_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_READ_VALUES_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "collector/archive/query_sources.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

// Rank-steps whose records are damaged are left out, and named in `unreadable`.
// `write` gets batches of some thousand rows, then the end; its first error
// ends the reading. `cancelled` is called before each step of a rank is read.
absl::Status ReadValues(const QuerySources& sources,
                        const v1::ReadValuesRequest& request,
                        absl::FunctionRef<bool()> cancelled,
                        absl::FunctionRef<absl::Status(v1::ValuesReply)> write,
                        std::vector<std::string>* unreadable = nullptr);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_READ_VALUES_H_
