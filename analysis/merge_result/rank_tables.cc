// SPDX-License-Identifier: Apache-2.0
#include "analysis/merge_result/rank_tables.h"

#include <re2/re2.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "analysis/compare/compare.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

constexpr absl::string_view kRequiresGrad = "Requires_grad Consistent";
constexpr size_t kMaxTables = 65536;

// compare_result_rank3_20261124020000.xlsx, compare_result_rank3-rank3_ ..; of
// two in one second the second has a number, _2 (cli/flags/analysis_flags.h).
bool ReadName(const std::string& name, int64_t* rank) {
  static const auto* const kName = new RE2(
      R"(compare_result_rank(\d+)(?:-rank(\d+))?_\d{14}(?:_\d+)?\.(?:xlsx|csv))");
  std::string number;
  std::string partner;
  return RE2::FullMatch(name, *kName, &number, &partner) &&
         (partner.empty() || partner == number) &&
         absl::SimpleAtoi(number, rank);
}

bool OfNoRank(const std::string& name) {
  static const auto* const kName =
      new RE2(R"(compare_result_(?:rank|rank-rank)_\d{14}\.(?:xlsx|csv))");
  return RE2::FullMatch(name, *kName);
}

bool IsMerge(const std::string& name) {
  return absl::StartsWith(name, "multi_ranks_compare_merge_");
}

absl::StatusOr<std::vector<RankTable>> Tables(
    const std::vector<std::string>& names, const std::string& directory,
    absl::string_view extension, std::vector<std::string>* warnings) {
  std::map<int64_t, std::string> found;
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, extension)) continue;
    int64_t rank = 0;
    if (OfNoRank(name)) {
      warnings->push_back(
          absl::StrCat(name,
                       " is of no rank: there is nothing to merge it "
                       "with"));
    } else if (ReadName(name, &rank)) {
      const auto [at, added] = found.emplace(rank, name);
      if (!added) {
        return absl::InvalidArgumentError(
            absl::StrCat(directory, ": rank ", rank, " has two tables, ",
                         at->second, " and ", name));
      }
    } else if (extension == ".xlsx" && !IsMerge(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          directory, "/", name,
          ": expected only tables compare_result_rank{R}_{time}.xlsx, as "
          "`compare` names them for the ranks of one step"));
    }
  }
  std::vector<RankTable> out;
  out.reserve(found.size());
  for (const auto& [rank, name] : found) {
    out.push_back({rank, absl::StrCat(directory, "/", name)});
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<RankTable>> FindRankTables(
    FileSystem* file_system, const std::string& directory,
    std::vector<std::string>* warnings) {
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      file_system->List(directory));
  if (names.size() > kMaxTables) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, ": has more than ", kMaxTables, " files"));
  }
  // A merge of before is no table of a rank.
  const bool books =
      std::any_of(names.begin(), names.end(), [](const std::string& name) {
        return absl::EndsWith(name, ".xlsx") && !IsMerge(name);
      });
  RP_ASSIGN_OR_RETURN(
      std::vector<RankTable> tables,
      Tables(names, directory, books ? ".xlsx" : ".csv", warnings));
  if (tables.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        directory, ": has ", tables.size(),
        " tables of ranks (compare_result_rank{R}_{time}.xlsx or .csv); a "
        "merge needs two"));
  }
  return tables;
}

absl::StatusOr<TableHead> ReadTableHead(absl::Span<const std::string> header) {
  const auto find = [header](absl::string_view name, size_t* at) {
    const auto it = std::find(header.begin(), header.end(), name);
    *at = static_cast<size_t>(it - header.begin());
    return it != header.end();
  };
  const auto bad = [] {
    return absl::InvalidArgumentError("has not the columns of a compare table");
  };
  TableHead head;
  size_t ignored = 0;
  // What every table begins with.
  const std::vector<std::string> md5 =
      CompareHeader(DumpMode::kMd5, StatSet(), /*has_stack=*/false);
  const size_t basic = static_cast<size_t>(
      std::find(md5.begin(), md5.end(), "NPU MD5") - md5.begin());
  if (header.size() < basic ||
      !std::equal(md5.begin(), md5.begin() + static_cast<int64_t>(basic),
                  header.begin()) ||
      !find("Result", &ignored) || !find("Err_message", &ignored)) {
    return bad();
  }
  size_t requires_grad = 0;
  if (!find(kRequiresGrad, &requires_grad)) return bad();
  if (find("NPU MD5", &ignored)) {
    head.task = TableHead::Task::kMd5;
    return head;
  }
  if (!find("NPU max", &head.npu_max) || !find("Bench max", &head.bench_max) ||
      head.npu_max <= basic) {
    return bad();
  }
  head.task = find("Max diff", &ignored) ? TableHead::Task::kStatistics
                                         : TableHead::Task::kTensor;
  if (head.task == TableHead::Task::kTensor && !find("Cosine", &ignored)) {
    return bad();
  }
  for (size_t i = basic; i < head.npu_max; ++i) {
    head.indices.push_back(header[i]);
    head.columns.push_back(i);
  }
  head.indices.emplace_back(kRequiresGrad);
  head.columns.push_back(requires_grad);
  return head;
}

}  // namespace rankprobe::analysis
