// SPDX-License-Identifier: Apache-2.0
// compare against tables that msprobe 26.2.0 made from the same dumps.
#include "analysis/compare/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "dump_format/dump_layout.h"
#include "dump_format/testing/testing_files.h"

namespace rankprobe::analysis {
namespace {

using testing::AnalysisGolden;
using testing::GoldenDump;
using ::testing::HasSubstr;
using testing::ReadText;
using testing::TempDir;

using Table = std::vector<std::vector<std::string>>;

Table ParseCsv(const std::string& text) {
  Table rows;
  std::vector<std::string> row(1);
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '"' && i + 1 < text.size() && text[i + 1] == '"') {
        row.back().push_back('"');
        ++i;
      } else if (c == '"') {
        quoted = false;
      } else {
        row.back().push_back(c);
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      row.emplace_back();
    } else if (c == '\n') {
      rows.push_back(row);
      row.assign(1, "");
    } else if (c != '\r') {
      row.back().push_back(c);
    }
  }
  return rows;
}

bool IsNumber(std::string text, double* out) {
  text = std::string(absl::StripSuffix(text, "%"));
  char* end = nullptr;
  *out = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

// Accepts the differences that docs/analysis.md lists, and rounding.
bool SameCell(const std::string& column, const std::string& ours,
              const std::string& peer, const std::vector<std::string>& row) {
  if (ours == peer || ours == absl::StripAsciiWhitespace(peer)) return true;
  double a = 0;
  double b = 0;
  if (IsNumber(ours, &a) && IsNumber(peer, &b)) {
    return std::fabs(a - b) <= 1e-9 * std::fmax(std::fabs(a), std::fabs(b));
  }
  const bool verdict = column == "Result" || column == "Err_message";
  // Non-finite values at different positions, where msprobe passes the row.
  const bool specials =
      std::any_of(row.begin(), row.end(), [](const std::string& cell) {
        return absl::StrContains(cell, "in bench that NPU does not have");
      });
  return column == "NPU_Stack_Info" || (row[1] == "N/A" && verdict) ||
         (specials && verdict);
}

class CompareTest : public ::testing::Test {
 protected:
  std::unique_ptr<DumpReader> Open(const std::string& directory) {
    auto reader =
        DumpReader::Open(file_system_.get(), directory, reader_options_);
    EXPECT_TRUE(reader.ok()) << reader.status();
    return reader.ok() ? *std::move(reader) : nullptr;
  }
  std::string Compare(const std::string& target, const std::string& reference,
                      const MatchOptions& options = {}) {
    const auto n = Open(target);
    const auto b = Open(reference);
    if (n == nullptr || b == nullptr) return "";
    const std::string path =
        dir_.path() + "/out" + std::to_string(tables_++) + ".csv";
    auto sink = OpenCsv(file_system_.get(), path,
                        CompareHeader(n->mode(), n->stats(), n->has_stack()));
    EXPECT_TRUE(sink.ok()) << sink.status();
    auto counts = CompareDumps(file_system_.get(), *n, *b, options, sink->get(),
                               nullptr, nullptr);
    EXPECT_TRUE(counts.ok()) << counts.status();
    if (!counts.ok()) return "";
    counts_ = *counts;
    EXPECT_FALSE(file_system_->Exists(path));
    EXPECT_TRUE((*sink)->Finish().ok());
    return ReadText(path);
  }
  void ExpectPeer(const std::string& target, const std::string& reference,
                  const std::string& peer_name) {
    const Table ours = ParseCsv(Compare(target, reference));
    const Table peer =
        ParseCsv(ReadText(AnalysisGolden("compare/" + peer_name)));
    ASSERT_EQ(ours.size(), peer.size());
    ASSERT_GT(peer.size(), 20);
    ASSERT_EQ(ours[0], peer[0]);
    for (size_t i = 1; i < ours.size(); ++i) {
      ASSERT_EQ(ours[i].size(), peer[i].size());
      for (size_t c = 0; c < ours[i].size(); ++c) {
        EXPECT_TRUE(SameCell(ours[0][c], ours[i][c], peer[i][c], ours[i]))
            << ours[i][0] << " " << ours[0][c] << ": " << ours[i][c]
            << " != " << peer[i][c];
      }
    }
  }

  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  TempDir dir_;
  DumpReader::Options reader_options_;
  CompareCounts counts_;
  int tables_ = 0;
};

TEST_F(CompareTest, PerturbedWeight) {
  ExpectPeer(AnalysisGolden("dumps/cnn_stat_perturbed"),
             GoldenDump("cnn_stat_mix"), "cnn_stat_perturbed.csv");
}

TEST_F(CompareTest, PlantedDefectsStatistics) {
  ExpectPeer(AnalysisGolden("dumps/cnn_stat_planted"),
             GoldenDump("cnn_stat_mix"), "cnn_stat_planted.csv");
  EXPECT_EQ(counts_.error, 8);
  EXPECT_EQ(counts_.unmatched, 3);
}

TEST_F(CompareTest, PlantedDefectsMd5) {
  ExpectPeer(AnalysisGolden("dumps/cnn_md5_planted"), GoldenDump("cnn_md5_mix"),
             "cnn_md5_planted.csv");
  EXPECT_EQ(counts_.error, 3);
}

TEST_F(CompareTest, PlantedDefectsTensors) {
  ExpectPeer(AnalysisGolden("dumps/mlp_tensor_planted"),
             AnalysisGolden("dumps/mlp_tensor"), "mlp_tensor_planted.csv");
}

// The elements of these tensors were not compared: equal statistics are a
// warning, different ones an error.
TEST_F(CompareTest, MissingDataIsNeverPass) {
  const auto without_data = [this](const std::string& dump) {
    std::string copy =
        dir_.path() + "/" + std::filesystem::path(dump).filename().string();
    std::filesystem::copy(AnalysisGolden("dumps/" + dump), copy,
                          std::filesystem::copy_options::recursive);
    EXPECT_GT(std::filesystem::remove_all(copy + "/dump_tensor_data"), 1u);
    return copy;
  };
  const std::string whole = AnalysisGolden("dumps/mlp_tensor");
  Compare(whole, whole);
  ASSERT_EQ(counts_.warning + counts_.error, 0);
  const std::string bare = without_data("mlp_tensor");
  Compare(bare, whole);
  EXPECT_GT(counts_.warning, 10);
  EXPECT_EQ(counts_.error, 0);
  const std::string table = Compare(bare, bare);
  EXPECT_GT(counts_.warning, 10);
  EXPECT_THAT(table, HasSubstr("the .pt file is not there"));
  Compare(without_data("mlp_tensor_planted"), bare);
  EXPECT_GT(counts_.error, 0);
}

TEST_F(CompareTest, UnmatchedIsNeverPass) {
  const Table rows = ParseCsv(Compare(AnalysisGolden("dumps/cnn_stat_planted"),
                                      GoldenDump("cnn_stat_mix")));
  int unmatched = 0;
  for (const auto& row : rows) {
    if (row[1] != "N/A") continue;
    ++unmatched;
    EXPECT_THAT(row, ::testing::Contains("warning")) << row[0];
    EXPECT_THAT(row, ::testing::Contains(HasSubstr("No bench data matched")));
  }
  EXPECT_EQ(unmatched, 3);
}

constexpr char kTwoCalls[] = R"({"task":"statistics","level":"L1","data":{
 "Torch.add.0.forward":{"input_args":[],"input_kwargs":{},"output":[
   {"type":"torch.Tensor","dtype":"torch.float32","shape":[2],"Max":1.0,
    "Min":0.0,"Mean":0.5,"Norm":1.0,"requires_grad":false}]},
 "Torch.mul.3.forward":{"input_args":[],"input_kwargs":{},"output":[
   {"type":"torch.Tensor","dtype":"torch.float32","shape":[2],"Max":1.0,
    "Min":0.0,"Mean":0.5,"Norm":1.0,"requires_grad":false}]}}})";

