// SPDX-License-Identifier: Apache-2.0
// Rules on blocks and residual connections: each on a run that has its fault,
// and on its sound twin.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/rules/testing/ranks_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Blocks of two parameters, the second of which is in question.
class BlocksTest : public OneRankTest {
 protected:
  BlocksTest() {
    for (size_t layer = 0; layer < 4; ++layer) {
      Use(layer, "one", {"param", "grad"}, true);
      Use(layer, "two", {"param", "grad"}, true);
    }
  }
  static std::string Of(size_t layer, const std::string& part) {
    return absl::StrCat("blocks.", layer, ".", part, ".weight");
  }
  void Use(size_t layer, const std::string& part,
           const std::vector<const char*>& values, bool is_updated) {
    const RankCell cell = Cell(1, 0.1 + 0.01 * static_cast<double>(layer));
    const std::string parameter = Of(layer, part);
    const auto fill = [&](const std::string& name) {
      input_.ranks[0].values[name].assign(kRankSteps, cell);
    };
    for (const char* const all : {"param", "grad"})
      input_.ranks[0].values.erase(OfParameter(parameter, all));
    const std::string update =
        absl::StrCat("Update.", parameter, ".0.debug.update");
    input_.ranks[0].values.erase(update);
    fill(absl::StrCat("Module.blocks.", layer, ".", part,
                      ".Linear.forward.0.parameters.weight"));
    for (const char* const value : values) fill(OfParameter(parameter, value));
    if (is_updated) fill(update);
  }
};

TEST_F(BlocksTest, ABranchThatIsDetached) {
  EXPECT_THAT(Find(""), IsEmpty());
  Use(1, "two", {"param"}, true);
  auto found = Find("gradient-missing");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_EQ(found[0].name, "Parameter.blocks.1.two.weight.0.debug.param");
  // Nobody may use what the last block computes there.
  Use(1, "two", {"param", "grad"}, true);
  Use(3, "two", {"param"}, true);
  found = Find("gradient-missing");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  // Nobody takes the second of two tensors that it gives.
  for (size_t i = 0; i < kRankSteps; ++i)
    At(0, "Module.blocks.3.Block.forward.0.output.1", i) = Cell(2, 0.3);
  EXPECT_THAT(Find("gradient-missing"), IsEmpty());
  // In all blocks.
  for (size_t layer = 0; layer < 4; ++layer) Use(layer, "two", {"param"}, true);
  found = Find("gradient-missing");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].others, 3);
  // Most of what the optimizer holds, in all blocks; frozen blocks are no fault.
  for (size_t layer = 0; layer < 4; ++layer) Use(layer, "one", {"param"}, true);
  found = Find("gradient-missing");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].others, 7);
  EXPECT_THAT(found[0].what, HasSubstr("8 of the 13 parameters"));
  for (const char* const part : {"one", "two"})
    for (size_t layer = 0; layer < 4; ++layer) Use(layer, part, {}, false);
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(BlocksTest, AnEncoderThatIsDetached) {
  const auto fill = [&](const std::string& name, double mean) {
    for (size_t i = 0; i < kRankSteps; ++i)
      At(0, name, i) = Cell(2, mean + 0.1 * Noise(i, 5));
  };
  for (const char* const value : {"param", "update"}) {
    fill(absl::StrCat(value[0] == 'u' ? "Update." : "Parameter.",
                      "encoder.conv.weight.0.debug.", value),
         0.3);
  }
  fill("Module.encoder.conv.Conv2d.forward.0.parameters.weight", 0.3);
  fill("Module.encoder.act.ReLU.forward.0.output.0", 0.4);
  // Nobody takes what it makes.
  EXPECT_THAT(Find("gradient-missing"), IsEmpty());
  // In a later call, as a discriminator takes what a generator makes.
  fill("Module.blocks.0.one.Linear.forward.2.input.0", 0.4);
  const auto found = Find("gradient-missing");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("no parameter of encoder has"));
  // x + (encoded - x).detach() is rounded; another value is not alike.
  for (const double apart : {1e-7, 1e-4}) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      RankCell& taken =
          At(0, "Module.blocks.0.one.Linear.forward.2.input.0", i);
      taken = At(0, "Module.encoder.act.ReLU.forward.0.output.0", i);
      taken.mean += apart * taken.largest;
    }
    EXPECT_THAT(Find("gradient-missing"), SizeIs(apart < 1e-6 ? 1 : 0));
  }
}

TEST_F(BlocksTest, ABlockThatIsFrozen) {
  for (const char* const part : {"one", "two"}) Use(0, part, {}, false);
  EXPECT_THAT(Find(""), IsEmpty());
  for (const char* const part : {"one", "two"})
    Use(0, part, {"param", "grad"}, true);
  // Held by the optimizer, and not.
  Use(2, "one", {"param"}, false);
  Use(2, "two", {}, false);
  const auto found = Find("block-frozen");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].others, 1);
}

