// SPDX-License-Identifier: Apache-2.0
// Origin of an overflow, over ranks and through communication.
#include "analysis/root_cause/anomaly_origin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "analysis/root_cause/overflow_states.h"
#include "analysis/testing/dump_text.h"

namespace rankprobe::analysis {
namespace {

using rankprobe::testing::Call;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class AnomalyOriginTest : public ::testing::Test {
 protected:
  // Returns "rank:call" of the calls that overflow_check finds among the given
  // ranks.
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
      auto state = ReadOverflowStates(rank, **dump, {}, &links);
      EXPECT_TRUE(state.ok()) << state.status();
      states.push_back(std::move(state->states));
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

  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  rankprobe::testing::DumpDir dir_;
};

TEST_F(AnomalyOriginTest, OverflowBeforeCommunication) {
  dir_.Write("rank0", {Call("Torch.a.0.forward", "1", "1"),
                       Call("Torch.b.0.forward", "1", "NaN"),
                       Call("Distributed.all_reduce.0.forward", "NaN", "NaN")});
  dir_.Write("rank1", {Call("Torch.a.0.forward", "1", "1"),
                       Call("Torch.b.0.forward", "1", "1"),
                       Call("Distributed.all_reduce.0.forward", "1", "NaN")});
  EXPECT_THAT(Overflow(2), ElementsAre("0:Torch.b.0.forward"));
}

TEST_F(AnomalyOriginTest, OverflowBetweenCommunicationsIsFoundOnItsRank) {
  dir_.Write("rank0",
             {Call("Distributed.all_reduce.0.forward", "1", "1"),
              Call("Torch.a.0.forward", "1", "1"),
              Call("Distributed.all_reduce.1.forward", "1", "Infinity"),
              Call("Torch.c.0.forward", "Infinity", "NaN")});
  dir_.Write("rank1", {Call("Distributed.all_reduce.0.forward", "1", "1"),
                       Call("Torch.b.0.forward", "1", "Infinity"),
                       Call("Distributed.all_reduce.1.forward", "Infinity",
                            "Infinity")});
  EXPECT_THAT(Overflow(2), ElementsAre("1:Torch.b.0.forward"));
}

TEST_F(AnomalyOriginTest, OverflowInTheCommunicationItself) {
  for (const char* const rank : {"rank0", "rank1"}) {
    dir_.Write(rank, {Call("Distributed.all_reduce.0.forward", "1", "NaN"),
                      Call("Torch.a.0.forward", "NaN", "NaN")});
  }
  EXPECT_THAT(Overflow(2), ElementsAre("0:Distributed.all_reduce.0.forward",
                                       "1:Distributed.all_reduce.0.forward"));
}

TEST_F(AnomalyOriginTest, AMaskThatIsSentIsNoOverflow) {
  dir_.Write("rank0", {Call("Distributed.all_reduce.0.forward", "-Infinity",
                            "-Infinity"),
                       Call("Torch.a.0.forward", "-Infinity", "1")});
  dir_.Write("rank1",
             {Call("Distributed.all_reduce.0.forward", "1", "-Infinity"),
              Call("Torch.a.0.forward", "-Infinity", "1")});
  EXPECT_THAT(Overflow(2), IsEmpty());
}

TEST_F(AnomalyOriginTest, WhatWasNeverWrittenIsNoOrigin) {
  dir_.Write("rank0", {Call("Tensor.new_empty.0.forward", "1", "NaN"),
                       Call("Tensor.normal_.0.forward", "NaN", "1"),
                       Call("Torch.b.0.forward", "1", "Infinity")});
  EXPECT_THAT(Overflow(1), ElementsAre("0:Torch.b.0.forward"));
  // The file is written, with the bad values.
  dir_.Write("rank0", {Call("Tensor.new_empty.0.forward", "1", "NaN"),
                       Call("Tensor.fill_.0.forward", "NaN", "NaN")});
  EXPECT_THAT(Overflow(1), ElementsAre("0:Tensor.fill_.0.forward"));
}

TEST_F(AnomalyOriginTest, OverflowAfterCommunicationAndNone) {
  dir_.Write("rank0", {Call("Distributed.all_reduce.0.forward", "1", "1"),
                       Call("Torch.empty.0.forward", "1", "NaN"),
                       Call("Torch.a.0.forward", "1", "-Infinity")});
  EXPECT_THAT(Overflow(1), ElementsAre("0:Torch.a.0.forward"));
  dir_.Write("rank0", {Call("Torch.empty.0.forward", "1", "NaN")});
  EXPECT_THAT(Overflow(1), IsEmpty());
  dir_.Write("rank0", {Call("Torch.a.0.forward", "NaN", "NaN")});
  EXPECT_THAT(Overflow(1), ElementsAre("0:Torch.a.0.forward"));
}

}  // namespace
}  // namespace rankprobe::analysis
