// SPDX-License-Identifier: Apache-2.0
// Tables as csv, merged to a workbook that is read back. Beside msprobe's own:
// tests/interop/test_merge_result.py.
#include "analysis/merge_result/merge_result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/compare/compare.h"
#include "analysis/table_reader/table_reader.h"
#include "common/testing/scratch_directory.h"

namespace rankprobe::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kTime[] = "_20261124020304";

class MergeResultTest : public ::testing::Test {
 protected:
  // Statistics: rows of name, Max diff, NPU max, Bench max; N/A elsewhere.
  void Table(int rank, const std::vector<std::vector<std::string>>& rows,
             DumpMode mode = DumpMode::kStatistics, StatSet stats = StatSet()) {
    const std::vector<std::string> header =
        CompareHeader(mode, stats, /*has_stack=*/false);
    std::string text = absl::StrJoin(header, ",");
    for (const std::vector<std::string>& row : rows) {
      std::vector<std::string> cells(header.size(), "N/A");
      for (size_t i = 0; i < header.size(); ++i) {
        if (header[i] == "NPU Name") cells[i] = row[0];
        if (header[i] == "Max diff" || header[i] == "Cosine") cells[i] = row[1];
        if (header[i] == "NPU max") cells[i] = row[2];
        if (header[i] == "Bench max") cells[i] = row[3];
        if (header[i] == "Requires_grad Consistent") cells[i] = "True";
      }
      absl::StrAppend(&text, "\n", absl::StrJoin(cells, ","));
    }
    Write(absl::StrCat("compare_result_rank", rank, kTime, ".csv"), text);
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(scratch_.path() + "/" + name) << text << "\n";
  }
  absl::StatusOr<MergedTables> Merge(const MergeConfig& config) {
    return MergeTables(files_.get(), scratch_.path(), config);
  }
  std::string Fault(const MergeConfig& config) {
    return std::string(Merge(config).status().message());
  }
  // "NPU Name|rank0|..;row;.." of each sheet.
  std::vector<std::string> Sheets(const MergedTables& merged) {
    const std::string path =
        scratch_.path() + "/multi_ranks_compare_merge_1.xlsx";
    EXPECT_EQ(WriteMergedXlsx(files_.get(), path, merged), absl::OkStatus());
    EXPECT_FALSE(files_->Exists(path + ".part"));
    std::vector<std::string> sheets;
    EXPECT_EQ(ReadTable(files_.get(), path, TableLimits(),
                        [&sheets](size_t sheet, uint64_t,
                                  absl::Span<const TableCell> cells) {
                          sheets.resize(sheet + 1);
                          std::vector<std::string> shown;
                          for (const TableCell& cell : cells) {
                            shown.emplace_back(cell.text);
                          }
                          absl::StrAppend(&sheets[sheet],
                                          absl::StrJoin(shown, "|"), ";");
                          return absl::OkStatus();
                        }),
              absl::OkStatus());
    return sheets;
  }

  testing::ScratchDirectory scratch_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
};

