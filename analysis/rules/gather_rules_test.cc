// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/testing/rank_cells.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kGatherSteps = 12;
constexpr size_t kGatherRanks = 4;
constexpr size_t kPart = 100;

using Doubles = std::vector<double>;

Doubles GatherNoise(size_t rank, size_t step, size_t size) {
  return testing::Noise<double>(rank + 131 * step, size);
}

class GatherRulesTest : public ::testing::Test {
 protected:
  // Ranks 0 and 1, and ranks 2 and 3, are groups where `groups` is 2.
  explicit GatherRulesTest(size_t groups = 1) : size_(kGatherRanks / groups) {
    AddGatherRules(&rules_);
    for (size_t i = 0; i < kGatherSteps; ++i)
      input_.steps.push_back(static_cast<int64_t>(i));
    for (size_t r = 0; r < kGatherRanks; ++r) {
      input_.ranks.emplace_back().rank = static_cast<int64_t>(r);
      for (size_t i = 0; i < kGatherSteps; ++i) {
        const size_t begin = r / size_ * size_;
        Doubles all, sum(kPart * size_, 0);
        for (size_t k = begin; k < begin + size_; ++k) {
          const Doubles part = GatherNoise(k, i, kPart);
          all.insert(all.end(), part.begin(), part.end());
          const Doubles whole = GatherNoise(k + 50, i, kPart * size_);
          for (size_t j = 0; j < sum.size(); ++j) sum[j] += whole[j];
        }
        Set(r, Gather("input.1"), i, GatherNoise(r, i, kPart));
        Set(r, Gather("output.0"), i, all);
        Set(r, Scatter("input.input"), i,
            GatherNoise(r + 50, i, kPart * size_));
        const auto from =
            sum.begin() + static_cast<int64_t>((r - begin) * kPart);
        Set(r, Scatter("output.0"), i, Doubles(from, from + kPart));
      }
    }
  }
  static std::string Gather(const char* place) {
    return absl::StrCat("Distributed.all_gather_into_tensor.0.forward.", place);
  }
  static std::string Scatter(const char* place) {
    return absl::StrCat("Distributed.reduce_scatter_tensor.0.forward.", place);
  }
  void Set(size_t rank, const std::string& name, size_t step,
           const Doubles& values) {
    std::vector<RankCell>& cells = input_.ranks[rank].values[name];
    cells.resize(kGatherSteps);
    cells[step] = testing::CellOf(values);
  }
  std::vector<RankFinding> Find(size_t rule) const {
    EXPECT_TRUE(rules_[rule]->CanJudge(input_));
    return rules_[rule]->Look(input_);
  }
  Doubles Gathered(size_t step) const {
    Doubles all;
    for (size_t k = 0; k < size_; ++k) {
      const Doubles part = GatherNoise(k, step, kPart);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  size_t size_;
  std::vector<std::unique_ptr<RankRule>> rules_;
  RankInput input_;
};

class TwoGroupsTest : public GatherRulesTest {
 protected:
  TwoGroupsTest() : GatherRulesTest(2) {}
};

TEST_F(GatherRulesTest, ASoundRunKeepsThem) {
  EXPECT_THAT(Find(0), IsEmpty());
  EXPECT_THAT(Find(1), IsEmpty());
}
TEST_F(TwoGroupsTest, ASoundRunKeepsThem) {
  EXPECT_THAT(Find(0), IsEmpty());
  EXPECT_THAT(Find(1), IsEmpty());
}

TEST_F(GatherRulesTest, OneRankGathersZeros) {
  Doubles all = Gathered(7);
  std::fill(all.begin(), all.begin() + 4, 0);
  Set(2, Gather("output.0"), 7, all);
  const auto found = Find(0);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 7);
  EXPECT_EQ(found[0].rank, 2);
}

TEST_F(GatherRulesTest, AllGatherWhatNobodyGave) {
  Doubles all = Gathered(7);
  std::fill(all.begin(), all.begin() + 4, 0);
  for (size_t r = 0; r < kGatherRanks; ++r) Set(r, Gather("output.0"), 7, all);
  const auto found = Find(0);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 7);
  EXPECT_EQ(found[0].rank, -1);
}

TEST_F(GatherRulesTest, AllRanksGiveOnePart) {
  constexpr char kTaken[] = "Module.mix.Linear.forward.0.input.0";
  for (size_t i = 0; i < kGatherSteps; ++i) {
    for (size_t r = 0; r < kGatherRanks; ++r)
      Set(r, Gather("input.1"), i, GatherNoise(0, i, kPart));
  }
  EXPECT_THAT(Find(2), IsEmpty()) << "no module takes it";
  for (size_t i = 0; i < kGatherSteps; ++i) {
    Doubles all;
    for (size_t k = 0; k < kGatherRanks; ++k) {
      const Doubles part = GatherNoise(0, i, kPart);
      all.insert(all.end(), part.begin(), part.end());
    }
    Set(0, kTaken, i, all);
  }
  const auto found = Find(2);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].name, Gather("output.0"));
  Set(3, Gather("input.1"), 4, GatherNoise(3, 4, kPart));
  EXPECT_THAT(Find(2), IsEmpty());
}

TEST_F(TwoGroupsTest, APartOfASumIsLost) {
  std::vector<RankCell>& cells = input_.ranks[3].values[Scatter("output.0")];
  cells[5].mean *= 0.99;
  const auto found = Find(1);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 5);
  // Where it never fits, something else is computed.
  for (RankCell& cell : cells) cell.mean *= 0.9;
  EXPECT_THAT(Find(1), IsEmpty());
}

}  // namespace
}  // namespace rankprobe::analysis
