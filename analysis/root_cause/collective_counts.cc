// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/collective_counts.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "analysis/calls/comm_links.h"

namespace rankprobe::analysis {

std::vector<std::string> CollectivesOfOneSide(int64_t rank,
                                              const DumpReader& target,
                                              const DumpReader& reference) {
  std::map<std::string, std::pair<int64_t, int64_t>> counts;
  for (const DumpReader* const dump : {&target, &reference}) {
    for (size_t i = 0; i < dump->size(); ++i) {
      if (!IsCommunication(dump->name(i))) continue;
      const std::vector<absl::string_view> parts =
          absl::StrSplit(dump->name(i), '.');
      if (parts.size() < 2) continue;
      auto& count = counts[std::string(parts[1])];
      ++(dump == &target ? count.first : count.second);
    }
  }
  std::vector<std::string> notes;
  for (const auto& [operation, count] : counts) {
    if (count.first == count.second) continue;
    notes.push_back(absl::StrCat(
        "rank ", rank, " calls ", operation, " ", count.first, " times, and ",
        count.second,
        " times in the reference: calls pair by their number, so those behind "
        "the missing one are compared with other calls"));
  }
  return notes;
}

}  // namespace rankprobe::analysis
