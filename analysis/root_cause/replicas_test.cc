// SPDX-License-Identifier: Apache-2.0
// Ranks that should hold equal values and do not.
#include "analysis/root_cause/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "analysis/testing/dump_text.h"

namespace rankprobe::analysis {
namespace {

using rankprobe::testing::Call;
using rankprobe::testing::Int;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A weight of 1,024 different elements.
std::string Parameter(const std::string& norm,
                      const std::string& mean = "0.1") {
  return absl::StrCat(
      R"("Module.m.M.forward.0":{"input_args":[],"input_kwargs":{},)",
      R"("output":[],"parameters":{"w":{"type":"torch.Tensor",)",
      R"("dtype":"torch.float32","shape":[32,32],"Max":)", norm, R"(,"Min":-)",
      norm, R"(,"Mean":)", mean, R"(,"Norm":)", norm,
      R"(,"requires_grad":false}}})");
}

class ReplicasTest : public ::testing::Test {
 protected:
  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  rankprobe::testing::DumpDir dir_;
};

TEST_F(ReplicasTest, Replicas) {
  const auto check = [&](const ReplicaOptions& options = {}) {
    auto report =
        CheckReplicas(file_system_.get(), dir_.path() + "/r", options);
    EXPECT_TRUE(report.ok()) << report.status();
    return *std::move(report);
  };
  const std::string send =
      Call("Distributed.send.0.forward", "7", "7", Int("dst", 1));
  const std::string receive =
      Call("Distributed.recv.0.forward", "0", "7", Int("src", 0));
  dir_.Write("r/rank0", {Parameter("8.1"), send});
  dir_.Write("r/rank1", {Parameter("8.1"), receive});
  ReplicaReport report = check();
  EXPECT_THAT(report.differences, IsEmpty());
  EXPECT_EQ(report.rows_compared, 1);
  EXPECT_EQ(report.transfers_compared, 1);

  dir_.Write("r/rank1", {Parameter("8.10001"),
                         absl::StrReplaceAll(receive, {{"7", "8"}})});
  report = check();
  ASSERT_THAT(report.differences, SizeIs(2));
  EXPECT_EQ(report.differences[0].kind, ReplicaDifference::Kind::kParameter);
  EXPECT_EQ(report.differences[1].kind, ReplicaDifference::Kind::kTransfer);
  ReplicaOptions apart;
  apart.groups = {{0}, {1}};
  EXPECT_THAT(check(apart).differences, SizeIs(1));

  // A program that shards by hand declares nothing.
  dir_.Write("r/rank1", {Parameter("9.2", "-0.1"), receive});
  report = check();
  EXPECT_THAT(report.differences, IsEmpty());
  EXPECT_EQ(report.rows_of_shards, 1);
  EXPECT_THAT(report.first_of_shards, HasSubstr("parameters.w"));
  ReplicaOptions together;
  together.groups = {{0, 1}};
  EXPECT_THAT(check(together).differences, SizeIs(1));
}

TEST_F(ReplicasTest, WhoHeldTheSameInAnEarlierStepAreReplicas) {
  const auto check = [&](const std::string& dump) {
    auto report = CheckReplicas(file_system_.get(), dir_.path() + dump, {});
    EXPECT_TRUE(report.ok()) << report.status();
    return *std::move(report);
  };
  // In step 1 they are as far apart as shards of random weights.
  dir_.Write("d/step1/rank0", {Parameter("8.1")});
  dir_.Write("d/step1/rank1", {Parameter("9.2", "-0.1")});
  EXPECT_EQ(check("/d").rows_of_shards, 1);
  dir_.Write("d/step0/rank0", {Parameter("8")});
  dir_.Write("d/step0/rank1", {Parameter("8")});
  ReplicaReport report = check("/d");
  ASSERT_THAT(report.differences, SizeIs(1));
  EXPECT_EQ(report.differences[0].step, 1);
  EXPECT_EQ(report.rows_of_shards, 0);
  // Steps that are checked one by one.
  HeldAlike alike;
  for (const size_t step : {0, 1}) {
    auto layout = FindDumps(file_system_.get(),
                            absl::StrCat(dir_.path(), "/d/step", step));
    ASSERT_TRUE(layout.ok());
    const auto found =
        CheckReplicas(file_system_.get(), *std::move(layout), {}, &alike);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_THAT(found->differences, SizeIs(step));
  }
  // A constant, which shards begin with, is equal on all of them.
  const std::string zeros =
      absl::StrReplaceAll(Parameter("0", "0"), {{R"("Min":-0)", R"("Min":0)"}});
  dir_.Write("d/step0/rank0", {zeros});
  dir_.Write("d/step0/rank1", {zeros});
  report = check("/d");
  EXPECT_THAT(report.differences, IsEmpty());
  EXPECT_EQ(report.rows_of_shards, 1);
}

TEST_F(ReplicasTest, AForwardThatValidatesIsNoneOfTheTraining) {
  const auto forward = [](int number, const std::string& norm) {
    return absl::StrReplaceAll(
        Parameter(norm), {{"forward.0", absl::StrCat("forward.", number)}});
  };
  const auto backward = [](int number) {
    return absl::StrCat(R"("Module.m.M.backward.)", number,
                        R"(":{"input":[],"output":[]})");
  };
  const auto check = [&] {
    auto report = CheckReplicas(file_system_.get(), dir_.path() + "/r", {});
    EXPECT_TRUE(report.ok()) << report.status();
    return *std::move(report);
  };
  // Rank 0 validates averaged weights before it trains.
  dir_.Write("r/rank0", {forward(0, "8.10001"), forward(1, "8.1"),
                         forward(2, "8.1"), backward(2), backward(1)});
  dir_.Write("r/rank1",
             {forward(0, "8.1"), forward(1, "8.1"), backward(1), backward(0)});
  dir_.WriteFile("r/rank0/stack.json", R"x({
      "0": [["Module.m.M.forward.0"], ["File val.py, line 1, in f, \n m(x)"]],
      "1": [["Module.m.M.forward.1"], ["File fit.py, line 2, in f, \n m(x)"]]})x");
  ReplicaReport report = check();
  EXPECT_THAT(report.differences, IsEmpty());
  EXPECT_EQ(report.rows_compared, 2);
  dir_.Write("r/rank1", {forward(0, "8.10001"), forward(1, "8.1"), backward(1),
                         backward(0)});
  report = check();
  ASSERT_THAT(report.differences, SizeIs(1));
  EXPECT_EQ(report.differences[0].row, "Module.m.M.forward.1.parameters.w");
  EXPECT_EQ(report.differences[0].call, "Module.m.M.forward.1");
  EXPECT_EQ(report.differences[0].code_line, "fit.py:2 in f: m(x)");
  // Shards have the names in the dump.
  dir_.Write("r/rank1", {Parameter("9.2", "-0.1"), backward(0)});
  report = check();
  EXPECT_THAT(report.differences, IsEmpty());
  EXPECT_EQ(report.first_of_shards, "Module.m.M.forward.1.parameters.w");
  // If no backward is recorded, each forward counts.
  dir_.Write("r/rank0", {forward(0, "8.1")});
  dir_.Write("r/rank1", {forward(0, "8.10001")});
  EXPECT_THAT(check().differences, SizeIs(1));
}

