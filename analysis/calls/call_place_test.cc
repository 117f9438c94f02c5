// SPDX-License-Identifier: Apache-2.0
#include "analysis/calls/call_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "analysis/testing/dump_text.h"

namespace rankprobe::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CallPlaceTest, ModuleText) {
  EXPECT_EQ(ModuleText("Module.blocks.2.attn.Attention.forward.3"),
            "blocks.2.attn (Attention)");
  EXPECT_EQ(ModuleText("Module.fc.Linear.backward.0"), "fc (Linear)");
  EXPECT_EQ(ModuleText("Module.Gpt.forward.0"), "Gpt");
  EXPECT_EQ(ModuleText("Torch.log.0.forward"), "");
}

TEST(CallPlaceTest, CodeLineIsTheProgramsOwn) {
  const std::vector<std::string> stack = {
      "File /usr/lib/python3/dist-packages/torch/nn/modules/module.py, line "
      "1772, in inner, \n return hook()",
      "File gpt.py, line 36, in forward, \n y = torch.log(lens)",
      "File gpt.py, line 90, in <module>, \n main()"};
  EXPECT_EQ(CodeLineOf(&stack), "gpt.py:36 in forward: y = torch.log(lens)");
  EXPECT_EQ(CodeLineOf(nullptr), "");
  EXPECT_THAT(OwnFrames(stack), ElementsAre(stack[1], stack[2]));
  // Only frames of PyTorch, and no frames.
  EXPECT_THAT(OwnFrames({stack[0]}), ElementsAre(stack[0]));
  EXPECT_THAT(OwnFrames({}), IsEmpty());
  const std::vector<std::string> odd = {"somewhere"};
  EXPECT_EQ(CodeLineOf(&odd), "somewhere");
}

TEST(CallPlaceTest, ADirectoryAloneHasItsNumbers) {
  DumpPlace place;
  place.directory = "d/step6/rank1";
  EXPECT_EQ(StepOf(place), 6);
  EXPECT_EQ(RankOf(place), 1);
  place.directory = "proc7";
  EXPECT_EQ(StepOf(place), 0);
  EXPECT_EQ(RankOf(place), 0);
}

TEST(CallPlaceTest, ChainFromTheOutermostModule) {
  rankprobe::testing::DumpDir dir;
  dir.Write("rank0",
            {rankprobe::testing::Call("Torch.log.0.forward", "1", "1")});
  // Longer than std::string stores inline, so that a view of a temporary copy
  // would refer to freed memory.
  dir.WriteFile("rank0/construct.json",
                R"({"Torch.log.0.forward":
                "Module.inner_attention_block.Inner.forward.0",
                "Module.inner_attention_block.Inner.forward.0":
                "Module.Outer.forward.0", "Module.Outer.forward.0": null})");
  const auto files = NewPosixFileSystem();
  DumpReader::Options options;
  options.construct = true;
  const auto dump =
      DumpReader::Open(files.get(), dir.path() + "/rank0", options);
  ASSERT_TRUE(dump.ok()) << dump.status();
  const CallPlaces places(**dump);
  EXPECT_THAT(places.ChainOf("Torch.log.0.forward"),
              ElementsAre("Module.Outer.forward.0",
                          "Module.inner_attention_block.Inner.forward.0",
                          "Torch.log.0.forward"));
  EXPECT_EQ(places.ModuleOf("Torch.log.0.forward"),
            "inner_attention_block (Inner)");
  EXPECT_EQ(places.ModuleOf("Module.fc.Linear.parameters_grad.0"),
            "fc (Linear)");
  EXPECT_THAT(places.ChainOf("unknown"), ElementsAre("unknown"));
  EXPECT_THAT(places.ModuleOf("unknown"), IsEmpty());
}

}  // namespace
}  // namespace rankprobe::analysis
