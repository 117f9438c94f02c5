// SPDX-License-Identifier: Apache-2.0
#include "analysis/calls/parallel_groups.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace rankprobe::analysis {
namespace {

constexpr int64_t kMostRanks = 1 << 20;

int64_t SizeOf(const ParallelLayout& layout, absl::string_view dimension) {
  if (dimension == "tp") return layout.tensor;
  if (dimension == "pp") return layout.pipeline;
  if (dimension == "dp") {
    return layout.ranks / (layout.tensor * layout.pipeline);
  }
  return 1;  // cp, ep
}

// Groups the ranks that differ only in `dimension`.
RankGroups GroupsOf(const ParallelLayout& layout, absl::string_view dimension) {
  int64_t stride = 1;
  for (const absl::string_view name : absl::StrSplit(layout.order, '-')) {
    if (name == dimension) break;
    stride *= SizeOf(layout, name);
  }
  const int64_t size = SizeOf(layout, dimension);
  RankGroups groups;
  for (int64_t rank = 0; rank < layout.ranks; ++rank) {
    if (rank / stride % size != 0) continue;
    std::vector<int64_t>& group = groups.emplace_back();
    for (int64_t i = 0; i < size; ++i) group.push_back(rank + i * stride);
  }
  return groups;
}

}  // namespace

absl::Status CheckLayout(const ParallelLayout& layout,
                         const std::string& side) {
  const auto bad = [&side](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(side, ": ", what...));
  };
  for (const auto& [name, value] :
       {std::pair<const char*, int64_t>{"--rank_size", layout.ranks},
        {"--tp", layout.tensor},
        {"--pp", layout.pipeline},
        {"--vpp", layout.virtual_pipeline}}) {
    if (value < 1 || value > kMostRanks) {
      return bad(name, " ", value, " is not in 1..", kMostRanks);
    }
  }
  if (layout.ranks % (layout.tensor * layout.pipeline) != 0) {
    return bad("--rank_size ", layout.ranks, " is not a multiple of --tp ",
               layout.tensor, " x --pp ", layout.pipeline);
  }
  if (layout.virtual_pipeline > 1 && layout.pipeline == 1) {
    return bad("--vpp ", layout.virtual_pipeline, " needs --pp of 2 or more");
  }
  const std::vector<std::string> names = absl::StrSplit(layout.order, '-');
  const std::set<std::string> seen(names.begin(), names.end());
  for (const std::string& name : names) {
    if (name != "tp" && name != "cp" && name != "ep" && name != "dp" &&
        name != "pp") {
      return bad("--order ", layout.order, ": no dimension is called '", name,
                 "' (tp, cp, ep, dp, pp)");
    }
  }
  if (seen.size() != names.size()) {
    return bad("--order ", layout.order, " names a dimension twice");
  }
  for (const char* const name : {"tp", "dp", "pp"}) {
    if (!seen.contains(name) && SizeOf(layout, name) != 1) {
      return bad("--order ", layout.order, " lacks ", name, ", which is ",
                 SizeOf(layout, name));
    }
  }
  if (seen.contains("ep")) {
    const auto at = std::find(names.begin(), names.end(), "ep");
    const bool before = at != names.begin() && *(at - 1) == "dp";
    const bool after = at + 1 != names.end() && *(at + 1) == "dp";
    if (!before && !after) {
      return bad("--order ", layout.order, ": ep and dp must be neighbours");
    }
  }
  return absl::OkStatus();
}

RankGroups TensorGroups(const ParallelLayout& layout) {
  return GroupsOf(layout, "tp");
}
RankGroups PipelineGroups(const ParallelLayout& layout) {
  return GroupsOf(layout, "pp");
}

RankGroups TracePipelines(const std::map<int64_t, int64_t>& sends_to) {
  RankGroups groups;
  std::set<int64_t> seen;
  for (const auto& [first, ignored] : sends_to) {
    std::vector<int64_t> chain;
    for (auto it = sends_to.find(first);
         it != sends_to.end() && seen.insert(it->first).second;
         it = sends_to.find(it->second)) {
      chain.push_back(it->first);
    }
    if (!chain.empty()) groups.push_back(std::move(chain));
  }
  return groups;
}

bool IsPartition(const RankGroups& groups, int64_t ranks, int64_t size) {
  std::set<int64_t> seen;
  for (const std::vector<int64_t>& group : groups) {
    if (static_cast<int64_t>(group.size()) != size) return false;
    for (const int64_t rank : group) {
      if (rank < 0 || rank >= ranks || !seen.insert(rank).second) return false;
    }
  }
  return static_cast<int64_t>(seen.size()) == ranks;
}

}  // namespace rankprobe::analysis
