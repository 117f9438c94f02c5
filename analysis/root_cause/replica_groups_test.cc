// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/replica_groups.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// 1024 elements, as initialised by nn.Linear.
HeldTensor Held(std::vector<int64_t> ranks, double norm, double mean,
                double largest, double smallest) {
  return {std::move(ranks), "", 1024, largest, smallest, mean, norm};
}
const HeldTensor kFirst = Held({0}, 3.291, 0.0021, 0.17671, -0.17675);
const HeldTensor kSecond = Held({1}, 3.264, -0.0033, 0.17669, -0.17668);

TEST(ReplicaGroupsTest, ShardsOfRandomWeightsAreNoCopies) {
  EXPECT_FALSE(AreCopies(kFirst, kSecond));
  EXPECT_EQ(JudgeHeld({kFirst, kSecond}, {}), HeldAs::kShards);
}

TEST(ReplicaGroupsTest, OneStepOfAnOptimizerLeavesCopies) {
  HeldTensor moved = kFirst;
  moved.ranks = {1};
  moved.norm += 0.002;
  moved.mean += 1e-5;
  moved.largest += 0.001;
  moved.smallest += 0.001;
  EXPECT_EQ(JudgeHeld({kFirst, moved}, {}), HeldAs::kReplicas);
}

TEST(ReplicaGroupsTest, AnElementThatBecameHugeLeavesTheOthersACopy) {
  HeldTensor flipped = kFirst;
  flipped.ranks = {1};
  flipped.norm = flipped.largest = 1e30;
  flipped.mean = 1e27;
  EXPECT_EQ(JudgeHeld({kFirst, flipped}, {}), HeldAs::kReplicas);
}

TEST(ReplicaGroupsTest, NumbersOf16BitsAgreeByChance) {
  HeldTensor a = kFirst, b = kSecond;
  a.largest = b.largest = 0.1767578125;
  EXPECT_FALSE(AreCopies(a, b));
}

TEST(ReplicaGroupsTest, BiasesAfterTheFirstStepOfAdamAreNoCopies) {
  const double norm = 1e-3 * std::sqrt(1024);
  EXPECT_FALSE(AreCopies(Held({0}, norm, 1e-6, 1e-3, -1e-3),
                         Held({1}, norm, 1e-6, 1e-3, -1.00001e-3)));
}

TEST(ReplicaGroupsTest, ReplicasOfEachShardAreFound) {
  std::vector<HeldTensor> sharded = {kFirst, kSecond};
  sharded[0].ranks = {0, 2, 4, 6};
  sharded[1].ranks = {1, 3, 5, 7};
  std::vector<HeldTensor> parted = sharded;
  parted[1].ranks = {1, 3, 7};
  parted.push_back(Held({5}, 9, 0.1, 8, -0.17));
  const auto groups = GroupsOfRows({sharded, sharded, parted});
  EXPECT_THAT(groups,
              ElementsAre(ElementsAre(0, 2, 4, 6), ElementsAre(1, 3, 5, 7)));
  EXPECT_EQ(JudgeHeld(sharded, groups), HeldAs::kShards);
  EXPECT_EQ(JudgeHeld(parted, groups), HeldAs::kReplicas);
  EXPECT_THAT(GroupsOfRows({{kFirst, kSecond}}), IsEmpty());
}

TEST(ReplicaGroupsTest, OneRankBesideThreeIsNoShard) {
  std::vector<HeldTensor> row = {kFirst, kSecond};
  row[0].ranks = {0, 1, 3};
  row[1].ranks = {2};
  EXPECT_EQ(JudgeHeld(row, {}), HeldAs::kReplicas);
}

TEST(ReplicaGroupsTest, OfChecksumsAloneWhatDiffersIsADifference) {
  HeldTensor a, b;
  a.ranks = {0};
  b.ranks = {1};
  EXPECT_EQ(JudgeHeld({a, b}, {}), HeldAs::kReplicas);
}

}  // namespace
}  // namespace rankprobe::analysis
