// SPDX-License-Identifier: Apache-2.0
// Grids over ranks and steps that summaries can answer, with the results of
// QueryGrid, without the values of each step (docs/storage.md, "Summaries").
// Threads: may run in several threads at once over one Store.
// Failure: as QueryGrid.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_SUMMARY_GRID_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_SUMMARY_GRID_H_

#include <cstddef>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/archive/query_sources.h"
#include "collector/store/step_summary.h"
#include "dump_format/statistics.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

// Returns the summary that answers the request; nothing if there is none.
std::optional<SummaryStat> SummaryFor(const v1::QueryGridRequest& request,
                                      Stat stat);

// `unreadable`: see QueryGrid. Returns false, without writing anything, if the
// run's summaries cannot answer the request.
absl::StatusOr<bool> QuerySummaries(
    const QuerySources& sources, const v1::QueryGridRequest& request,
    SummaryStat stat, size_t max_cells, absl::FunctionRef<bool()> cancelled,
    absl::FunctionRef<absl::Status(v1::GridReply)> write,
    std::vector<std::string>* unreadable);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_SUMMARY_GRID_H_
