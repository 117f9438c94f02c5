// SPDX-License-Identifier: Apache-2.0
// Which blocks of table a belong to a rollup, and what stands for one whose
// step is deleted. Inside the store only; free functions over an index that
// outlives the call. Failure: the index's errors,
// DATA_LOSS for rows that cannot be read.
#ifndef RANKPROBE_COLLECTOR_STORE_ROLLUP_BLOCKS_H_
#define RANKPROBE_COLLECTOR_STORE_ROLLUP_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/store/index.h"
#include "collector/store/row_writer.h"

namespace rankprobe {

// RollupHead.version of those that are made now.
inline constexpr uint32_t kRollupVersion = 1;

// `head_key`: of table h. Empty where there is no such rollup.
absl::StatusOr<std::vector<uint32_t>> RollupBlocksOf(
    Index* index, uint32_t run, absl::string_view head_key);

// The head of a deleted step in place of the one there is; rows of summaries
// that say something else of the step go.
absl::Status PutDeletedHead(uint32_t run, uint64_t incarnation, int64_t step,
                            RowWriter* rows);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_ROLLUP_BLOCKS_H_