// x + two(norm(x)) in a block.
class ResidualTest : public OneRankTest {
 protected:
  ResidualTest() {
    for (size_t i = 0; i < kRankSteps; ++i) {
      const double x = 0.3 + 0.1 * Noise(i, 1), f = 0.2 + 0.1 * Noise(i, 2);
      Put("blocks.1.Block.forward.0.input.0", i, Cell(4, x));
      Put("blocks.1.norm.Norm.forward.0.input.0", i, Cell(4, x));
      Put("blocks.1.norm.Norm.forward.0.output.0", i, Cell(3, 0.01));
      Put("blocks.1.two.Linear.forward.0.input.0", i, Cell(3, 0.01));
      Put("blocks.1.two.Linear.forward.0.output.0", i, Cell(2, f));
      Put("blocks.1.Block.forward.0.output.0", i, Cell(5, x + f));
      Put("blocks.1.Block.backward.0.input.0", i, Cell(0.5, 0.02));
      Put("blocks.1.two.Linear.backward.0.input.0", i, Cell(0.5, 0.02));
      Put("blocks.1.norm.Norm.backward.0.output.0", i, Cell(0.1, 0.003));
      Put("blocks.1.Block.backward.0.output.0", i, Cell(0.55, 0.023));
    }
  }
  void Put(const std::string& name, size_t step, const RankCell& cell) {
    At(0, absl::StrCat("Module.", name), step) = cell;
  }
};

TEST_F(ResidualTest, OneThatIsDetached) {
  EXPECT_THAT(Find(""), IsEmpty());
  for (size_t i = 0; i < kRankSteps; ++i)
    Put("blocks.1.Block.backward.0.output.0", i, Cell(0.1, 0.003));
  const auto found = Find("residual-detached");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_EQ(found[0].name, "Module.blocks.1.norm.Norm.backward.0.output.0");
  // A layer without a residual.
  for (size_t i = 0; i < kRankSteps; ++i) {
    Put("blocks.1.Block.forward.0.output.0", i,
        Cell(5, 0.2 + 0.1 * Noise(i, 2)));
  }
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(ResidualTest, AShortcutThatIsAModule) {
  for (size_t i = 0; i < kRankSteps; ++i) {
    const RankCell x = At(0, "Module.blocks.1.Block.forward.0.input.0", i);
    const RankCell gradient =
        At(0, "Module.blocks.1.Block.backward.0.output.0", i);
    Put("blocks.1.shortcut.Identity.forward.0.input.0", i, x);
    Put("blocks.1.shortcut.Identity.forward.0.output.0", i, x);
    Put("blocks.1.shortcut.Identity.backward.0.output.0", i, gradient);
  }
  EXPECT_THAT(Find(""), IsEmpty());
}

TEST_F(ResidualTest, AModuleThatKeepsTheMeanOrHasAResidualOfItsOwn) {
  const RankCell gradient = Cell(0.7, 0.01);
  // The block's input goes into a pooling first, or into a wrapper that adds what a
  // module registered beside it makes of it.
  for (const bool wrapper : {false, true}) {
    for (size_t i = 0; i < kRankSteps; ++i) {
      const RankCell x = At(0, "Module.blocks.1.Block.forward.0.input.0", i);
      const RankCell sum = At(0, "Module.blocks.1.Block.forward.0.output.0", i);
      Put("blocks.1.Block.backward.0.output.0", i, gradient);
      Put("blocks.1.first.First.backward.0.output.0", i, gradient);
      Put("blocks.1.first.First.forward.0.input.0", i, x);
      Put("blocks.1.first.First.forward.0.output.0", i,
          wrapper ? sum : Cell(8, x.mean));
    }
    EXPECT_THAT(Find(""), IsEmpty()) << wrapper;
  }
  // Neither: its gradient is all that the input has, and the block adds the input.
  for (size_t i = 0; i < kRankSteps; ++i)
    Put("blocks.1.first.First.forward.0.output.0", i, Cell(8, 0.9));
  EXPECT_THAT(Find("residual-detached"), SizeIs(1));
}

TEST_F(ResidualTest, ASequenceOfOneBlockPassesItsGradientOn) {
  for (const char* const value :
       {"forward.0.input.0", "forward.0.output.0", "backward.0.input.0",
        "backward.0.output.0"}) {
    input_.ranks[0].values[absl::StrCat("Module.blocks.Sequential.", value)] =
        input_.ranks[0].values[absl::StrCat("Module.blocks.1.Block.", value)];
  }
  EXPECT_THAT(Find(""), IsEmpty());
}

}  // namespace
}  // namespace rankprobe::analysis
