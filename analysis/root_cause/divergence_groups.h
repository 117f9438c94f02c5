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
  // Ranks and steps that differ in the same place.
  struct Group {
    // In its first step.
    size_t origin = 0;
    std::set<int64_t> other_ranks;
    std::set<int64_t> later_steps;
  };
  std::vector<Group> groups;
  // Later steps of which nothing but that is known that a weight or a batch
  // differs: after a step that differs all weights do.
  std::set<int64_t> followed;
};

DivergenceGroups GroupOrigins(absl::Span<const Divergence> origins);

// "so do 3 later steps, 4 to 9": that they differ in the same place; empty when
// none does.
std::string RepeatedText(const DivergenceGroups::Group& group);

// "steps 1 to 5 differ too, ..", a line; empty when none does.
std::string FollowedText(const DivergenceGroups& groups);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_DIVERGENCE_GROUPS_H_