TEST_F(CompareTest, FuzzyIgnoresCallNumbers) {
  dir_.Write("a/dump.json", kTwoCalls);
  dir_.Write("b/dump.json",
             absl::StrReplaceAll(kTwoCalls, {{"mul.3", "mul.9"}}));
  Compare(dir_.path() + "/a", dir_.path() + "/b");
  EXPECT_EQ(counts_.unmatched, 1);
  MatchOptions fuzzy;
  fuzzy.fuzzy = true;
  Compare(dir_.path() + "/a", dir_.path() + "/b", fuzzy);
  EXPECT_EQ(counts_.unmatched, 0);
}

TEST_F(CompareTest, DataMappingNamesTheRow) {
  dir_.Write("a/dump.json", kTwoCalls);
  dir_.Write("b/dump.json",
             absl::StrReplaceAll(kTwoCalls, {{"Torch.mul.3", "Torch.div.0"}}));
  MatchOptions options;
  options.rows = {
      {"Torch.mul.3.forward.output.0", "Torch.div.0.forward.output.0"}};
  const Table rows =
      ParseCsv(Compare(dir_.path() + "/a", dir_.path() + "/b", options));
  ASSERT_EQ(rows.size(), 3);
  EXPECT_EQ(rows[2][1], "Torch.div.0.forward.output.0");
}

