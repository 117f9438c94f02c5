// SPDX-License-Identifier: Apache-2.0
// A fused program with the concatenated tokens of a batch, compared with one
// with three projections and [batch, tokens, width].
#include "analysis/align/align.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/align/aligned_tensor.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_reader.h"
#include "dump_format/dump_rows.h"
#include "dump_format/pt_writer.h"
#include "dump_format/testing/testing_files.h"

namespace rankprobe::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kRules[] = R"(version: 1
tokens: {target: Module.e.E.forward.0.input.0, reference: Module.f.F.forward.0.input.0}
rules:
- {target: Module.e.E.forward.0.input.0, reference: Module.f.F.forward.0.input.0}
- target: Module.{layer}.qk.L.forward.0.output.0
  reference: ["Module.{layer}.q.L.forward.0.output.0", "Module.{layer}.k.L.forward.0.output.0"]
  concat: -1
- {target: Module.q.L.forward.0.output.0, reference: Module.0.both.L.forward.0.output.0, split: {part: 1, sizes: [2, 1]}}
- {target: Module.w.L.forward.0.parameters.weight, reference: Module.v.L.forward.0.parameters.weight, transpose: [1, 0]}
- {target: Module.head.L.forward.0.output.0, reference: Module.lm.L.forward.0.output.0, dim0: last}
)";

struct Row {
  std::string entry;
  std::string place;  // "output.0"
  std::vector<int64_t> shape;
  std::vector<float> values;
};

std::vector<float> Values(const std::vector<int64_t>& shape, float first) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(first + static_cast<float>(i));
  }
  return out;
}

class AlignTest : public ::testing::Test {
 protected:
  // One rank's step; entries are in the order of their first row.
  void Write(const std::string& step, const std::vector<Row>& rows,
             bool payloads = true) {
    std::vector<std::string> entries;
    const std::string at = step + "/rank0/";
    for (const Row& row : rows) {
      const std::string name = row.entry + "." + row.place;
      const bool input = row.place.substr(0, 5) == "input";
      const bool parameter = row.place.substr(0, 9) == "parameter";
      float most = -1e9F;
      float least = 1e9F;
      double sum = 0;
      double squares = 0;
      for (const float v : row.values) {
        most = std::max(most, v);
        least = std::min(least, v);
        sum += v;
        squares += double{v} * v;
      }
      const std::string record = absl::StrCat(
          R"({"type":"torch.Tensor","dtype":"torch.float32","shape":[)",
          absl::StrJoin(row.shape, ","), R"(],"Max":)", most, R"(,"Min":)",
          least, R"(,"Mean":)", sum / static_cast<double>(row.values.size()),
          R"(,"Norm":)", std::sqrt(squares), R"(,"requires_grad":false)",
          payloads ? absl::StrCat(R"(,"data_name":")", name, R"(.pt")") : "",
          "}");
      entries.push_back(absl::StrCat(
          "\"", row.entry, R"(":{"input_args":[)", input ? record : "",
          R"(],"input_kwargs":{},"output":[)", input || parameter ? "" : record,
          R"(],"parameters":{)",
          parameter ? absl::StrCat(R"("weight":)", record) : "", "}}"));
      if (!payloads) continue;
      const std::string bytes(reinterpret_cast<const char*>(row.values.data()),
                              row.values.size() * sizeof(float));
      PtWriter pt(name, v1::DTYPE_FLOAT32, row.shape, bytes.size());
      pt.AddData(bytes);
      dir_.Write(at + "dump_tensor_data/" + name + ".pt",
                 pt.prefix() + bytes + pt.Suffix());
    }
    dir_.Write(at + "dump.json",
               absl::StrCat(R"({"task":")", payloads ? "tensor" : "statistics",
                            R"(","level":"L0","dump_data_dir":)",
                            payloads ? "\"/gone\"" : "null", R"(,"data":{)",
                            absl::StrJoin(entries, ","), "}}"));
  }
  void WriteRequests(const std::string& step, const std::string& requests,
                     const std::string& recorded = "null") {
    dir_.Write(step + "/rank0/requests.json",
               absl::StrCat(R"([{"from_entry":null,"rows":5,"recorded":)",
                            recorded, R"(,"requests":[)", requests, "]}]"));
  }
  absl::StatusOr<AlignReport> Align(const AlignOptions& options = {}) {
    const auto rules = ParseAlignRules("rules", kRules);
    EXPECT_TRUE(rules.ok()) << rules.status();
    RP_ASSIGN_OR_RETURN(const DumpLayout target,
                        FindDumps(file_system_.get(), dir_.path() + "/n"));
    RP_ASSIGN_OR_RETURN(const DumpLayout reference,
                        FindDumps(file_system_.get(), dir_.path() + "/b"));
    return AlignDumps(file_system_.get(), target, reference, *rules, options,
                      dir_.path() + "/out");
  }
  std::vector<double> Read(const std::string& side, const std::string& row,
                           int step = 0) {
    const auto pt =
        OpenPt(file_system_.get(),
               absl::StrCat(dir_.path(), "/out/", side, "/step", step,
                            "/rank0/dump_tensor_data/", row, ".pt"));
    EXPECT_TRUE(pt.ok()) << pt.status();
    if (!pt.ok()) return {};
    std::vector<double> out(static_cast<size_t>(pt->elements));
    EXPECT_TRUE(pt->Read(0, absl::MakeSpan(out)).ok());
    return out;
  }

  rankprobe::testing::TempDir dir_;
  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
};

