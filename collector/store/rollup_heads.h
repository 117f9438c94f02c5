// SPDX-License-Identifier: Apache-2.0
// Heads of rollups, wherever they are: in table h, or in a row of summaries that
// stands for them (docs/storage.md, "Summaries"). Inside the store only; free
// functions over an index that outlives the call. Whoever writes sees to it that
// nobody else does meanwhile (StoreCore::rollup_mutex). Failure: the index's
// errors, DATA_LOSS for rows that cannot be read.
#ifndef RANKPROBE_COLLECTOR_STORE_ROLLUP_HEADS_H_
#define RANKPROBE_COLLECTOR_STORE_ROLLUP_HEADS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collector/store/index.h"
#include "collector/store/row_writer.h"
#include "collector/store/series_reader.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

// Ranges in ascending order; `range`: which. Of one moment: a head that moves
// meanwhile is seen once.
absl::Status ForEachRollupHead(Index* index, uint32_t run,
                               absl::Span<const ProcessRange> ranges,
                               const SeriesReader::HeadFn& callback);

// While nobody writes.
absl::StatusOr<std::optional<v1::RollupHead>> FindRollupHead(
    Index* index, uint32_t run, uint64_t incarnation, int64_t step);

// Keys of table a that belong to a rollup, and of some rows that it could have;
// `head`: what FindRollupHead said.
absl::StatusOr<std::vector<std::string>> RollupRowsOf(
    Index* index, uint32_t run, uint64_t incarnation, int64_t step,
    const std::optional<v1::RollupHead>& head);

// Rows that stop to be true when the step's head changes, and what has to be
// put in their place, before the new head.
struct StaleSummaries {
  std::vector<std::string> keys;
  std::vector<std::pair<std::string, std::string>> heads;
  // The step's, if it is among these.
  std::optional<v1::RollupHead> head;
};
absl::StatusOr<StaleSummaries> FindStaleSummaries(Index* index, uint32_t run,
                                                  uint64_t incarnation,
                                                  int64_t step);

// The head of a deleted step in place of the one there is; rows of summaries
// that say something else of the step go.
absl::Status PutDeletedHead(Index* index, uint32_t run, uint64_t incarnation,
                            int64_t step, RowWriter* rows);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_ROLLUP_HEADS_H_
