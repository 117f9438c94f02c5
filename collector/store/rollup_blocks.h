// SPDX-License-Identifier: Apache-2.0
// Which blocks of table a belong to a rollup. Inside the store only; free
// functions over an index that outlives the call. Failure: the index's errors,
// DATA_LOSS for rows that cannot be read.
#ifndef RANKPROBE_COLLECTOR_STORE_ROLLUP_BLOCKS_H_
#define RANKPROBE_COLLECTOR_STORE_ROLLUP_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/store/index.h"

namespace rankprobe {

// RollupHead.version of those that are made now.
inline constexpr uint32_t kRollupVersion = 1;

// `head_key`: of table h. Empty where there is no such rollup.
absl::StatusOr<std::vector<uint32_t>> RollupBlocksOf(
    Index* index, uint32_t run, absl::string_view head_key);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_ROLLUP_BLOCKS_H_
