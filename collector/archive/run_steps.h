// SPDX-License-Identifier: Apache-2.0
// The rank-steps of a run that a question is about, found without reading each
// of them: from its processes, its heads and what is not rolled up. Failure:
// NOT_FOUND for a run that is not there; else the store's errors.
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
  // Steps that have one process each and whose heads hold, deleted ones among
  // them. Ascending.
  std::vector<ProcessRange> ranges;
  // The others: of several processes of one rank the one that counts, as
  // ChooseSteps has it, and steps that are not rolled up. By step and rank.
  std::vector<v1::StepInfo> singles;
  // Those of `singles` whose records have to be read.
  absl::flat_hash_set<std::pair<uint64_t, int64_t>> unrolled;
  // Beside those in `ranges`.
  uint64_t deleted = 0;
  // The last step that was asked for, and by incarnation the last one there is.
  int64_t last_step = 0;
  absl::flat_hash_map<uint64_t, int64_t> ends;

  const v1::Identity& Of(const ProcessRange& range) const {
    return processes.at(range.incarnation);
  }
};

// What these processes recorded; empty: all of them.
using OfIncarnations = absl::flat_hash_set<uint64_t>;
inline bool IsChosen(const OfIncarnations& incarnations, uint64_t one) {
  return incarnations.empty() || incarnations.contains(one);
}

// The last step included. Nothing: the run is an older collector's and not
// reindexed, or there is too much that has to be looked at one by one.
absl::StatusOr<std::optional<RunSteps>> FindRunSteps(
    const QuerySources& sources, const std::string& run, int64_t first_step,
    int64_t last_step, const IntSet& ranks,
    const OfIncarnations& incarnations = {});

// The rank-step of a head, as far as a head knows it.
v1::StepInfo StepOf(const v1::Identity& identity, int64_t step,
                    const v1::RollupHead& head);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_RUN_STEPS_H_
