// SPDX-License-Identifier: Apache-2.0
// Heads of rollups: in table h, or in a row of summaries that replaces them
// (docs/storage.md, "Summaries"). Inside the store only; free functions over an
// index that outlives the call. Writers are serialised by the caller
// (StoreCore::rollup_mutex). Failure: the index's errors, DATA_LOSS for rows
// that cannot be read.
#ifndef RANKPROBE_COLLECTOR_STORE_ROLLUP_HEADS_H_
#define RANKPROBE_COLLECTOR_STORE_ROLLUP_HEADS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collector/store/index.h"
#include "collector/store/row_writer.h"
#include "collector/store/series_reader.h"
#include "rankprobe/v1/store.pb.h"

namespace rankprobe {

// Reads the ranges in ascending order; `range` is the position of the range.
// All are read from one snapshot: a head that moves meanwhile is seen once.
absl::Status ForEachRollupHead(Index* index, uint32_t run,
                               absl::Span<const ProcessRange> ranges,
                               const SeriesReader::HeadFn& callback);

// Called while no other thread writes rollups.
absl::StatusOr<std::optional<v1::RollupHead>> FindRollupHead(
    Index* index, uint32_t run, uint64_t incarnation, int64_t step);

// Returns the keys of table a that belong to a rollup, and some that it could
// have. `head` is the result of FindRollupHead.
absl::StatusOr<std::vector<std::string>> RollupRowsOf(
    Index* index, uint32_t run, uint64_t incarnation, int64_t step,
    const std::optional<v1::RollupHead>& head);

// Rows that become wrong when the step's head changes, and the heads that have
// to be written instead of them, before the new head.
struct StaleSummaries {
  std::vector<std::string> keys;
  std::vector<std::pair<std::string, std::string>> heads;
  // The step's head, if it is among them.
  std::optional<v1::RollupHead> head;
};
absl::StatusOr<StaleSummaries> FindStaleSummaries(Index* index, uint32_t run,
                                                  uint64_t incarnation,
                                                  int64_t step);

// Replaces the step's head by that of a deleted step, and deletes rows of
// summaries that contradict it.
absl::Status PutDeletedHead(Index* index, uint32_t run, uint64_t incarnation,
                            int64_t step, RowWriter* rows);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_ROLLUP_HEADS_H_