TEST_F(MergeResultTest, ASheetAnIndexAndAColumnARank) {
  Table(0, {{"b.f.0.input.0", "1", "2", "1"},
            {"a.f.0.input.0", "0.5", "2", "1.5"},
            {"other.0", "7", "7", "7"}});
  Table(10,
        {{"b.f.0.input.0", "3", "4", "1"}, {"c.f.0.input.0", "-2", "4", "6"}});
  Table(2, {{"x.0", "1", "1", "1"}});
  const auto merged = Merge({{"f", "missing"}, {"Max diff", "Mean diff"}});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_THAT(merged->names,
              ElementsAre("a.f.0.input.0", "b.f.0.input.0", "c.f.0.input.0"));
  EXPECT_THAT(merged->left_out, IsEmpty());
  EXPECT_THAT(merged->warnings, ElementsAre("rank 0 has no row of missing",
                                            "rank 2 has no row of f",
                                            "rank 2 has no row of missing",
                                            "rank 10 has no row of missing"));
  EXPECT_THAT(
      Sheets(*merged),
      ElementsAre(
          "NPU Name|rank0|rank2|rank10;a.f.0.input.0|0.5;"
          "b.f.0.input.0|1||3;c.f.0.input.0|||-2;",
          // What says nothing has the values instead; 2 is 2.0 beside 1.5.
          "NPU Name|rank0|rank2|rank10;"
          "a.f.0.input.0|NPU:2  Bench:1.5;"
          "b.f.0.input.0|NPU:2  Bench:1.0||NPU:4  Bench:1;"
          "c.f.0.input.0|||NPU:4  Bench:6;"));
  const std::string csv = scratch_.path() + "/merged.csv";
  ASSERT_EQ(WriteMergedCsv(files_.get(), csv, *merged), absl::OkStatus());
  std::ifstream file(csv);
  std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(text, HasSubstr("Index,NPU Name,rank0,rank2,rank10\n"
                              "Max diff,a.f.0.input.0,0.5,,\n"
                              "Max diff,b.f.0.input.0,1,,3\n"));
}

TEST_F(MergeResultTest, EveryIndexOfTheTask) {
  Table(0, {{"b.0", "1", "2", "1"}}, DumpMode::kTensor);
  Table(1, {{"b.0", "1", "2", "1"}}, DumpMode::kTensor);
  auto merged = Merge({{"b"}, {}});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(absl::StrJoin(merged->indices, "|"),
            "Cosine|EucDist|MaxAbsErr|MaxRelativeErr|One Thousandth Err Ratio|"
            "Five Thousandths Err Ratio|Requires_grad Consistent");
  // A column of True alone is one of truths.
  EXPECT_EQ(Sheets(*merged).back(), "NPU Name|rank0|rank1;b.0|1|1;");
  // Statistics that were asked for are among them; here the second rank lacks
  // them.
  StatSet stats;
  stats.Add(kStd);
  Table(0, {{"b.0", "1", "2", "1"}}, DumpMode::kStatistics, stats);
  Table(1, {{"b.0", "1", "2", "1"}});
  merged = Merge({{"b"}, {}});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_THAT(merged->indices, ::testing::Contains("Std diff"));
  ASSERT_EQ(merged->left_out.size(), 1U);
  EXPECT_THAT(merged->left_out[0], HasSubstr("rank 1: has no Std diff"));
  EXPECT_EQ(merged->ranks.size(), 1U);
}

TEST_F(MergeResultTest, WhatCannotBeMergedIsLeftOut) {
  Table(0, {{"z.0", "1", "2", "1"}, {"a.0", "1", "2", "1"}});
  Table(1, {{"a.0", "1", "2", "1"}}, DumpMode::kMd5);
  Table(2, {{"a.0", "1", "2", "1"}}, DumpMode::kTensor);
  Table(3, {});
  Write(absl::StrCat("compare_result_rank4", kTime, ".csv"), "NPU Name,x\na,1");
  const auto merged = Merge({{"z", "a"}, {}});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_THAT(merged->left_out,
              ElementsAre("rank 1: is of checksums (md5), which are not merged",
                          HasSubstr("rank 2: has no Max diff, Min diff"),
                          "rank 3: has no rows",
                          "rank 4: has not the columns of a compare table"));
  // One rank alone keeps the order of the config.
  EXPECT_THAT(merged->names, ElementsAre("z.0", "a.0"));
  EXPECT_THAT(Fault({{"a"}, {"No such index"}}),
              HasSubstr("nothing to merge: rank 0: has no No such index to "
                        "compare by; rank 1: "));
}