constexpr char kQk[] = "Module.0.qk.L.forward.0.output.0";

TEST_F(AlignTest, RowsOfARequestBesideTheTokensOfASequence) {
  // Tokens 1 and 2 of request b are rows 3 and 4 of the batch.
  Write("n/step4",
        {{"Module.e.E.forward.0", "input.0", {5}, Values({5}, 0)},
         {"Module.0.qk.L.forward.0", "output.0", {5, 3}, Values({5, 3}, 0)},
         {"Module.head.L.forward.0", "output.0", {2, 2}, Values({2, 2}, 70)}});
  WriteRequests("n/step4", R"({"id":"a","begin":0,"end":3,"position":0},
                              {"id":"b-1f","begin":3,"end":5,"position":1})");
  Write("b/step0",
        {{"Module.f.F.forward.0", "input.0", {1, 4}, Values({1, 4}, 0)},
         {"Module.0.q.L.forward.0",
          "output.0",
          {1, 4, 2},
          Values({1, 4, 2}, 100)},
         {"Module.0.k.L.forward.0",
          "output.0",
          {1, 4, 1},
          Values({1, 4, 1}, 200)},
         {"Module.lm.L.forward.0",
          "output.0",
          {1, 4, 2},
          Values({1, 4, 2}, 300)}});
  EXPECT_THAT(Align().status().message(),
              HasSubstr("2 requests, and none was chosen; there are a, b-1f"));
  EXPECT_THAT(Align({"c", ""}).status().message(),
              HasSubstr("no request is c; there are a, b-1f"));
  const auto report = Align({"b", ""});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->rows, 3);
  EXPECT_EQ(report->left_out, 0) << report->examples[0];
  ASSERT_EQ(report->steps.size(), 1U);
  EXPECT_EQ(report->steps[0].begin, 1);
  EXPECT_EQ(report->steps[0].end, 3);
  EXPECT_THAT(Read("target", "Module.e.E.forward.0.input.0", 4),
              ElementsAre(3, 4));
  EXPECT_THAT(Read("reference", "Module.e.E.forward.0.input.0", 4),
              ElementsAre(1, 2));
  EXPECT_THAT(Read("target", kQk, 4), ElementsAre(9, 10, 11, 12, 13, 14));
  EXPECT_THAT(Read("reference", kQk, 4),
              ElementsAre(102, 103, 201, 104, 105, 202));
  // The head has one row for each request: that of its last token, number 2.
  EXPECT_THAT(Read("target", "Module.head.L.forward.0.output.0", 4),
              ElementsAre(72, 73));
  EXPECT_THAT(Read("reference", "Module.head.L.forward.0.output.0", 4),
              ElementsAre(304, 305));
  const auto dump = DumpReader::Open(
      file_system_.get(), dir_.path() + "/out/reference/step4/rank0", {});
  ASSERT_TRUE(dump.ok()) << dump.status();
  JsonDocument record;
  ASSERT_TRUE(
      (*dump)->Read(*(*dump)->Find("Module.0.qk.L.forward.0"), &record).ok());
  const JsonValue* const row = record.root().Find("output")->Find("0");
  EXPECT_EQ(
      row->Find("of")->text,
      "Module.0.q.L.forward.0.output.0 + Module.0.k.L.forward.0.output.0");
  EXPECT_EQ(row->Find("Max")->number, 202);
}

