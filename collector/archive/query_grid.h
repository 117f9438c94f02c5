// SPDX-License-Identifier: Apache-2.0
// One statistic of a run over its steps, as a grid, from the records.
// Threads: may run in several threads at once over one Store.
// Failure: INVALID_ARGUMENT for an invalid request, NOT_FOUND for an unknown
// run, RESOURCE_EXHAUSTED for more rows than fit, CANCELLED; else the store's
// first error.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_QUERY_GRID_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_QUERY_GRID_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "collector/archive/query_sources.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

// Rank-steps whose records are damaged are left out, and named in `unreadable`.
// `write` gets the head, then each row; its first error ends the query. Rows
// are in the order of their first appearance, ranks by their number.
// `cancelled` is called before each step of a rank is read.
absl::Status QueryGrid(const QuerySources& sources,
                       const v1::QueryGridRequest& request,
                       absl::FunctionRef<bool()> cancelled,
                       absl::FunctionRef<absl::Status(v1::GridReply)> write,
                       std::vector<std::string>* unreadable = nullptr);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_QUERY_GRID_H_
