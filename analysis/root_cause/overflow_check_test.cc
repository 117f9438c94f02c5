// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/overflow_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "absl/strings/str_cat.h"
#include "analysis/testing/dump_text.h"

namespace rankprobe::analysis {
namespace {

using rankprobe::testing::Call;
using rankprobe::testing::Tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kMasked[] =
    R"({"type":"torch.Tensor","dtype":"torch.float32","shape":[4],"Max":1,"Min":-Infinity,"Mean":-Infinity,"Norm":Infinity})";

std::string CallOf(const std::string& name, const std::string& in,
                   const std::string& out) {
  return absl::StrCat("\"", name, R"(":{"input_args":[)", in,
                      R"(],"input_kwargs":{},"output":[)", out, "]}");
}
std::string Masking() {
  return CallOf("Tensor.masked_fill.0.forward",
                Tensor("1") + R"(,{"type":"float","value":-Infinity})",
                kMasked);
}

class OverflowCheckTest : public ::testing::Test {
 protected:
  OverflowFindings Check(const std::vector<std::string>& calls,
                         const OverflowKinds& kinds = {}) {
    dir_.Write("step0/rank0", calls);
    auto found = CheckOverflow(files_.get(), dir_.path() + "/step0", kinds);
    EXPECT_TRUE(found.ok()) << found.status();
    return *std::move(found);
  }
  static std::vector<std::string> Names(
      const std::vector<OverflowOrigin>& origins) {
    std::vector<std::string> names;
    for (const OverflowOrigin& o : origins)
      names.push_back(absl::StrCat(o.call, " ", o.made));
    return names;
  }
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  rankprobe::testing::DumpDir dir_;
};

TEST_F(OverflowCheckTest, WhatIsNoRecordIsRefused) {
  for (const std::string record : {"5", "[[]]", "null", R"("x")"}) {
    dir_.Write("step0/rank0",
               {absl::StrCat(R"("Torch.a.0.forward":)", record)});
    const auto found = CheckOverflow(files_.get(), dir_.path() + "/step0", {});
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument)
        << record;
    EXPECT_THAT(
        std::string(found.status().message()),
        HasSubstr(
            "/rank0/dump.json: entry Torch.a.0.forward: is not an object"));
  }
}

TEST_F(OverflowCheckTest, AMaskIsNoFinding) {
  const OverflowFindings found = Check(
      {Masking(), CallOf("Torch.softmax.0.forward", kMasked, Tensor("0.5"))});
  EXPECT_THAT(found.found, IsEmpty());
  EXPECT_THAT(found.ended, IsEmpty());
}

TEST_F(OverflowCheckTest, TheSoftmaxOfAMaskedRowIsTheOrigin) {
  const OverflowFindings found = Check(
      {Masking(), CallOf("Torch.softmax.0.forward", kMasked, Tensor("NaN")),
       Call("Torch.sum.0.forward", "NaN", "NaN")});
  EXPECT_THAT(Names(found.found), ElementsAre("Torch.softmax.0.forward NaN"));
  EXPECT_THAT(found.found[0].inputs, ElementsAre(HasSubstr("Min=-inf")));
  EXPECT_THAT(found.found[0].outputs, ElementsAre(HasSubstr("Max=Nan")));
}

TEST_F(OverflowCheckTest, ANanBehindAMaskIsItsOwn) {
  const OverflowFindings found = Check(
      {Masking(), CallOf("Torch.softmax.0.forward", kMasked, Tensor("0.5")),
       Call("Tensor.__truediv__.0.forward", "0", "NaN")});
  EXPECT_THAT(Names(found.found),
              ElementsAre("Tensor.__truediv__.0.forward NaN"));
}

TEST_F(OverflowCheckTest, TheLogarithmOfAMaskIsAFaultWhereANanIsMadeOfIt) {
  const std::string ones =
      R"({"type":"torch.Tensor","dtype":"torch.float32","shape":[4],"Max":1,"Min":0,"Mean":0.25,"Norm":1})";
  const std::string log = CallOf("Torch.log.0.forward", ones, kMasked);
  EXPECT_THAT(
      Check({log, CallOf("Torch.softmax.0.forward", kMasked, Tensor("1"))})
          .found,
      IsEmpty());
  EXPECT_THAT(Names(Check({log, CallOf("Tensor.__mul__.0.forward", kMasked,
                                       Tensor("NaN"))})
                        .found),
              ElementsAre("Torch.log.0.forward -Infinity"));
}

TEST_F(OverflowCheckTest, ANanOfTheBatchCameInFromOutside) {
  const std::string loss = absl::StrCat(
      R"("Functional.mse_loss.0.forward":{"input_args":[)", Tensor("1"), ",",
      Tensor("NaN"), R"(],"input_kwargs":{},"output":[)", Tensor("NaN"), "]}");
  const std::string back = Call("Functional.mse_loss.0.backward", "1", "NaN");
  // In the input of the model, and in the target.
  for (const auto& [calls, wanted, with] : std::vector<
           std::tuple<std::vector<std::string>, std::string, std::string>>{
           {{Call("Functional.linear.0.forward", "NaN", "NaN"),
             Call("Functional.mse_loss.0.forward", "NaN", "NaN"), back},
            "Functional.linear.0.forward ",
            "input.0"},
           {{Call("Functional.linear.0.forward", "1", "1"), loss, back},
            "Functional.mse_loss.0.forward ",
            "input.1"}}) {
    const OverflowFindings found = Check(calls);
    EXPECT_THAT(Names(found.found), ElementsAre(wanted));
    EXPECT_EQ(found.found.at(0).came_with, with);
    EXPECT_THAT(
        CameInText(found.found[0]),
        HasSubstr(absl::StrCat("no recorded call made it; it came in "
                               "from outside with ",
                               with, ", an argument: look at the batch")));
  }
}

TEST_F(OverflowCheckTest, WhatIsBetweenModulesIsNotSaidToBeOfTheBatch) {
  const std::vector<std::string> modules = {
      Call("Module.v.Linear.forward.0", "1", "1"),
      Call("Module.c.Linear.forward.0", "NaN", "NaN")};
  OverflowFindings found = Check(modules);
  ASSERT_THAT(Names(found.found), ElementsAre("Module.c.Linear.forward.0 "));
  EXPECT_THAT(CameInText(found.found[0]),
              HasSubstr("an operator between the modules did"));
  found = Check({modules[0], Call("Torch.f.0.forward", "1", "1"), modules[1]});
  EXPECT_THAT(CameInText(found.found.at(0)), HasSubstr("look at the batch"));
  found = Check({modules[1]});
  EXPECT_THAT(CameInText(found.found.at(0)), HasSubstr("look at the batch"));
}

// The weights of a layer after a bad step are not those of the model around it.
TEST_F(OverflowCheckTest, AModelIsNotTheMakerOfWhatItsLayerWasGiven) {
  const std::string layer = absl::StrCat(
      R"("Module.m.fc.Linear.forward.0":{"input_args":[)", Tensor("1"),
      R"(],"input_kwargs":{},"parameters":{"weight":)", Tensor("NaN"),
      R"(},"output":[)", Tensor("NaN"), "]}");
  const std::vector<std::string> calls = {
      layer, Call("Module.m.Net.forward.0", "1", "NaN")};
  const auto check = [&] {
    const OverflowFindings found = Check(calls);
    EXPECT_THAT(Names(found.found),
                ElementsAre("Module.m.fc.Linear.forward.0 "));
    EXPECT_EQ(found.found.at(0).came_with, "parameters.weight");
  };
  check();
  dir_.WriteFile("step0/rank0/construct.json",
                 R"({"Module.m.fc.Linear.forward.0": "Module.m.Net.forward.0",
                     "Module.m.Net.forward.0": null})");
  check();
}

TEST_F(OverflowCheckTest, TheRankThatSawItFirstLeads) {
  // Rank 0 received it in the reduced gradient.
  dir_.Write("step0/rank0", {Call("Torch.f.0.forward", "1", "1"),
                             Call("Tensor.add_.0.forward", "NaN", "NaN")});
  dir_.Write("step0/rank1", {Call("Torch.f.0.forward", "NaN", "NaN"),
                             Call("Tensor.add_.0.forward", "NaN", "NaN")});
  const auto found = CheckOverflow(files_.get(), dir_.path() + "/step0", {});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(Names(found->found),
              ElementsAre("Torch.f.0.forward ", "Tensor.add_.0.forward "));
  EXPECT_EQ(found->found[0].rank, 1);
  EXPECT_THAT(CameInText(found->found[1]), HasSubstr("what another rank gave"));
}

TEST_F(OverflowCheckTest, ABackwardMayMakeItOfAForwardThatIsFine) {
  EXPECT_THAT(Names(Check({Call("Torch.sqrt.0.forward", "0", "0"),
                           Call("Torch.sqrt.0.backward", "0", "NaN")})
                        .found),
              ElementsAre("Torch.sqrt.0.backward NaN"));
}

// Task monitor: the loss is not a call.
TEST_F(OverflowCheckTest, GradientsAreWhatTheBackwardBehindThemWasGiven) {
  const std::string gradients =
      absl::StrCat(R"("Module.fc.Linear.parameters_grad.0":{"weight":[)",
                   Tensor("NaN"), "]}");
  const std::vector<std::string> forward = {
      Call("Module.fc.Linear.forward.0", "1", "1"), gradients};
  std::vector<std::string> given = forward, fine = forward;
  given.push_back(Call("Module.fc.Linear.backward.0", "NaN", "NaN"));
  fine.push_back(Call("Module.fc.Linear.backward.0", "1", "1"));
  EXPECT_THAT(Names(Check(given).found),
              ElementsAre("Module.fc.Linear.backward.0 "));
  EXPECT_THAT(Names(Check(fine).found),
              ElementsAre("Module.fc.Linear.parameters_grad.0 NaN"));
}

TEST_F(OverflowCheckTest, WhatIsTakenOutAgainIsNoFinding) {
  const OverflowFindings found =
      Check({CallOf("Torch.exp.0.forward", Tensor("1000"), Tensor("Infinity")),
             CallOf("Torch.where.0.forward", Tensor("Infinity"), Tensor("1"))});
  EXPECT_THAT(found.found, IsEmpty());
  EXPECT_THAT(Names(found.ended), ElementsAre("Torch.exp.0.forward +Infinity"));
}

TEST_F(OverflowCheckTest, ToAskWhetherItIsFiniteTakesNothingOut) {
  const OverflowFindings found = Check(
      {CallOf("Torch.log.0.forward", Tensor("-1"), Tensor("NaN")),
       CallOf(
           "Torch.isfinite.0.forward", Tensor("NaN"),
           R"({"type":"torch.Tensor","dtype":"torch.bool","shape":[],"Max":false,"Min":false,"Mean":null,"Norm":null})")});
  EXPECT_THAT(Names(found.found), ElementsAre("Torch.log.0.forward NaN"));
}

TEST_F(OverflowCheckTest, OnlyNanOrInfinities) {
  const std::vector<std::string> calls = {
      CallOf("Torch.exp.0.forward", Tensor("1000"), Tensor("Infinity")),
      CallOf("Torch.sub.0.forward", Tensor("Infinity"), Tensor("NaN"))};
  EXPECT_THAT(Names(Check(calls).found),
              ElementsAre("Torch.exp.0.forward +Infinity"));
  EXPECT_THAT(Names(Check(calls, {.nan = true, .infinity = false}).found),
              ElementsAre("Torch.sub.0.forward NaN"));
  EXPECT_THAT(Names(Check(calls, {.nan = false, .infinity = true}).ended),
              ElementsAre("Torch.exp.0.forward +Infinity"));
}

TEST_F(OverflowCheckTest, SaysWhereTheCallIs) {
  dir_.WriteFile("step0/rank0/construct.json",
                 R"({"Torch.log.0.forward":
                 "Module.inner_attention_block.Inner.forward.0",
                 "Module.inner_attention_block.Inner.forward.0":
                 "Module.Outer.forward.0", "Module.Outer.forward.0": null})");
  dir_.WriteFile("step0/rank0/stack.json",
                 R"x({"0": [["Torch.log.0.forward"],
      ["File gpt.py, line 36, in forward, \n torch.log(lens)"]]})x");
  const OverflowFindings found =
      Check({CallOf("Torch.log.0.forward", Tensor("0"), Tensor("-Infinity"))});
  ASSERT_EQ(found.found.size(), 1u);
  const OverflowOrigin& origin = found.found[0];
  EXPECT_EQ(origin.module, "inner_attention_block (Inner)");
  EXPECT_THAT(origin.chain,
              ElementsAre("Module.Outer.forward.0",
                          "Module.inner_attention_block.Inner.forward.0",
                          "Torch.log.0.forward"));
  EXPECT_EQ(origin.code_line, "gpt.py:36 in forward: torch.log(lens)");
  EXPECT_THAT(AnomalyJson(found.found),
              HasSubstr("\"Module.inner_attention_block.Inner.forward.0\","));
}

}  // namespace
}  // namespace rankprobe::analysis