TEST_F(AlignTest, OfRequestsWhoseNamesAreInEachOtherTheRecordedOneIsThere) {
  Write("n/step0", {{"Module.e.E.forward.0", "input.0", {2}, Values({2}, 3)}});
  WriteRequests("n/step0", R"({"id":"11","begin":0,"end":3,"position":0},
                              {"id":"1","begin":3,"end":5,"position":0})",
                R"("1")");
  Write("b/step0",
        {{"Module.f.F.forward.0", "input.0", {1, 4}, Values({1, 4}, 0)}});
  const auto report = Align();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->steps[0].end, 2);
  EXPECT_THAT(Read("target", "Module.e.E.forward.0.input.0"),
              ElementsAre(3, 4));
}

TEST_F(AlignTest, AChunkOfTheTargetMayLieInSeveralStepsOfTheReference) {
  Write("n/step0", {{"Module.e.E.forward.0", "input.0", {4}, Values({4}, 0)}});
  Write("b/step0",
        {{"Module.f.F.forward.0", "input.0", {1, 3}, Values({1, 3}, 10)}});
  Write("b/step1",
        {{"Module.f.F.forward.0", "input.0", {1, 1}, Values({1, 1}, 20)}});
  const auto report = Align();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->steps[0].reference_steps, ElementsAre(0, 1));
  EXPECT_THAT(Read("reference", "Module.e.E.forward.0.input.0"),
              ElementsAre(10, 11, 12, 20));
}

TEST_F(AlignTest, SplitAndTranspose) {
  Write("n/step0",
        {{"Module.e.E.forward.0", "input.0", {2}, Values({2}, 0)},
         {"Module.q.L.forward.0", "output.0", {2, 1}, Values({2, 1}, 0)},
         {"Module.w.L.forward.0",
          "parameters.weight",
          {3, 2},
          Values({3, 2}, 0)}});
  Write("b/step0",
        {{"Module.f.F.forward.0", "input.0", {1, 2}, Values({1, 2}, 0)},
         {"Module.0.both.L.forward.0",
          "output.0",
          {1, 2, 3},
          Values({1, 2, 3}, 0)},
         {"Module.v.L.forward.0",
          "parameters.weight",
          {2, 3},
          Values({2, 3}, 0)}});
  const auto report = Align();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->rows, 3) << report->examples[0];
  EXPECT_THAT(Read("reference", "Module.q.L.forward.0.output.0"),
              ElementsAre(2, 5));
  EXPECT_THAT(Read("reference", "Module.w.L.forward.0.parameters.weight"),
              ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST_F(AlignTest, StatisticsAreCombinedWhereNothingIsCut) {
  const std::vector<Row> target = {
      {"Module.e.E.forward.0", "input.0", {2}, Values({2}, 0)},
      {"Module.0.qk.L.forward.0", "output.0", {2, 3}, Values({2, 3}, 0)}};
  Write("n/step0", target, false);
  Write("b/step0",
        {{"Module.f.F.forward.0", "input.0", {1, 2}, Values({1, 2}, 0)},
         {"Module.0.q.L.forward.0", "output.0", {1, 2, 2}, {0, 1, 3, 4}},
         {"Module.0.k.L.forward.0", "output.0", {1, 2, 1}, {2, 5}}},
        false);
  auto report = Align();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->rows, 2);
  for (const char* const side : {"target", "reference"}) {
    const auto dump = DumpReader::Open(
        file_system_.get(),
        absl::StrCat(dir_.path(), "/out/", side, "/step0/rank0"), {});
    ASSERT_TRUE(dump.ok()) << dump.status();
    JsonDocument record;
    ASSERT_TRUE((*dump)->Read(1, &record).ok());
    const JsonValue* const row = record.root().Find("output")->Find("0");
    EXPECT_EQ(row->Find("Max")->number, 5);
    EXPECT_EQ(row->Find("Min")->number, 0);
    EXPECT_NEAR(row->Find("Mean")->number, 2.5, 1e-12);
    EXPECT_NEAR(row->Find("Norm")->number, std::sqrt(55), 1e-5);
  }
  // The statistics of two tokens do not determine those of one.
  ASSERT_TRUE(file_system_->DeleteTree(dir_.path() + "/out").ok());
  Write("n/step0",
        {{"Module.e.E.forward.0", "input.0", {2}, Values({2}, 0)}, target[1]},
        false);
  WriteRequests("n/step0", R"({"id":"a","begin":0,"end":1,"position":0},
                              {"id":"b","begin":1,"end":2,"position":0})");
  EXPECT_THAT(Align({"a", ""}).status().message(),
              HasSubstr("has statistics only, which cannot be cut"));
}

