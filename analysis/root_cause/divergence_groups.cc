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
          const Divergence& first = origins[g.origin];
          return first.row == d.row && first.is_argument == d.is_argument &&
                 first.from_outside == d.from_outside;
        });
    if (same == out.groups.end()) {
      out.groups.push_back({i, {}, {}});
      continue;
    }
    const Divergence& first = origins[same->origin];
    if (d.rank != first.rank) same->other_ranks.insert(d.rank);
    if (d.step != first.step) same->later_steps.insert(d.step);
  }
  return out;
}

std::string RepeatedText(const DivergenceGroups::Group& group) {
  const std::set<int64_t>& steps = group.later_steps;
  if (steps.empty()) return "";
  if (steps.size() == 1) return absl::StrCat("so does step ", *steps.begin());
  return absl::StrCat("so do ", steps.size(), " later steps, ", *steps.begin(),
                      " to ", *steps.rbegin());
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
