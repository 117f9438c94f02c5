// SPDX-License-Identifier: Apache-2.0
// Groups of first differences of ranks and steps, each group a separate answer.
// A pure function.
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
    // Index of the group's first difference, that in its first step.
    size_t origin = 0;
    std::set<int64_t> other_ranks;
    std::set<int64_t> later_steps;
  };
  std::vector<Group> groups;
  // Later steps whose only known difference is a weight or a batch: after a
  // step that differs, all weights differ.
  std::set<int64_t> followed;
};

DivergenceGroups GroupOrigins(absl::Span<const Divergence> origins);

// Returns "so do 3 later steps, 4 to 9" for steps that differ in the same
// place; empty if there are none.
std::string RepeatedText(const DivergenceGroups::Group& group);

// Returns the line "steps 1 to 5 differ too, .."; empty if there are none.
std::string FollowedText(const DivergenceGroups& groups);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_DIVERGENCE_GROUPS_H_
