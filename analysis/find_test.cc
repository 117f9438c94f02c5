// overflow_check, first-divergence and replicas on small dumps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "analysis/divergence.h"
#include "analysis/first_nodes.h"
#include "analysis/replicas.h"
#include "analysis/testing_files.h"

namespace rankprobe::analysis {
namespace {

using testing::AnalysisGolden;
using ::testing::ElementsAre;
using testing::GoldenDump;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TempDir;

std::string Tensor(const std::string& value) {
  return absl::StrCat(
      R"({"type":"torch.Tensor","dtype":"torch.float32","shape":[4],"Max":)",
      value, R"(,"Min":)", value, R"(,"Mean":)", value, R"(,"Norm":)", value,
      R"(,"requires_grad":false})");
}
std::string Call(const std::string& name, const std::string& in,
                 const std::string& out, const std::string& kwargs = "") {
  return absl::StrCat("\"", name, R"(":{"input_args":[)", Tensor(in),
                      R"(],"input_kwargs":{)", kwargs, R"(},"output":[)",
                      Tensor(out), "]}");
}
std::string Int(const std::string& key, int value) {
  return absl::StrCat("\"", key, R"(":{"type":"int","value":)", value, "}");
}

class FindTest : public ::testing::Test {
 protected:
  void Write(const std::string& place, const std::vector<std::string>& calls) {
    dir_.Write(place + "/dump.json",
               absl::StrCat(R"({"task":"statistics","data":{)",
                            absl::StrJoin(calls, ","), "}}"));
  }
  // "rank:call" of what overflow_check finds under the ranks given.
  std::vector<std::string> Overflow(int ranks) {
    std::vector<std::unique_ptr<DumpReader>> dumps;
    std::vector<RankStates> states;
    std::vector<int64_t> world;
    for (int rank = 0; rank < ranks; ++rank) world.push_back(rank);
    CommLinks links(world);
    for (int rank = 0; rank < ranks; ++rank) {
      auto dump = DumpReader::Open(
          file_system_.get(), absl::StrCat(dir_.path(), "/rank", rank), {});
      EXPECT_TRUE(dump.ok()) << dump.status();
      auto state = ReadOverflowStates(rank, **dump, &links);
      EXPECT_TRUE(state.ok()) << state.status();
      states.push_back(*std::move(state));
      dumps.push_back(*std::move(dump));
    }
    links.Match();
    std::vector<std::string> out;
    for (const FoundNode& node : FindFirstNodes(states, links)) {
      out.push_back(absl::StrCat(
          node.rank, ":",
          dumps[static_cast<size_t>(node.rank)]->name(node.entry)));
    }
    return out;
  }
  DivergenceReport Diverge(const std::string& target, const std::string& golden,
                           const Tolerance& tolerance = {}) {
    auto report =
        FindDivergence(file_system_.get(), target, golden, {}, tolerance);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *std::move(report) : DivergenceReport();
  }

  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  TempDir dir_;
};

TEST_F(FindTest, OverflowBeforeCommunication) {
  Write("rank0", {Call("Torch.a.0.forward", "1", "1"),
                  Call("Torch.b.0.forward", "1", "NaN"),
                  Call("Distributed.all_reduce.0.forward", "NaN", "NaN")});
  Write("rank1", {Call("Torch.a.0.forward", "1", "1"),
                  Call("Torch.b.0.forward", "1", "1"),
                  Call("Distributed.all_reduce.0.forward", "1", "NaN")});
  EXPECT_THAT(Overflow(2), ElementsAre("0:Torch.b.0.forward"));
}

TEST_F(FindTest, OverflowBetweenCommunicationsIsFoundOnItsRank) {
  Write("rank0", {Call("Distributed.all_reduce.0.forward", "1", "1"),
                  Call("Torch.a.0.forward", "1", "1"),
                  Call("Distributed.all_reduce.1.forward", "1", "Infinity"),
                  Call("Torch.c.0.forward", "Infinity", "NaN")});
  Write("rank1",
        {Call("Distributed.all_reduce.0.forward", "1", "1"),
         Call("Torch.b.0.forward", "1", "Infinity"),
         Call("Distributed.all_reduce.1.forward", "Infinity", "Infinity")});
  EXPECT_THAT(Overflow(2), ElementsAre("1:Torch.b.0.forward"));
}

TEST_F(FindTest, OverflowInTheCommunicationItself) {
  for (const char* const rank : {"rank0", "rank1"}) {
    Write(rank, {Call("Distributed.all_reduce.0.forward", "1", "NaN"),
                 Call("Torch.a.0.forward", "NaN", "NaN")});
  }
  EXPECT_THAT(Overflow(2), ElementsAre("0:Distributed.all_reduce.0.forward",
                                       "1:Distributed.all_reduce.0.forward"));
}

TEST_F(FindTest, OverflowAfterCommunicationAndNone) {
  Write("rank0", {Call("Distributed.all_reduce.0.forward", "1", "1"),
                  Call("Torch.empty.0.forward", "1", "NaN"),
                  Call("Torch.a.0.forward", "1", "-Infinity")});
  EXPECT_THAT(Overflow(1), ElementsAre("0:Torch.a.0.forward"));
  Write("rank0", {Call("Torch.empty.0.forward", "1", "NaN")});
  EXPECT_THAT(Overflow(1), IsEmpty());
  Write("rank0", {Call("Torch.a.0.forward", "NaN", "NaN")});
  EXPECT_THAT(Overflow(1), ElementsAre("0:Torch.a.0.forward"));
}

TEST_F(FindTest, DivergenceNamesTheFirstCall) {
  Write("b", {Call("Torch.a.0.forward", "1", "1"),
              Call("Torch.b.0.forward", "1", "2"),
              Call("Torch.c.0.forward", "2", "3")});
  Write("n", {Call("Torch.a.0.forward", "1", "1"),
              Call("Torch.b.0.forward", "1", "2.5"),
              Call("Torch.c.0.forward", "2.5", "3.5")});
  const DivergenceReport report =
      Diverge(dir_.path() + "/n", dir_.path() + "/b");
  ASSERT_THAT(report.origins, SizeIs(1));
  EXPECT_EQ(report.origins[0].call, "Torch.b.0.forward");
  EXPECT_EQ(report.origins[0].row, "Torch.b.0.forward.output.0");
  EXPECT_FALSE(report.origins[0].from_outside);
  EXPECT_EQ(report.origins[0].inputs_matched, 1);
  EXPECT_NEAR(report.origins[0].difference, 0.2, 1e-12);
  EXPECT_EQ(report.calls_differing, 2);
  EXPECT_FALSE(report.unseen.Any());
}

TEST_F(FindTest, DivergenceThatCameInByCommunication) {
  Write("b/rank0", {Call("Torch.a.0.forward", "1", "1"),
                    Call("Distributed.all_reduce.0.forward", "1", "2")});
  Write("b/rank1", {Call("Distributed.all_reduce.0.forward", "1", "2")});
  Write("n/rank0", {Call("Torch.a.0.forward", "1", "5"),
                    Call("Distributed.all_reduce.0.forward", "5", "6")});
  Write("n/rank1", {Call("Distributed.all_reduce.0.forward", "1", "6")});
  const DivergenceReport report =
      Diverge(dir_.path() + "/n", dir_.path() + "/b");
  ASSERT_THAT(report.origins, SizeIs(1));
  EXPECT_EQ(report.origins[0].rank, 0);
  EXPECT_EQ(report.origins[0].call, "Torch.a.0.forward");
  ASSERT_THAT(report.carried, SizeIs(1));
  EXPECT_EQ(report.carried[0].rank, 1);
  EXPECT_EQ(report.carried[0].from_rank, 0);
}

TEST_F(FindTest, AWeightThatDiffersCameFromOutside) {
  const DivergenceReport report = Diverge(
      AnalysisGolden("dumps/cnn_stat_perturbed"), GoldenDump("cnn_stat_mix"));
  ASSERT_THAT(report.origins, SizeIs(1));
  EXPECT_TRUE(report.origins[0].from_outside);
  EXPECT_EQ(report.origins[0].row, "Functional.linear.0.forward.input.1");
  EXPECT_THAT(report.origins[0].stack, ::testing::Not(IsEmpty()));
}

TEST_F(FindTest, WhatWasNotSeenIsSaid) {
  const DivergenceReport report = Diverge(
      AnalysisGolden("dumps/cnn_stat_planted"), GoldenDump("cnn_stat_mix"));
  EXPECT_EQ(report.unseen.only_in_target, 1);
  EXPECT_EQ(report.unseen.only_in_golden, 1);
  EXPECT_EQ(report.unseen.rows_without_partner, 1);
  // The ledger of an export.
  Write("n", {Call("Torch.a.0.forward", "1", "1")});
  Write("b", {Call("Torch.a.0.forward", "1", "1")});
  EXPECT_FALSE(Diverge(dir_.path() + "/n", dir_.path() + "/b").unseen.Any());
  dir_.Write("n/manifest.json",
             R"({"gaps":[{"step":0,"entry":"x","reason":"queue full"}]})");
  const DivergenceReport lost = Diverge(dir_.path() + "/n", dir_.path() + "/b");
  EXPECT_EQ(lost.unseen.lost, 1);
  ASSERT_THAT(lost.unseen.examples, SizeIs(1));
  EXPECT_THAT(lost.unseen.examples[0], HasSubstr("queue full"));
}

TEST_F(FindTest, NoiseRaisesTheTolerance) {
  Write("b", {Call("Torch.a.0.forward", "1", "2")});
  Write("c", {Call("Torch.a.0.forward", "1", "2.001")});
  Write("n", {Call("Torch.a.0.forward", "1", "2.002")});
  EXPECT_THAT(Diverge(dir_.path() + "/n", dir_.path() + "/b").origins,
              SizeIs(1));
  Tolerance tolerance;
  tolerance.noise = dir_.path() + "/c";
  EXPECT_THAT(
      Diverge(dir_.path() + "/n", dir_.path() + "/b", tolerance).origins,
      IsEmpty());
  Write("n", {Call("Torch.a.0.forward", "1", "2.1")});
  const DivergenceReport report =
      Diverge(dir_.path() + "/n", dir_.path() + "/b", tolerance);
  ASSERT_THAT(report.origins, SizeIs(1));
  EXPECT_NEAR(report.origins[0].difference / *report.origins[0].noise, 95, 5);
}

TEST(AutoToleranceTest, FollowsDtypeAndSumLength) {
  const auto row = [](JsonDocument* document, const std::string& dtype,
                      const std::string& shape) {
    EXPECT_TRUE(document
                    ->Parse(absl::StrCat(
                        R"({"output":[{"type":"torch.Tensor",)", R"("dtype":")",
                        dtype, R"(","shape":[)", shape, "]}]}"))
                    .ok());
    std::vector<Row> rows;
    EXPECT_TRUE(ReadRows("x", document, &rows).ok());
    return rows[0];
  };
  JsonDocument a;
  JsonDocument b;
  JsonDocument c;
  const Row out = row(&a, "torch.float32", "8,16");
  const Row left = row(&b, "torch.float32", "8,100");
  const Row right = row(&c, "torch.float32", "100,16");
  const double product = AutoTolerance(out, {&left, &right});
  EXPECT_NEAR(product / AutoTolerance(out, {&out}), 10, 1e-9);
  JsonDocument d;
  const Row half = row(&d, "torch.bfloat16", "8,16");
  EXPECT_GT(AutoTolerance(half, {&half}), 1e-3);
  JsonDocument e;
  const Row integers = row(&e, "torch.int64", "8,16");
  EXPECT_EQ(AutoTolerance(integers, {&integers}), 0);
}

