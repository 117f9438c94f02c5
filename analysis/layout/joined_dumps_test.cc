// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/joined_dumps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_rows.h"
#include "dump_format/testing/testing_files.h"

namespace rankprobe::analysis {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

std::string Plain(const std::string& shape, double value,
                  const std::string& more = "",
                  const std::string& type = "torch.Tensor") {
  return absl::StrCat(
      R"({"type":")", type, R"(","dtype":"torch.float32","shape":)", shape,
      R"(,"Max":)", value, R"(,"Min":)", value, R"(,"Mean":)", value,
      R"(,"Norm":)", value, R"(,"requires_grad":true)", more, "}");
}
std::string OnPair(const std::string& placement, const std::string& shape,
                   double value) {
  return Plain(
      shape, value,
      absl::StrCat(R"(,"device_mesh":[0,1],"placements":[)", placement, "]"),
      "torch.distributed.tensor.DTensor");
}
const char kShard0[] = R"({"Shard":{"dim":0}})";
const char kPartial[] = R"({"Partial":{"reduce_op":"sum"}})";

std::string Entry(const std::string& name, const std::string& in,
                  const std::string& out) {
  return absl::StrCat("\"", name, R"(":{"input_args":[)", in,
                      R"(],"input_kwargs":{},"output":[)", out, "]}");
}

class JoinedDumpsTest : public ::testing::Test {
 protected:
  void Write(const std::string& place, const std::vector<std::string>& calls,
             const std::string& task = "statistics") {
    dir_.Write(place + "/dump.json",
               absl::StrCat(R"({"task":")", task, R"(","data":{)",
                            absl::StrJoin(calls, ","), "}}"));
  }
  absl::Status Join(const LayoutOptions& options = {},
                    const std::string& target = "n",
                    const std::string& reference = "b") {
    RP_ASSIGN_OR_RETURN(
        const DumpLayout n,
        FindDumps(file_system_.get(), absl::StrCat(dir_.path(), "/", target)));
    RP_ASSIGN_OR_RETURN(const DumpLayout b,
                        FindDumps(file_system_.get(),
                                  absl::StrCat(dir_.path(), "/", reference)));
    RP_ASSIGN_OR_RETURN(report_,
                        JoinDumps(file_system_.get(), n, b, options,
                                  absl::StrCat(dir_.path(), "/out", ++runs_)));
    return absl::OkStatus();
  }
  std::unique_ptr<DumpReader> Open(const std::string& side) {
    auto dump = DumpReader::Open(
        file_system_.get(),
        absl::StrCat(dir_.path(), "/out", runs_, "/", side, "/step0/rank0"),
        {});
    EXPECT_TRUE(dump.ok()) << dump.status();
    return *std::move(dump);
  }
  static std::vector<std::string> Names(const DumpReader& dump) {
    std::vector<std::string> out;
    out.reserve(dump.size());
    for (size_t i = 0; i < dump.size(); ++i) out.emplace_back(dump.name(i));
    return out;
  }
  // Returns "shape Max Mean why" of each row.
  static std::vector<std::string> Rows(const DumpReader& dump,
                                       const std::string& call) {
    JsonDocument record;
    std::vector<DumpRow> rows;
    const auto index = dump.Find(call);
    EXPECT_TRUE(index.has_value()) << call;
    EXPECT_TRUE(dump.Read(*index, &record).ok());
    EXPECT_TRUE(ReadRows(call, dump.stats(), &record, &rows).ok());
    std::vector<std::string> out;
    out.reserve(rows.size());
    for (const DumpRow& row : rows) {
      out.push_back(absl::StrCat(row.shape, " ", PythonText(row.stats[kMax]),
                                 " ", PythonText(row.stats[kMean]),
                                 row.not_put_together.empty() ? "" : " ",
                                 row.not_put_together));
    }
    return out;
  }

  testing::TempDir dir_;
  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  LayoutReport report_;
  int runs_ = 0;
};

TEST_F(JoinedDumpsTest, RanksBecomeTheDumpOfOne) {
  for (const int rank : {0, 1}) {
    Write(absl::StrCat("n/step0/rank", rank),
          {Entry("Module.a.FSDPLinear.forward.0",
                 OnPair(kShard0, rank == 0 ? "[3,2]" : "[1,2]", rank * 4),
                 OnPair(kPartial, "[4]", rank + 1))});
  }
  Write("b/step0/rank0", {Entry("Module.a.Linear.forward.0", Plain("[4,2]", 4),
                                Plain("[4]", 3))});
  ASSERT_TRUE(Join().ok());
  const auto dump = Open("target");
  EXPECT_THAT(Names(*dump), ElementsAre("Module.a.Linear.forward.0"));
  EXPECT_THAT(Rows(*dump, "Module.a.Linear.forward.0"),
              ElementsAre("[4, 2] 4 1.0", AllOf(HasSubstr("[4] None 3.0"),
                                                HasSubstr("only the mean"))));
  EXPECT_EQ(report_.target.shards, 1);
  EXPECT_EQ(report_.target.sums, 1);
  EXPECT_EQ(report_.target.refused, 1);
  EXPECT_THAT(report_.target.refusals,
              ElementsAre(HasSubstr("Module.a.Linear.forward.0.output.0: a sum "
                                    "that is not reduced yet")));
  EXPECT_THAT(LayoutTexts(report_)[0],
              HasSubstr("target: 2 ranks, 2 tensors, 1 assembled from shards, "
                        "1 of terms of a sum, 1 not assembled"));
}

// Each rank has a part of the calls; the other run determines their order.
TEST_F(JoinedDumpsTest, StagesOfAPipelineAreInTheOrderOfTheOtherRun) {
  const auto call = [](const std::string& name) {
    return Entry(name, Plain("[1]", 1), Plain("[1]", 1));
  };
  const std::string a = "Module.a.Linear.";
  const std::string b = "Module.b.Linear.";
  Write("n/step0/rank0", {call(a + "forward.0"), call(a + "backward.0")});
  Write("n/step0/rank1", {call(b + "forward.0"), call(b + "backward.0")});
  Write("b/step0/rank0", {call(a + "forward.0"), call(b + "forward.0"),
                          call(b + "backward.0"), call(a + "backward.0")});
  ASSERT_TRUE(Join().ok());
  const auto dump = Open("target");
  EXPECT_EQ(Names(*dump), Names(*Open("reference")));
  EXPECT_EQ(report_.target.refused, 0);
}

// Both stages number their own first pow 0: they are two calls in different
// modules.
TEST_F(JoinedDumpsTest, CallsOfStagesAreToldApartByTheirModules) {
  const auto call = [](const std::string& name, double value) {
    return Entry(name, Plain("[1]", value), Plain("[1]", value));
  };
  const auto write = [&](const std::string& place,
                         const std::vector<std::vector<std::string>>& modules,
                         const std::vector<std::string>& calls) {
    Write(place, calls);
    std::vector<std::string> edges;
    for (const auto& module : modules) {
      const std::string name =
          absl::StrCat("Module.", module[0], ".Norm.forward.0");
      edges.push_back(absl::StrCat("\"", name, "\":null"));
      for (size_t i = 1; i < module.size(); ++i) {
        edges.push_back(absl::StrCat("\"", module[i], "\":\"", name, "\""));
      }
    }
    dir_.Write(place + "/construct.json",
               absl::StrCat("{", absl::StrJoin(edges, ","), "}"));
  };
  const std::string pow0 = "Tensor.pow.0.forward";
  const std::string pow1 = "Tensor.pow.1.forward";
  const std::string a = "Module.a.Norm.forward.0";
  const std::string b = "Module.b.Norm.forward.0";
  // Both stages have their own optimizer, and it is unknown which call belongs
  // to which.
  const std::string step = "Tensor.add_.0.forward";
  write("n/rank0", {{"a", pow0}}, {call(pow0, 1), call(a, 1), call(step, 3)});
  // With an additional call before, the module's pow is the second here, too.
  write("n/rank1", {{"b", pow1}},
        {call(pow0, 7), call(pow1, 2), call(b, 2), call(step, 4)});
  write("b/rank0", {{"a", pow0}, {"b", pow1}},
        {call(pow0, 1), call(a, 1), call(pow1, 2), call(b, 2), call(step, 3)});
  ASSERT_TRUE(Join().ok());
  const auto dump = Open("target");
  EXPECT_THAT(Rows(*dump, pow0), ElementsAre("[1] 1 1", "[1] 1 1"));
  EXPECT_THAT(Rows(*dump, pow1), ElementsAre("[1] 2 2", "[1] 2 2"));
  EXPECT_THAT(Rows(*dump, "Tensor.pow_rank1.0.forward"),
              ElementsAre("[1] 7 7", "[1] 7 7"));
  EXPECT_EQ(report_.target.refused, 0);
  EXPECT_EQ(report_.target.calls_alone, 3);
  EXPECT_FALSE(dump->Find(step).has_value());
}

TEST_F(JoinedDumpsTest, CopiesThatDifferAreCountedAndTheWrongOneIsTaken) {
  for (const int rank : {0, 1}) {
    Write(absl::StrCat("n/rank", rank),
          {Entry("Module.a.Linear.forward.0",
                 OnPair(R"({"Replicate":{}})", "[4]", 2),
                 Plain("[4]", rank == 0 ? 2 : 9))});
  }
  Write("b/rank0",
        {Entry("Module.a.Linear.forward.0", Plain("[4]", 2), Plain("[4]", 2))});
  ASSERT_TRUE(Join().ok());
  EXPECT_THAT(Rows(*Open("target"), "Module.a.Linear.forward.0"),
              ElementsAre("[4] 2 2", "[4] 9 9"));
  EXPECT_EQ(report_.target.copies_differ, 1);
  EXPECT_THAT(report_.target.differing,
              ElementsAre("Module.a.Linear.forward.0.output.0: ranks 0 and 1"));
  EXPECT_EQ(report_.target.refused, 0);
}

// transformers' tensor parallel layers take and return plain tensors.
TEST_F(JoinedDumpsTest, AModuleThatComputesWithItsPartOfTheWeightHasOneModel) {
  const auto call = [](const std::string& name, const std::string& in,
                       const std::string& out, const std::string& weight) {
    return absl::StrCat("\"", name, R"(":{"input_args":[)", in,
                        R"(],"input_kwargs":{},"output":[)", out,
                        R"(],"parameters":{"weight":)", weight, "}}");
  };
  const std::string name = "Module.a.Linear.forward.0";
  const std::string shard1 = R"({"Shard":{"dim":1}})";
  for (const int rank : {0, 1}) {
    const std::string dir = absl::StrCat("/step0/rank", rank);
    Write("rows" + dir, {call(name, Plain("[5,2]", 1), Plain("[5,3]", rank),
                              OnPair(kShard0, "[3,2]", rank))});
    Write("columns" + dir, {call(name, Plain("[5,3]", rank), Plain("[5,2]", 1),
                                 OnPair(shard1, "[2,3]", rank))});
    // FSDP has gathered the weight when the module runs, but not when it is
    // recorded.
    Write("storage" + dir,
          {call(name, Plain("[5,2]", rank), Plain("[5,6]", rank),
                OnPair(kShard0, "[3,2]", rank))});
  }
  Write("b/step0/rank0",
        {call(name, Plain("[5,2]", 1), Plain("[5,6]", 1), Plain("[6,2]", 1))});
  Write("c/step0/rank0",
        {call(name, Plain("[5,6]", 1), Plain("[5,2]", 1), Plain("[2,6]", 1))});
  ASSERT_TRUE(Join({}, "rows", "b").ok());
  EXPECT_THAT(Rows(*Open("target"), name),
              ElementsAre("[5, 2] 1 1", "[6, 2] 1 0.5", "[5, 6] 1 0.5"));
  EXPECT_EQ(report_.target.by_shape, 1);
  ASSERT_TRUE(Join({}, "columns", "c").ok());
  EXPECT_THAT(Rows(*Open("target"), name),
              ElementsAre("[5, 6] 1 0.5", "[2, 6] 1 0.5", "[5, 2] 1 1"));
  ASSERT_TRUE(Join({}, "storage", "b").ok());
  EXPECT_THAT(Rows(*Open("target"), name),
              ElementsAre(HasSubstr("share no model"), "[6, 2] 1 0.5",
                          HasSubstr("share no model")));
}

TEST_F(JoinedDumpsTest, InsideOfExpertsEachRankHasItsOwn) {
  const std::string inside = "Module.moe.act.SiLU.forward.0";
  const std::string beside = "Module.moe.gate.Router.forward.0";
  const auto experts = [](const std::string& weight) {
    return absl::StrCat(
        R"("Module.moe.FSDPExperts.forward.0":{"input_args":[],"output":[],)",
        R"("parameters":{"up":)", weight, "}}");
  };
  // A single DTensor shows that the ranks belong to one model.
  const std::string linear = Entry("Module.a.Linear.forward.0", Plain("[2]", 1),
                                   OnPair(kShard0, "[1]", 1));
  for (const int rank : {0, 1}) {
    const std::string dir = absl::StrCat("n/step0/rank", rank);
    Write(dir, {linear, experts(OnPair(kShard0, "[1,3,2]", 1)),
                Entry(inside, Plain("[4]", 1), Plain("[4]", rank)),
                Entry(beside, Plain("[4]", 1), Plain("[4]", rank))});
    dir_.Write(dir + "/construct.json",
               absl::StrCat(R"({")", inside,
                            R"(":"Module.moe.FSDPExperts.forward.0",)",
                            R"("Module.moe.FSDPExperts.forward.0":null})"));
  }
  Write("b/step0/rank0", {linear, experts(Plain("[2,3,2]", 1)),
                          Entry(inside, Plain("[4]", 1), Plain("[4]", 0)),
                          Entry(beside, Plain("[4]", 1), Plain("[4]", 0))});
  ASSERT_TRUE(Join().ok());
  EXPECT_THAT(Rows(*Open("target"), inside),
              ElementsAre("[4] 1 1", HasSubstr("inside of experts")));
  EXPECT_THAT(Rows(*Open("target"), beside), ElementsAre("[4] 1 1", "[4] 1 1"));
  EXPECT_EQ(report_.target.copies_differ, 1);
  EXPECT_EQ(report_.target.refused, 1);
}

// Routers of two layouts may sort the tokens of an expert differently.
TEST_F(JoinedDumpsTest, ElementsInsideOfExpertsAreNotPutBehindOneAnother) {
  const std::string inside = "Tensor.to.0.forward";
  const std::string experts = "Module.moe.Experts.forward.0";
  const std::string linear = "Module.a.Linear.forward.0";
  const auto call = [&](const std::string& shape, bool file) {
    const auto tensor = [&](const std::string& place) {
      return Plain(
          shape, 1,
          file ? absl::StrCat(R"(,"data_name":")", inside, place, ".pt\"")
               : "");
    };
    return Entry(inside, tensor(".input.0"), tensor(".output.0"));
  };
  const auto moe = [&](const std::string& weight) {
    return absl::StrCat("\"", experts, R"(":{"input_args":[],"output":[)",
                        R"(],"parameters":{"up":)", weight, "}}");
  };
  const auto write = [&](const std::string& dir, const std::string& tokens,
                         const std::string& features,
                         const std::string& weight) {
    Write(dir,
          {Entry(linear, Plain("[2]", 1), features),
           call(tokens, dir[0] == 'n'), moe(weight)},
          "tensor");
    dir_.Write(dir + "/construct.json",
               absl::StrCat("{\"", inside, "\":\"", experts, "\",\"", experts,
                            "\":null}"));
  };
  for (const int rank : {0, 1}) {
    write(absl::StrCat("n/step0/rank", rank), "[2]", OnPair(kShard0, "[1]", 1),
          OnPair(kShard0, "[1,3,2]", 1));
  }
  write("b/step0/rank0", "[4]", Plain("[2]", 1), Plain("[2,3,2]", 1));
  ASSERT_TRUE(Join().ok());
  // Its statistics are compared.
  EXPECT_THAT(Rows(*Open("target"), inside)[1],
              AllOf(HasSubstr("[4] 1 1"), HasSubstr("by statistics alone")));
  EXPECT_EQ(report_.target.by_shape, 2);
}

TEST_F(JoinedDumpsTest, BatchesOfDataParallelRanks) {
  for (const int rank : {0, 1}) {
    Write(absl::StrCat("n/rank", rank),
          {Entry("Module.a.Linear.forward.0", Plain("[2,3]", rank),
                 Plain("[2,3]", 5))});
  }
  Write("b/rank0", {Entry("Module.a.Linear.forward.0", Plain("[4,3]", 1),
                          Plain("[4,3]", 5))});
  ASSERT_TRUE(Join().ok());
  EXPECT_THAT(Rows(*Open("target"), "Module.a.Linear.forward.0")[0],
              HasSubstr("share no model"));
  LayoutOptions options;
  options.split_batch = true;
  ASSERT_TRUE(Join(options).ok());
  EXPECT_THAT(Rows(*Open("target"), "Module.a.Linear.forward.0"),
              ElementsAre("[4, 3] 1 0.5", "[4, 3] 5 5.0"));
  EXPECT_EQ(report_.target.by_batch, 2);
  EXPECT_THAT(report_.target.refusals, IsEmpty());
}

TEST_F(JoinedDumpsTest, StacksAndTheModuleTreeComeAlong) {
  const std::string call = "Module.a.FSDPLinear.forward.0";
  for (const int rank : {0, 1}) {
    const std::string place = absl::StrCat("n/rank", rank);
    Write(place, {Entry(call, Plain("[1]", 1), Plain("[1]", 1))});
    dir_.Write(
        place + "/stack.json",
        absl::StrCat(R"({"0":[[")", call, R"("],["at rank)", rank, R"("]]})"));
    dir_.Write(place + "/construct.json",
               absl::StrCat(R"({")", call, R"(":"Module.FSDPTop.forward.0",)",
                            R"("Module.FSDPTop.forward.0":null})"));
  }
  Write("b/rank0",
        {Entry("Module.a.Linear.forward.0", Plain("[1]", 1), Plain("[1]", 1))});
  ASSERT_TRUE(Join().ok());
  DumpReader::Options options;
  options.construct = true;
  const auto dump = DumpReader::Open(
      file_system_.get(), dir_.path() + "/out1/target/step0/rank0", options);
  ASSERT_TRUE(dump.ok()) << dump.status();
  EXPECT_TRUE((*dump)->put_together());
  ASSERT_EQ((*dump)->construct().size(), 2);
  EXPECT_EQ((*dump)->construct()[0].child, "Module.a.Linear.forward.0");
  EXPECT_EQ((*dump)->construct()[0].parent, "Module.Top.forward.0");
  const auto* const stack = (*dump)->Stack("Module.a.Linear.forward.0");
  ASSERT_NE(stack, nullptr);
  EXPECT_THAT(*stack, ElementsAre("at rank0"));
}

// Values that rankprobe never writes affect only themselves; a record that is
// not an object is an error.
TEST_F(JoinedDumpsTest, StrangeRecordsAreTakenAsTheyAre) {
  const std::string strange =
      R"({"class_type":"x","dtype":"torch.float32","shape":[]},)"
      R"({"type":7,"dtype":"torch.float32"},)"
      R"({"type":"torch.Tensor","dtype":5,"shape":{}},)"
      R"({"type":"torch.Tensor","dtype":"torch.float32","shape":[[]]},)"
      R"({"type":"x","value":[{"a":[null,"b",1e400]}]},"bare",null)";
  for (const int rank : {0, 1}) {
    Write(absl::StrCat("n/rank", rank),
          {Entry("Module.a.Linear.forward.0", strange, Plain("[1]", 1)),
           R"("empty":{})"});
  }
  Write("b/rank0",
        {Entry("Module.a.Linear.forward.0", strange, Plain("[1]", 1))});
  ASSERT_TRUE(Join().ok());
  const auto dump = Open("target");
  EXPECT_EQ(dump->size(), 2);
  EXPECT_EQ(Rows(*dump, "Module.a.Linear.forward.0").back(), "[1] 1 1");
  Write("n/rank1", {Entry("Module.a.Linear.forward.0", strange, strange),
                    R"("no object":[1])"});
  EXPECT_THAT(
      std::string(Join().message()),
      HasSubstr("n/rank1/dump.json: entry no object: is not an object"));
}

TEST_F(JoinedDumpsTest, WhatCannotBeComparedIsSaid) {
  Write("n/step1/rank0",
        {Entry("Module.a.Linear.forward.0", Plain("[1]", 1), Plain("[1]", 1))});
  Write("b/step2/rank0",
        {Entry("Module.a.Linear.forward.0", Plain("[1]", 1), Plain("[1]", 1))});
  EXPECT_TRUE(Join().ok()) << "the only step of each";
  Write("b/step3/rank0", {});
  EXPECT_THAT(std::string(Join().message()), HasSubstr("no step in common"));
  Write("b/step1/rank0",
        {Entry("Module.a.Linear.forward.0",
               Plain("[1]", 1, R"(,"md5":"00000000")"), Plain("[1]", 1))});
  EXPECT_THAT(std::string(Join().message()), HasSubstr("holds checksums"));
}

std::vector<std::string> Below(const std::string& wrappers) {
  std::vector<std::string> calls;
  for (const char* const name : {"in.Linear", "module.Linear"}) {
    calls.push_back(Entry(absl::StrCat("Module.", wrappers, name, ".forward.0"),
                          Plain("[2]", 1), Plain("[2]", 2)));
  }
  calls.push_back(
      Entry("Torch.relu.0.forward", Plain("[2]", 1), Plain("[2]", 1)));
  if (!wrappers.empty()) {
    calls.push_back(Entry(absl::StrCat("Module.", wrappers, "Net.forward.0"),
                          Plain("[2]", 1), Plain("[2]", 2)));
  }
  return calls;
}

TEST_F(JoinedDumpsTest, WhatWrapsTheModelOfOneSideIsLeftOutOfNames) {
  const auto names = [this](const std::string& target,
                            const std::string& reference) {
    for (const char* const rank : {"rank0", "rank1"})
      Write(absl::StrCat("n/step0/", rank), Below(target));
    Write("b/step0/rank0", Below(reference));
    EXPECT_TRUE(Join().ok());
    return std::pair(Names(*Open("target")), Names(*Open("reference")));
  };
  const auto plain =
      ElementsAre("Module.in.Linear.forward.0",
                  "Module.module.Linear.forward.0", "Torch.relu.0.forward");
  const auto below = ElementsAre(
      "Module.in.Linear.forward.0", "Module.module.Linear.forward.0",
      "Torch.relu.0.forward", "Module.Net.forward.0");
  EXPECT_THAT(names("module.", ""), Pair(below, plain));
  EXPECT_EQ(report_.target.wrappers_left_out, 1);
  EXPECT_EQ(report_.target.calls_alone, 1) << "what the wrapper calls";
  EXPECT_THAT(LayoutTexts(report_),
              Contains(HasSubstr("what wraps the model")));
  EXPECT_THAT(names("module.module.", ""), Pair(below, plain));
  EXPECT_THAT(names("", "module."), Pair(plain, below));
  EXPECT_EQ(report_.reference.wrappers_left_out, 1);
  const auto both = names("module.", "module.");
  EXPECT_EQ(both.first, both.second);
  EXPECT_THAT(both.first, Contains("Module.module.in.Linear.forward.0"));
  EXPECT_EQ(report_.target.wrappers_left_out, 0) << "both have it";
}

TEST(NameWithoutShardingTest, OnlyTheClassOfAModule) {
  EXPECT_EQ(NameWithoutSharding("Module.a.FSDPBlock.forward.0"),
            "Module.a.Block.forward.0");
  EXPECT_EQ(NameWithoutSharding("Module.a.FSDPBlock.forward.0.input.0.pt"),
            "Module.a.Block.forward.0.input.0.pt");
  for (const char* const name :
       {"Module.FSDPa.Block.forward.0", "Module.a.FSDP.forward.0",
        "Module.a.FSDPlike.backward.1", "Functional.FSDPLinear.0.forward"}) {
    EXPECT_EQ(NameWithoutSharding(name), name);
  }
}

}  // namespace
}  // namespace rankprobe::analysis