TEST_F(CompareTest, CellMappingRenamesModules) {
  const std::string module = absl::StrReplaceAll(
      kTwoCalls, {{"Torch.mul.3.forward", "Module.fc1.Dense.forward.0"}});
  dir_.Write("a/dump.json", module);
  dir_.Write("b/dump.json", absl::StrReplaceAll(module, {{"Dense", "Linear"}}));
  MatchOptions options;
  options.cells = {{"fc1.Dense", "fc1.Linear"}};
  Compare(dir_.path() + "/a", dir_.path() + "/b", options);
  EXPECT_EQ(counts_.unmatched, 0);
}

TEST_F(CompareTest, ApiMappingRenamesCalls) {
  dir_.Write("a/dump.json", kTwoCalls);
  dir_.Write("b/dump.json",
             absl::StrReplaceAll(kTwoCalls, {{"Torch.mul", "Tensor.mul"}}));
  MatchOptions options;
  options.apis = *ReadApiRules(file_system_.get(),
                               dir_.Write("am.yaml", "Torch.mul: Tensor.mul"));
  const Table rows =
      ParseCsv(Compare(dir_.path() + "/a", dir_.path() + "/b", options));
  EXPECT_EQ(counts_.unmatched, 0);
  EXPECT_EQ(rows[2][1], "Tensor.mul.3.forward.output.0");
}

TEST_F(CompareTest, ApiMappingMovesPlaces) {
  constexpr char kTwoInputs[] =
      R"({"task":"statistics","level":"L1","data":{
 "Torch.sub.0.forward":{"input_args":[{"type":"int","value":1},
   {"type":"int","value":2},{"type":"int","value":3}],"input_kwargs":{},
   "output":[]}}})";
  dir_.Write("a/dump.json", kTwoInputs);
  dir_.Write("b/dump.json",
             absl::StrReplaceAll(kTwoInputs, {{"Torch.sub", "Tensor.rsub"}}));
  MatchOptions options;
  options.apis = *ReadApiRules(
      file_system_.get(),
      dir_.Write("am.yaml",
                 "- {ms_api: Torch.sub, pt_api: Tensor.rsub, ms_args: [0, 1],"
                 " pt_args: [1, 0]}"));
  const Table rows =
      ParseCsv(Compare(dir_.path() + "/a", dir_.path() + "/b", options));
  ASSERT_EQ(rows.size(), 4);
  EXPECT_EQ(rows[1][1], "Tensor.rsub.0.forward.input.1");
  EXPECT_EQ(rows[2][1], "Tensor.rsub.0.forward.input.0");
  EXPECT_EQ(rows[3][1], "N/A");  // its section does not list it
}

TEST_F(CompareTest, ApiMappingOfTheWrongShapeIsOneLine) {
  for (const char* const text :
       {"- 1", "a: [1]", "just text", "- {ms_api: a, pt_api: b, ms_args: [1]}",
        "- {ms_api: a}", "{"}) {
    const auto rules =
        ReadApiRules(file_system_.get(), dir_.Write("am.yaml", text));
    ASSERT_FALSE(rules.ok()) << text;
    EXPECT_THAT(rules.status().message(), HasSubstr("am.yaml: "));
    EXPECT_THAT(rules.status().message(), ::testing::Not(HasSubstr("\n")));
  }
}