// Four ranks, two replicas of two shards: {0, 2} and {1, 3} hold equal values.
TEST_F(ReplicasTest, ShardsAreReplicasOfThoseWithTheSamePart) {
  const auto write = [&](int64_t rank, const std::string& value,
                         const std::string& mesh) {
    dir_.Write(absl::StrCat("r/rank", rank),
               {absl::StrReplaceAll(Parameter(value),
                                    {{R"("requires_grad")",
                                      absl::StrCat(R"("device_mesh":)", mesh,
                                                   R"(,"requires_grad")")}})});
  };
  const auto differences = [&] {
    const auto report =
        CheckReplicas(file_system_.get(), dir_.path() + "/r", {});
    EXPECT_TRUE(report.ok()) << report.status();
    return report->differences;
  };
  const std::string both =
      R"([[0,1],[2,3]],"placements":[{"Replicate":{}},{"Shard":{"dim":0}}])";
  for (const int64_t rank : {0, 1, 2, 3}) {
    write(rank, rank % 2 == 0 ? "5" : "6", both);
  }
  EXPECT_THAT(differences(), IsEmpty());
  // Sharded on the first dimension of the mesh: {0, 1} and {2, 3}.
  const std::string first =
      R"([[0,1],[2,3]],"placements":[{"Shard":{"dim":0}},{"Replicate":{}}])";
  for (const int64_t rank : {0, 1, 2, 3}) {
    write(rank, rank < 2 ? "5" : "6", first);
  }
  EXPECT_THAT(differences(), IsEmpty());
  // A mesh for each replica has the same meaning.
  const std::string shard = R"(,"placements":[{"Shard":{"dim":0}}])";
  for (const int64_t rank : {0, 1, 2, 3}) {
    write(rank, rank % 2 == 0 ? "5" : "6",
          (rank < 2 ? "[0,1]" : "[2,3]") + shard);
  }
  EXPECT_THAT(differences(), IsEmpty());
  write(3, "7", both);
  write(1, "6", both);
  const auto found = differences();
  ASSERT_THAT(found, SizeIs(1));
  ASSERT_THAT(found[0].values, SizeIs(2));
  EXPECT_EQ(found[0].values[0].first, (std::vector<int64_t>{1}));
  EXPECT_EQ(found[0].values[1].first, (std::vector<int64_t>{3}));
}

TEST_F(ReplicasTest, ReplicasOfOneRankAreRefused) {
  dir_.Write("one", {Parameter("1")});
  const auto report =
      CheckReplicas(file_system_.get(), dir_.path() + "/one", {});
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("one rank"));
}

TEST_F(ReplicasTest, CollectivesMustAgree) {
  dir_.Write("r/rank0", {Call("Distributed.all_reduce.0.forward", "1", "3")});
  dir_.Write("r/rank1", {Call("Distributed.all_reduce.0.forward", "2", "4")});
  const auto report = CheckReplicas(file_system_.get(), dir_.path() + "/r", {});
  ASSERT_TRUE(report.ok());
  ASSERT_THAT(report->differences, SizeIs(1));
  EXPECT_EQ(report->differences[0].kind, ReplicaDifference::Kind::kCollective);
}

}  // namespace
}  // namespace rankprobe::analysis
