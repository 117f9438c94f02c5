// SPDX-License-Identifier: Apache-2.0
// The selected rank-steps of a run, found without reading each of them: from
// its processes, its heads and the steps that are not rolled up. Failure:
// NOT_FOUND for an unknown run; else the store's errors.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_RUN_STEPS_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_RUN_STEPS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "collector/archive/query_sources.h"
#include "common/config/plan.h"

namespace rankprobe {

struct RunSteps {
  uint32_t run = 0;
  // By incarnation.
  absl::flat_hash_map<uint64_t, v1::Identity> processes;
  // Ascending ranges of steps that have one process each and whose heads are
  // valid, including deleted ones.
  std::vector<ProcessRange> ranges;
  // The other steps: the process that ChooseSteps selects if several recorded a
  // rank, and steps that are not rolled up. By step and rank.
  std::vector<v1::StepInfo> singles;
  // Entries of `singles` whose records have to be read.
  absl::flat_hash_set<std::pair<uint64_t, int64_t>> unrolled;
  // Deleted rank-steps that are not in `ranges`.
  uint64_t deleted = 0;
  // The last requested step, and the last existing one of each incarnation.
  int64_t last_step = 0;
  absl::flat_hash_map<uint64_t, int64_t> ends;

  const v1::Identity& Of(const ProcessRange& range) const {
    return processes.at(range.incarnation);
  }
};

// Returns whether the process is selected; an empty set selects all.
using OfIncarnations = absl::flat_hash_set<uint64_t>;
inline bool IsChosen(const OfIncarnations& incarnations, uint64_t one) {
  return incarnations.empty() || incarnations.contains(one);
}

// `last_step` is included. Returns nothing if too many steps would have to be
// read one by one.
absl::StatusOr<std::optional<RunSteps>> FindRunSteps(
    const QuerySources& sources, const std::string& run, int64_t first_step,
    int64_t last_step, const IntSet& ranks,
    const OfIncarnations& incarnations = {});

// Returns the rank-step of a head, with the fields that a head has.
v1::StepInfo StepOf(const v1::Identity& identity, int64_t step,
                    const v1::RollupHead& head);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_RUN_STEPS_H_
