// SPDX-License-Identifier: Apache-2.0
// Spread of one statistic over the ranks of a run, by step; and the names of
// its recorded modules. Threads: may run in several threads at once over one
// Store. Failure: as QueryGrid.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_QUERY_SERIES_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_QUERY_SERIES_H_

#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/archive/query_sources.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

// Rank-steps whose records are damaged are left out, and named in `unreadable`.
// `write` gets the head, then each row; its first error ends the query.
absl::Status QuerySeries(const QuerySources& sources,
                         const v1::QuerySeriesRequest& request,
                         absl::FunctionRef<bool()> cancelled,
                         absl::FunctionRef<absl::Status(v1::SeriesReply)> write,
                         std::vector<std::string>* unreadable = nullptr);

absl::StatusOr<v1::ListModulesResponse> ListModules(
    const QuerySources& sources, const v1::ListModulesRequest& request);

// Returns the median of the finite numbers; nothing if there are none.
std::optional<double> MedianOf(std::vector<double> numbers);

// Returns |number - median| / |median|; infinite if `number` is not finite, or
// if the median is 0 and `number` is not.
double DeviationFrom(double median, double number);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_QUERY_SERIES_H_