TEST_F(CompareTest, LayerMappingPairsRenamedLayers) {
  constexpr char kLayer[] = R"({"task":"statistics","level":"mix","data":{
 "Functional.relu.0.forward":{"input_args":[{"type":"int","value":1}],
   "input_kwargs":{},"output":[]},
 "Module.a.ReLU.forward.0":{"input_args":[{"type":"int","value":1}],
   "input_kwargs":{},"output":[]},
 "Module.a.ReLU.parameters_grad":{"w":[{"type":"int","value":1}]}}})";
  constexpr char kConstruct[] =
      R"({"Functional.relu.0.forward":"Module.a.ReLU.forward.0",
          "Module.a.ReLU.forward.0":null})";
  dir_.Write("a/dump.json", kLayer);
  dir_.Write("a/construct.json", kConstruct);
  dir_.Write("b/dump.json",
             absl::StrReplaceAll(kLayer, {{"Module.a", "Module.x.y"}}));
  dir_.Write("b/construct.json",
             absl::StrReplaceAll(kConstruct, {{"Module.a", "Module.x.y"}}));
  reader_options_.construct = true;
  MatchOptions options;
  options.layers.emplace();
  Compare(dir_.path() + "/a", dir_.path() + "/b", options);
  EXPECT_EQ(counts_.unmatched, 3);
  *options.layers = *ReadLayerRules(
      file_system_.get(), dir_.Write("lm.yaml", "TopLayer: {a: x.y}"));
  const Table rows =
      ParseCsv(Compare(dir_.path() + "/a", dir_.path() + "/b", options));
  EXPECT_EQ(counts_.unmatched, 0);
  EXPECT_EQ(rows[2][1], "Module.x.y.ReLU.forward.0.input.0");
}

// Neither the numbers nor the shape are those of a complete tensor: the row
// does not pass, and is not a finding against the call.
TEST_F(CompareTest, WhatWasNotPutTogetherIsAWarning) {
  const auto with_input = [](const std::string& text,
                             const std::string& value) {
    return absl::StrReplaceAll(
        text, {{R"("input_args":[])",
                absl::StrCat(R"("input_args":[)", value, "]")}});
  };
  dir_.Write("b/dump.json",
             with_input(kTwoCalls, R"({"type":"int","value":4})"));
  const std::string target = absl::StrReplaceAll(
      kTwoCalls, {{R"("shape":[2],"Max":1.0)", R"("shape":[1],"Max":NaN)"},
                  {R"("requires_grad":false)",
                   R"("requires_grad":true,"not_put_together":"a sum")"}});
  dir_.Write("a/dump.json",
             with_input(target, R"({"type":"int","value":2,)"
                                R"("not_put_together":"a sum"})"));
  const Table rows =
      ParseCsv(Compare(dir_.path() + "/a", dir_.path() + "/b", {}));
  EXPECT_EQ(counts_.rows, 4);
  EXPECT_EQ(counts_.warning, 4);
  EXPECT_EQ(counts_.error, 0);
  for (const size_t row : {1, 2, 3, 4}) {
    EXPECT_THAT(rows[row],
                ::testing::Contains("[\"warning: not assembled: a sum\"]"));
  }
}

TEST_F(CompareTest, TasksMustAgree) {
  dir_.Write("a/dump.json", kTwoCalls);
  const auto n = Open(dir_.path() + "/a");
  const auto b = Open(GoldenDump("cnn_md5_mix"));
  const absl::Status status = CheckComparable(*n, *b);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("md5"));
}

TEST(TableSinkTest, FormulasAreDefused) {
  EXPECT_EQ(WithoutFormula("=1+1"), "'=1+1");
  EXPECT_EQ(WithoutFormula("@x"), "'@x");
  EXPECT_EQ(WithoutFormula("a;=b"), "'a;=b");
  EXPECT_EQ(WithoutFormula("-1.5"), "-1.5");
  EXPECT_EQ(WithoutFormula("-inf"), "-inf");
  EXPECT_EQ(WithoutFormula("plain"), "plain");
}

TEST_F(CompareTest, AnAbandonedTableLeavesNoFile) {
  for (const bool xlsx : {false, true}) {
    const std::string path = dir_.path() + "/gone";
    const std::vector<std::string> header = {"a", "Result"};
    {
      auto sink = xlsx ? OpenXlsx(file_system_.get(), path, header)
                       : OpenCsv(file_system_.get(), path, header);
      ASSERT_TRUE(sink.ok());
      EXPECT_TRUE((*sink)->AddRow(std::vector<std::string>{"1", "error"}).ok());
    }
    EXPECT_TRUE(file_system_->List(dir_.path())->empty());
  }
}

}  // namespace
}  // namespace rankprobe::analysis
