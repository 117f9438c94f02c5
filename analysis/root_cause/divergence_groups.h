// SPDX-License-Identifier: Apache-2.0
// Groups the first differences of ranks and steps into separate answers. A pure
// function.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_DIVERGENCE_GROUPS_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_DIVERGENCE_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "analysis/root_cause/first_divergence.h"

namespace rankprobe::analysis {

struct DivergenceGroups {
  // Ranks of one step that differ in the same place.
  struct Group {
    size_t origin = 0;
    std::vector<int64_t> other_ranks;
  };
  std::vector<Group> groups;
  // Later steps of which nothing but that is known that a weight or a batch
  // differs: after a step that differs all weights do.
  std::set<int64_t> followed;
};

DivergenceGroups GroupOrigins(absl::Span<const Divergence> origins);

// "steps 1 to 5 differ too, ..", a line; empty when none does.
std::string FollowedText(const DivergenceGroups& groups);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_DIVERGENCE_GROUPS_H_