TEST_F(AlignTest, RanksAndUnknownShapesAreRefusedByName) {
  Write("n/step0",
        {{"Module.e.E.forward.0", "input.0", {2}, Values({2}, 0)},
         {"Module.0.qk.L.forward.0", "output.0", {7, 3}, Values({7, 3}, 0)}});
  Write("b/step0",
        {{"Module.f.F.forward.0", "input.0", {1, 2}, Values({1, 2}, 0)}});
  const auto report = Align();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->rows, 1);
  EXPECT_THAT(report->examples,
              ElementsAre(absl::StrCat(kQk,
                                       ": has shape [7, 3], and its step "
                                       "has 2 tokens")));
  dir_.Write("n/step0/rank1/dump.json", R"({"task":"tensor","data":{}})");
  EXPECT_THAT(Align().status().message(), HasSubstr("has 2 ranks"));
}

TEST(AlignedTensorTest, FloatsAreRoundedAsPyTorchDoes) {
  const std::vector<std::pair<float, double>> halves = {
      {1, 1},
      {65519, 65504},
      {65520, INFINITY},
      {1e-8F, 0},
      {2049, 2048},
      {2051, 2052},
      {-0.1F, -0.0999755859375},
      {6e-8F, 5.9604644775390625e-08}};
  const std::vector<std::pair<float, double>> brains = {{1, 1},
                                                        {257, 256},
                                                        {259, 260},
                                                        {-0.1F, -0.10009765625},
                                                        {3.4e38F, INFINITY}};
  rankprobe::testing::TempDir dir;
  const auto file_system = NewPosixFileSystem();
  const auto rounded = [&](float value, v1::DType dtype) {
    const std::string bytes(reinterpret_cast<const char*>(&value), 4);
    PtWriter pt("x", v1::DTYPE_FLOAT32, {1}, 4);
    pt.AddData(bytes);
    const auto tensor =
        OpenPt(file_system.get(),
               dir.Write("x.pt", pt.prefix() + bytes + pt.Suffix()));
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    double out = -1;
    EXPECT_TRUE(DecodeElements(dtype, *ReadBytes(*tensor, dtype),
                               absl::MakeSpan(&out, 1))
                    .ok());
    return out;
  };
  for (const auto& [value, want] : halves) {
    EXPECT_EQ(rounded(value, v1::DTYPE_FLOAT16), want) << value;
  }
  for (const auto& [value, want] : brains) {
    EXPECT_EQ(rounded(value, v1::DTYPE_BFLOAT16), want) << value;
  }
}

}  // namespace
}  // namespace rankprobe::analysis
