// SPDX-License-Identifier: Apache-2.0
#include "analysis/calls/parallel_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rankprobe::analysis {
namespace {

using ::testing::HasSubstr;

ParallelLayout Layout(int64_t ranks, int64_t tensor, int64_t pipeline) {
  ParallelLayout layout;
  layout.ranks = ranks;
  layout.tensor = tensor;
  layout.pipeline = pipeline;
  return layout;
}

TEST(ParallelGroupsTest, TensorRanksAreNeighboursAndStagesFarApart) {
  const ParallelLayout layout = Layout(8, 2, 2);
  EXPECT_EQ(TensorGroups(layout), (RankGroups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(PipelineGroups(layout),
            (RankGroups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(ParallelGroupsTest, OrderDecidesTheStrides) {
  ParallelLayout layout = Layout(8, 2, 2);
  layout.order = "pp-tp-dp";
  EXPECT_TRUE(CheckLayout(layout, "x").ok());
  EXPECT_EQ(PipelineGroups(layout),
            (RankGroups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(TensorGroups(layout), (RankGroups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
}

TEST(ParallelGroupsTest, SendsMakeChains) {
  EXPECT_EQ(TracePipelines({{0, 2}, {1, 3}, {2, 4}, {3, 5}, {4, 2}, {5, 3}}),
            (RankGroups{{0, 2, 4}, {1, 3, 5}}));
  EXPECT_EQ(TracePipelines({{0, 1}, {1, 0}}), (RankGroups{{0, 1}}));
  EXPECT_TRUE(TracePipelines({}).empty());
}

TEST(ParallelGroupsTest, APartitionHasEveryRankOnce) {
  EXPECT_TRUE(IsPartition({{0, 2}, {1, 3}}, 4, 2));
  EXPECT_FALSE(IsPartition({{0, 2}}, 4, 2));
  EXPECT_FALSE(IsPartition({{0, 2}, {2, 3}}, 4, 2));
  EXPECT_FALSE(IsPartition({{0, 2}, {1, 4}}, 4, 2));
  EXPECT_FALSE(IsPartition({{0, 1, 2}, {3}}, 4, 2));
}

TEST(ParallelGroupsTest, BadLayoutsAreNamed) {
  EXPECT_TRUE(CheckLayout(Layout(1, 1, 1), "x").ok());
  const auto fault = [](const ParallelLayout& layout) {
    return std::string(CheckLayout(layout, "dump").message());
  };
  EXPECT_THAT(fault(Layout(4, 3, 1)), HasSubstr("dump: --rank_size 4"));
  EXPECT_THAT(fault(Layout(0, 1, 1)), HasSubstr("--rank_size 0"));
  EXPECT_THAT(fault(Layout(4, 1 << 21, 1)), HasSubstr("--tp"));
  ParallelLayout layout = Layout(4, 4, 1);
  layout.virtual_pipeline = 2;
  EXPECT_THAT(fault(layout), HasSubstr("--vpp 2"));
  layout = Layout(4, 2, 1);
  for (const char* const order :
       {"", "tp", "tp-tp-dp-pp", "TP-dp-pp", "tp-ep-pp-dp", "tp-dp-xp"}) {
    layout.order = order;
    EXPECT_THAT(fault(layout), HasSubstr("--order")) << order;
  }
}

}  // namespace
}  // namespace rankprobe::analysis
