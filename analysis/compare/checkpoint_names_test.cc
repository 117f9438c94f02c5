// SPDX-License-Identifier: Apache-2.0
// Names of a run with activation checkpoints in one without.
#include "analysis/compare/checkpoint_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "analysis/compare/entry_match.h"
#include "analysis/testing/dump_text.h"

namespace rankprobe::analysis {
namespace {

using rankprobe::testing::Call;
using ::testing::Eq;
using ::testing::Optional;

constexpr absl::string_view kRecomputedLayer =
    R"x("Module.0._checkpoint_wrapped_module.Linear.forward.1")x";
constexpr absl::string_view kStacks =
    R"x({"0":[["Tensor.mul.1.forward",)x"
    R"x("Module.0._checkpoint_wrapped_module.Linear.forward.1"],)x"
    R"x(["File /x/site-packages/torch/utils/checkpoint.py, line 7, )x"
    R"x(in recompute_fn, \n fn()"]],)x"
    R"x("1":[["Tensor.mul.0.forward","Tensor.mul.2.forward"],)x"
    R"x(["File a.py, line 1, in f, \n f()"]]})x";

class CheckpointNamesTest : public ::testing::Test {
 protected:
  std::unique_ptr<DumpReader> Open(const std::string& place) {
    auto dump = DumpReader::Open(file_system_.get(),
                                 absl::StrCat(dir_.path(), "/", place), {});
    EXPECT_TRUE(dump.ok()) << dump.status();
    return *std::move(dump);
  }
  // Two micro batches of one layer. The checkpoint computes each again.
  std::unique_ptr<DumpReader> WithCheckpoints() {
    dir_.Write(
        "n",
        {Call("Tensor.mul.0.forward", "1", "1"),
         Call("Module.0._checkpoint_wrapped_module.Linear.forward.0", "1", "1"),
         Call("Tensor.mul.1.forward", "1", "1"),
         Call("Module.0._checkpoint_wrapped_module.Linear.forward.1", "1", "1"),
         Call("Tensor.mul.1.backward", "1", "1"),
         Call("Module.0._checkpoint_wrapped_module.Linear.backward.0", "1",
              "1"),
         Call("Tensor.mul.2.forward", "1", "2"),
         Call("Module.0._checkpoint_wrapped_module.Linear.forward.2", "1",
              "2")});
    dir_.WriteFile("n/stack.json", std::string(kStacks));
    return Open("n");
  }
  std::unique_ptr<DumpReader> Plain() {
    dir_.Write("b", {Call("Tensor.mul.0.forward", "1", "1"),
                     Call("Module.0.Linear.forward.0", "1", "1"),
                     Call("Module.0.Linear.backward.0", "1", "1"),
                     Call("Tensor.mul.1.forward", "1", "2"),
                     Call("Module.0.Linear.forward.1", "1", "2")});
    return Open("b");
  }

  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  rankprobe::testing::DumpDir dir_;
};

TEST_F(CheckpointNamesTest, LaterCallsHaveLowerNumbers) {
  const auto dump = WithCheckpoints();
  const RecomputedCalls calls(*dump);
  EXPECT_EQ(calls.size(), 2);
  EXPECT_EQ(calls.WithoutThem("Tensor.mul.0.forward"), "Tensor.mul.0.forward");
  EXPECT_EQ(calls.WithoutThem("Tensor.mul.2.forward"), "Tensor.mul.1.forward");
  EXPECT_EQ(calls.WithoutThem("Tensor.mul.2.backward"),
            "Tensor.mul.1.backward");
  EXPECT_EQ(calls.WithoutThem("Tensor.mul.1.backward"), std::nullopt);
  EXPECT_EQ(calls.WithoutThem("Tensor.add.7.forward"), "Tensor.add.7.forward");
}

TEST_F(CheckpointNamesTest, RunsAreMatchedWithoutRecomputedCalls) {
  const auto target = WithCheckpoints();
  const auto reference = Plain();
  MatchOptions options;
  options.without_checkpoints = true;
  const EntryMatch match = EntryMatch::Make(*target, *reference, options);
  EXPECT_THAT(match.ReferenceOf(0), Optional(Eq(0)));
  EXPECT_THAT(match.ReferenceOf(1), Optional(Eq(1)));
  EXPECT_EQ(match.ReferenceOf(2), std::nullopt);
  EXPECT_EQ(match.ReferenceOf(3), std::nullopt);
  EXPECT_EQ(match.ReferenceOf(4), std::nullopt);
  EXPECT_THAT(match.ReferenceOf(5), Optional(Eq(2)));
  EXPECT_THAT(match.ReferenceOf(6), Optional(Eq(3)));
  EXPECT_THAT(match.ReferenceOf(7), Optional(Eq(4)));
}

// A selective checkpoint computes the multiplication again, and not the layer.
TEST_F(CheckpointNamesTest, RunsWithDifferentCheckpointsAreMatched) {
  const auto target = WithCheckpoints();
  dir_.Write("m", {Call("Tensor.mul.0.forward", "1", "1"),
                   Call("Tensor.mul.1.forward", "1", "1"),
                   Call("Tensor.mul.2.forward", "1", "2"),
                   Call("Module.0.Linear.forward.1", "1", "2")});
  dir_.WriteFile("m/stack.json",
                 absl::StrReplaceAll(kStacks, {{kRecomputedLayer, "\"x\""}}));
  const auto reference = Open("m");
  MatchOptions options;
  options.without_checkpoints = true;
  const EntryMatch match = EntryMatch::Make(*target, *reference, options);
  EXPECT_THAT(match.ReferenceOf(0), Optional(Eq(0)));
  EXPECT_EQ(match.ReferenceOf(2), std::nullopt);
  EXPECT_TRUE(match.IsRecomputedInTarget(2));
  EXPECT_TRUE(match.IsRecomputedInReference(1));
  EXPECT_THAT(match.ReferenceOf(6), Optional(Eq(2)));
  EXPECT_THAT(match.ReferenceOf(7), Optional(Eq(3)));
}

TEST_F(CheckpointNamesTest, TwoRunsWithCheckpointsKeepTheirNumbers) {
  const auto target = WithCheckpoints();
  MatchOptions options;
  options.without_checkpoints = true;
  const EntryMatch match = EntryMatch::Make(*target, *target, options);
  for (size_t i = 0; i < target->size(); ++i) {
    EXPECT_THAT(match.ReferenceOf(i), Optional(Eq(i)));
  }
}

}  // namespace
}  // namespace rankprobe::analysis
