// SPDX-License-Identifier: Apache-2.0
// Evidence and text of the answer of first-divergence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/root_cause/divergence_groups.h"
#include "analysis/root_cause/first_divergence.h"
#include "analysis/testing/dump_text.h"

namespace rankprobe::analysis {
namespace {

using rankprobe::testing::Call;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class DivergenceAnswerTest : public ::testing::Test {
 protected:
  DivergenceReport Diverge(const std::string& target,
                           const std::string& reference) {
    auto report = FindDivergence(file_system_.get(), target, reference, {}, {});
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *std::move(report) : DivergenceReport();
  }

  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  rankprobe::testing::DumpDir dir_;
};

TEST_F(DivergenceAnswerTest, DigestsThatDifferAreNoMatch) {
  const auto call = [](const std::string& name, const std::string& in,
                       const std::string& out) {
    const auto tensor = [](const std::string& md5) {
      return absl::StrCat(
          R"({"type":"torch.Tensor","dtype":"torch.float32","shape":[4],"md5":")",
          md5, R"("})");
    };
    return absl::StrCat("\"", name, R"(":{"input_args":[)", tensor(in),
                        R"(],"input_kwargs":{},"output":[)", tensor(out), "]}");
  };
  dir_.Write("b", {call("Functional.linear.0.forward", "aa", "bb")});
  dir_.Write("n", {call("Functional.linear.0.forward", "ac", "bd")});
  const auto origins = Diverge(dir_.path() + "/n", dir_.path() + "/b").origins;
  ASSERT_THAT(origins, SizeIs(1));
  EXPECT_TRUE(origins[0].from_outside);
  EXPECT_EQ(origins[0].inputs_matched, 0);
}

// A gather along the wrong dimension has the statistics of the right one.
TEST_F(DivergenceAnswerTest, ACallBehindAGapIsNotBlamedAlone) {
  const auto tensor = [](const std::string& max, const std::string& norm) {
    return absl::StrCat(
        R"({"type":"torch.Tensor","dtype":"torch.float32","shape":[4],"Max":)",
        max, R"(,"Min":0,"Mean":0.5,"Norm":)", norm, "}");
  };
  const auto call = [&](const std::string& name, const std::string& in,
                        const std::string& out) {
    return absl::StrCat("\"", name, R"(":{"input_args":[)", in,
                        R"(],"input_kwargs":{},"output":[)", out, "]}");
  };
  const std::string first =
      call("Torch.a.0.forward", tensor("1", "1"), tensor("2", "2"));
  const auto linear = [&](const std::string& in, const char* norm) {
    return call("Functional.linear.0.forward", in, tensor("3", norm));
  };
  dir_.Write("b", {first, linear(tensor("5", "5"), "7")});
  dir_.Write("n", {first, linear(tensor("5", "5"), "8")});
  auto origins = Diverge(dir_.path() + "/n", dir_.path() + "/b").origins;
  ASSERT_THAT(origins, SizeIs(1));
  EXPECT_THAT(origins[0].unmade_inputs, ElementsAre("input.0"));
  EXPECT_EQ(origins[0].gap_after, "Torch.a.0.forward");
  dir_.Write("b", {first, linear(tensor("2", "2"), "7")});
  dir_.Write("n", {first, linear(tensor("2", "2"), "8")});
  origins = Diverge(dir_.path() + "/n", dir_.path() + "/b").origins;
  ASSERT_THAT(origins, SizeIs(1));
  EXPECT_THAT(origins[0].unmade_inputs, IsEmpty());
}

TEST_F(DivergenceAnswerTest, AStepHasItsOwnNumberAndACallItsModule) {
  for (const char* run : {"n/step18", "b/step19"}) {
    dir_.Write(absl::StrCat(run, "/rank0"),
               {Call("Torch.a.0.forward", "1",
                     absl::StartsWith(run, "n") ? "2" : "3")});
    dir_.WriteFile(absl::StrCat(run, "/rank0/construct.json"),
                   R"({"Torch.a.0.forward":"Module.fc.Linear.forward.0",
                       "Module.fc.Linear.forward.0":null})");
  }
  const auto origins =
      Diverge(dir_.path() + "/n/step18", dir_.path() + "/b/step19").origins;
  ASSERT_THAT(origins, SizeIs(1));
  EXPECT_EQ(origins[0].step, 18);
  EXPECT_EQ(origins[0].reference_step, 19);
  EXPECT_EQ(origins[0].module, "fc (Linear)");
}

TEST_F(DivergenceAnswerTest, ACollectiveOfOneSideIsSaidAndIsNoCircle) {
  for (const char* rank : {"rank0", "rank1"}) {
    dir_.Write(absl::StrCat("b/", rank),
               {Call("Distributed.all_reduce.0.forward", "1", "2"),
                Call("Distributed.all_reduce.1.forward", "3", "4")});
    dir_.Write(absl::StrCat("n/", rank),
               {Call("Distributed.all_reduce.0.forward", "3", "4")});
  }
  const DivergenceReport report =
      Diverge(dir_.path() + "/n", dir_.path() + "/b");
  EXPECT_THAT(report.carried, IsEmpty());
  EXPECT_THAT(report.origins, SizeIs(2));
  ASSERT_THAT(report.notes, SizeIs(2));
  EXPECT_THAT(report.notes[0], HasSubstr("calls all_reduce 1 times, and 2"));
}

// A term that one program adds between two calls.
TEST_F(DivergenceAnswerTest, WhatARecordedCallReturnedDidNotComeFromOutside) {
  const auto tensor = [](const std::string& max) {
    return absl::StrCat(
        R"({"type":"torch.Tensor","dtype":"torch.float32","shape":[4],"Max":)",
        max, R"(,"Min":0,"Mean":0.5,"Norm":1})");
  };
  const auto call = [&](const std::string& name, const std::string& in,
                        const std::string& out) {
    return absl::StrCat("\"", name, R"(":{"input_args":[)", tensor(in),
                        R"(],"input_kwargs":{},"output":[)", tensor(out), "]}");
  };
  const std::string root = call("Tensor.sqrt.0.forward", "4", "2");
  dir_.Write("n", {root, call("Tensor.reciprocal.0.forward", "2", "0.5")});
  dir_.Write("b", {root, call("Tensor.add.0.forward", "2", "2.5"),
                   call("Tensor.reciprocal.0.forward", "2.5", "0.4")});
  auto origins = Diverge(dir_.path() + "/n", dir_.path() + "/b").origins;
  ASSERT_THAT(origins, SizeIs(1));
  EXPECT_EQ(origins[0].call, "Tensor.reciprocal.0.forward");
  EXPECT_EQ(origins[0].made_by, "Tensor.sqrt.0.forward");
  // A batch.
  dir_.Write("n", {call("Tensor.reciprocal.0.forward", "2", "0.5")});
  dir_.Write("b", {call("Tensor.reciprocal.0.forward", "2.5", "0.4")});
  origins = Diverge(dir_.path() + "/n", dir_.path() + "/b").origins;
  ASSERT_THAT(origins, SizeIs(1));
  EXPECT_EQ(origins[0].made_by, "");
}

TEST(DivergenceGroupsTest, LaterStepsThatFollowAreNoAnswersOfTheirOwn) {
  const auto at = [](int64_t step, int64_t rank, const char* row,
                     bool from_outside) {
    Divergence d;
    d.step = step;
    d.rank = rank;
    d.row = row;
    d.from_outside = from_outside;
    return d;
  };
  std::vector<Divergence> origins = {at(3, 0, "a", false), at(3, 1, "a", false),
                                     at(4, 0, "w", true), at(5, 0, "w", true),
                                     at(5, 1, "b", false)};
  DivergenceGroups groups = GroupOrigins(origins);
  ASSERT_THAT(groups.groups, SizeIs(2));
  EXPECT_EQ(groups.groups[0].origin, 0u);
  EXPECT_THAT(groups.groups[0].other_ranks, ElementsAre(1));
  EXPECT_EQ(groups.groups[1].origin, 4u) << "it is not a weight that differs";
  EXPECT_THAT(FollowedText(groups), HasSubstr("2 later steps, 4 to 5, differ"));
  // A value that the code passes is not computed from recorded values.
  origins[2].is_argument = true;
  groups = GroupOrigins(origins);
  EXPECT_THAT(groups.groups, SizeIs(3));
  EXPECT_THAT(FollowedText(groups), HasSubstr("step 5 differs too"));
  EXPECT_EQ(FollowedText(GroupOrigins({})), "");
}

// A server with one wrong weight differs in each batch, which is one fault.
TEST(DivergenceGroupsTest, TheSameCallInLaterStepsIsOneAnswer) {
  std::vector<Divergence> origins;
  for (const int64_t step : {3, 4, 7}) {
    for (const int64_t rank : {0, 1}) {
      Divergence d;
      d.step = step;
      d.rank = rank;
      d.row = "a";
      origins.push_back(d);
    }
  }
  DivergenceGroups groups = GroupOrigins(origins);
  ASSERT_THAT(groups.groups, SizeIs(1));
  EXPECT_EQ(groups.groups[0].origin, 0u);
  EXPECT_THAT(groups.groups[0].other_ranks, ElementsAre(1));
  EXPECT_THAT(groups.groups[0].later_steps, ElementsAre(4, 7));
  EXPECT_EQ(RepeatedText(groups.groups[0]), "so do 2 later steps, 4 to 7");
  // A row from outside is not an output of the call.
  origins[4].is_argument = origins[4].from_outside = true;
  groups = GroupOrigins(origins);
  ASSERT_THAT(groups.groups, SizeIs(2));
  EXPECT_EQ(groups.groups[1].origin, 4u);
  EXPECT_EQ(RepeatedText(groups.groups[1]), "");
}

}  // namespace
}  // namespace rankprobe::analysis