TEST_F(MergeResultTest, ExpressionsAndNames) {
  Table(0, {{"layers.0.x.in", "1", "2", "1"},
            {"layers.1.x.in", "1", "2", "1"},
            {"layersX1.x.in", "1", "2", "1"},
            {"layers.1.x.in", "9", "2", "1"},
            {"layers.10.x.in", "1", "2", "1"}});
  Table(1, {{"y.0", "1", "2", "1"}});
  auto merged = Merge({{"layers.1"}, {"Max diff"}});
  ASSERT_TRUE(merged.ok()) << merged.status();
  // The dot is a dot, the name ends with one, the first of two rows counts.
  EXPECT_THAT(Sheets(*merged),
              ElementsAre("NPU Name|rank0|rank1;layers.1.x.in|1;"));
  merged = Merge({{"layers.[01]+.x"}, {"Max diff"}});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->names.size(), 3U);
  EXPECT_THAT(Fault({{"layers.[01"}, {}}), HasSubstr("api layers.[01: "));
}

TEST_F(MergeResultTest, TheDirectoryIsLookedAtFirst) {
  const MergeConfig config = {{"a"}, {}};
  EXPECT_THAT(Fault(config), HasSubstr("has 0 tables of ranks"));
  Table(0, {{"a.0", "1", "2", "1"}});
  Write("advice.csv", "x");
  EXPECT_THAT(Fault(config), HasSubstr("has 1 tables of ranks"));
  Table(1, {{"a.0", "1", "2", "1"}});
  EXPECT_TRUE(Merge(config).ok());
  Write("compare_result_rank1-rank1_20261124020305.csv", "x");
  EXPECT_THAT(Fault(config), HasSubstr("rank 1 has two tables, "));
  // Of workbooks none may be of another kind; csv files are not looked at then.
  Write("compare_result_step0_rank1_20261124020305.xlsx", "x");
  EXPECT_THAT(Fault(config), HasSubstr("expected only tables"));
}

TEST_F(MergeResultTest, HostileTablesAreSaid) {
  Table(0, {{"a.0", "1", "2", "1"}});
  Table(1, {{"a.0", "\"=cmd|' /C calc'!A0\"", "2", "1"}});
  EXPECT_THAT(Fault({{"a"}, {}}),
              HasSubstr("rank1_20261124020304.csv: a cell that a spreadsheet "
                        "would run: =cmd"));
  // One that is not chosen does no harm.
  EXPECT_TRUE(Merge({{"b"}, {}}).ok());
  Write(absl::StrCat("compare_result_rank1", kTime, ".csv"),
        std::string(1000, ','));
  EXPECT_THAT(Fault({{"a"}, {}}),
              HasSubstr("rank1_20261124020304.csv: row 1: more than 256"));
}

TEST_F(MergeResultTest, Configs) {
  const auto read = [this](const std::string& text) -> std::string {
    Write("c.yaml", text);
    const auto config =
        ReadMergeConfig(files_.get(), scratch_.path() + "/c.yaml");
    if (!config.ok()) {
      EXPECT_THAT(config.status().message(), HasSubstr("/c.yaml: "));
      return std::string(config.status().message());
    }
    return absl::StrCat(absl::StrJoin(config->apis, ","), ";",
                        absl::StrJoin(config->indices, ","));
  };
  EXPECT_EQ(read("api: [a, b, a]\ncompare_index:\n  - Max diff\n"),
            "a,b;Max diff");
  EXPECT_EQ(read("api:\n  - a.b\ncompare_index:\nother: 1"), "a.b;");
  EXPECT_THAT(read(""), HasSubstr("expected `api: [..]`"));
  EXPECT_THAT(read("compare_index: [a]"), HasSubstr("no `api`"));
  EXPECT_THAT(read("api: []"), HasSubstr("no `api`"));
  EXPECT_THAT(read("api: a"), HasSubstr("`api` is a list"));
  EXPECT_THAT(read("api: [[a]]"), HasSubstr("`api` is a list of names"));
  EXPECT_THAT(read("api: [a]\ncompare_index: Max diff"),
              HasSubstr("`compare_index` is a list"));
  EXPECT_THAT(read("api: [a"), HasSubstr("c.yaml: "));
}

}  // namespace
}  // namespace rankprobe::analysis
