// SPDX-License-Identifier: Apache-2.0
// Validated form of a request for statistics: shared by QueryGrid, QuerySeries
// and ListModules. Free functions. Failure: INVALID_ARGUMENT.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_GRID_REQUEST_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_GRID_REQUEST_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/archive/statistics_walk.h"
#include "dump_format/statistics.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

// An empty name means Norm.
absl::StatusOr<Stat> ParseStatistic(const std::string& name);
absl::Status CheckGridRequest(const v1::QueryGridRequest& request);
size_t CellsOf(const v1::QueryGridRequest& request);
ValueSelection SelectionOf(const v1::QueryGridRequest& request);

// Returns the row name for a value of a call; not for rows of ranks.
absl::string_view RowNameOf(v1::GridRows rows, absl::string_view entry,
                            absl::string_view name);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_GRID_REQUEST_H_
