// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/divergence_groups.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rankprobe::analysis {

DivergenceGroups GroupOrigins(absl::Span<const Divergence> origins) {
  DivergenceGroups out;
  int64_t first_step = INT64_MAX;
  for (const Divergence& d : origins) first_step = std::min(first_step, d.step);
  for (size_t i = 0; i < origins.size(); ++i) {
    const Divergence& d = origins[i];
    if (d.step > first_step && d.from_outside && !d.is_argument) {
      out.followed.insert(d.step);
      continue;
    }
    const auto same =
        std::find_if(out.groups.begin(), out.groups.end(), [&](const auto& g) {
          return origins[g.origin].step == d.step &&
                 origins[g.origin].row == d.row;
        });
    if (same == out.groups.end()) {
      out.groups.push_back({i, {}});
    } else {
      same->other_ranks.push_back(d.rank);
    }
  }
  return out;
}

std::string FollowedText(const DivergenceGroups& groups) {
  const std::set<int64_t>& steps = groups.followed;
  if (steps.empty()) return "";
  if (steps.size() == 1) {
    return absl::StrCat("step ", *steps.begin(),
                        " differs too, from its weights or its batch on");
  }
  return absl::StrCat(steps.size(), " later steps, ", *steps.begin(), " to ",
                      *steps.rbegin(),
                      ", differ too, from their weights or their batch on");
}

}  // namespace rankprobe::analysis