std::string Parameter(const std::string& value) {
  return absl::StrCat(
      R"("Module.m.M.forward.0":{"input_args":[],"input_kwargs":{},)",
      R"("output":[],"parameters":{"w":)", Tensor(value), "}}");
}

TEST_F(FindTest, Replicas) {
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
  Write("r/rank0", {Parameter("1"), send});
  Write("r/rank1", {Parameter("1"), receive});
  ReplicaReport report = check();
  EXPECT_THAT(report.differences, IsEmpty());
  EXPECT_EQ(report.rows_compared, 1);
  EXPECT_EQ(report.transfers_compared, 1);

  Write("r/rank1",
        {Parameter("2"), absl::StrReplaceAll(receive, {{"7", "8"}})});
  report = check();
  ASSERT_THAT(report.differences, SizeIs(2));
  EXPECT_EQ(report.differences[0].kind, ReplicaDifference::Kind::kParameter);
  EXPECT_EQ(report.differences[1].kind, ReplicaDifference::Kind::kTransfer);
  ReplicaOptions apart;
  apart.groups = {{0}, {1}};
  EXPECT_THAT(check(apart).differences, SizeIs(1));
}

TEST_F(FindTest, ReplicasOfOneRankAreRefused) {
  Write("one", {Parameter("1")});
  const auto report =
      CheckReplicas(file_system_.get(), dir_.path() + "/one", {});
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("one rank"));
}

TEST_F(FindTest, CollectivesMustAgree) {
  Write("r/rank0", {Call("Distributed.all_reduce.0.forward", "1", "3")});
  Write("r/rank1", {Call("Distributed.all_reduce.0.forward", "2", "4")});
  const auto report = CheckReplicas(file_system_.get(), dir_.path() + "/r", {});
  ASSERT_TRUE(report.ok());
  ASSERT_THAT(report->differences, SizeIs(1));
  EXPECT_EQ(report->differences[0].kind, ReplicaDifference::Kind::kCollective);
}

}  // namespace
}  // namespace rankprobe::analysis
