// SPDX-License-Identifier: Apache-2.0
// Comparison of each rollup with its step while the archive is in use; steps
// from before there were summaries are not faults. Inside Verify only. A free
// function over an index that outlives the call. Failure: the index's errors,
// and those of `row`.
#ifndef RANKPROBE_COLLECTOR_STORE_VERIFY_ROLLUPS_H_
#define RANKPROBE_COLLECTOR_STORE_VERIFY_ROLLUPS_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "collector/store/index.h"

namespace rankprobe {

struct RollupHooks {
  // Called for each row; its error ends the comparison.
  std::function<absl::Status()> row;
  // `text` is appended to the run's name.
  std::function<void(uint32_t run, absl::string_view text)> fault;
};

absl::Status VerifyRollups(Index* index, const RollupHooks& hooks);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_VERIFY_ROLLUPS_H_
