// SPDX-License-Identifier: Apache-2.0
#include "analysis/merge_result/merge_result.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

// Outer, by name.
void MergeRows(MergedTables* tables) {
  std::vector<std::string>& names = tables->names;
  for (const RankValues& rank : tables->ranks) {
    names.insert(names.end(), rank.names.begin(), rank.names.end());
  }
  if (tables->ranks.size() > 1) {
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
  }
  absl::flat_hash_map<absl::string_view, size_t> place;
  for (size_t i = 0; i < names.size(); ++i) place.emplace(names[i], i);
  for (const RankValues& rank : tables->ranks) {
    std::vector<int64_t>& rows = tables->rows.emplace_back(names.size(), -1);
    for (size_t i = 0; i < rank.names.size(); ++i) {
      rows[place.at(rank.names[i])] = static_cast<int64_t>(i);
    }
  }
}

}  // namespace

absl::StatusOr<MergedTables> MergeTables(FileSystem* file_system,
                                         const std::string& directory,
                                         const MergeConfig& config) {
  MergedTables merged;
  std::vector<ApiPattern> apis;
  for (const std::string& api : config.apis) {
    RP_ASSIGN_OR_RETURN(ApiPattern pattern, ApiPattern::Make(api));
    apis.push_back(std::move(pattern));
  }
  RP_ASSIGN_OR_RETURN(const std::vector<RankTable> tables,
                      FindRankTables(file_system, directory, &merged.warnings));
  merged.indices = config.indices;
  for (const RankTable& table : tables) {
    RP_ASSIGN_OR_RETURN(
        RankValues values,
        ReadRankValues(file_system, table, apis, &merged.indices));
    if (!values.left_out.empty()) {
      merged.left_out.push_back(
          absl::StrCat("rank ", table.rank, ": ", values.left_out));
      continue;
    }
    for (const std::string& api : values.missing) {
      merged.warnings.push_back(
          absl::StrCat("rank ", table.rank, " has no row of ", api));
    }
    merged.ranks.push_back(std::move(values));
  }
  if (merged.ranks.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        directory,
        ": nothing to merge: ", absl::StrJoin(merged.left_out, "; ")));
  }
  MergeRows(&merged);
  return merged;
}

}  // namespace rankprobe::analysis
