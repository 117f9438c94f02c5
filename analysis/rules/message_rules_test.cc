// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/rules/testing/rank_input_fixture.h"
#include "analysis/testing/rank_cells.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kMessageSteps = 16;
constexpr size_t kMessageRanks = 4;
constexpr size_t kElements = 200;

class MessageRulesTest : public RankInputFixture {
 protected:
  MessageRulesTest() : RankInputFixture(kMessageSteps, kMessageRanks) {
    AddMessageRules(&rules_);
  }
  // Statistics of a tensor that only this rank has in this step, with the first
  // elements zeroed.
  static RankCell CellOf(size_t rank, size_t step, size_t seed,
                         size_t zeroed = 0) {
    std::vector<double> values =
        testing::Noise<double>(rank + 4 * (step + 16 * seed), kElements);
    std::fill_n(values.begin(), zeroed, 0);
    return testing::CellOf(values);
  }
  std::vector<RankFinding> Find() const {
    return rules_[0]->CanJudge(input_) ? rules_[0]->Look(input_)
                                       : std::vector<RankFinding>();
  }

  std::vector<std::unique_ptr<RankRule>> rules_;
};

std::string ResultOf(size_t sender) {
  return absl::StrCat("Distributed.all_gather.0.forward.output.0.", sender);
}

// 400 runs of 256 messages without a fault, and a message each in 1,000 runs.
TEST_F(MessageRulesTest, OnePercentOfAMessageIsZeroed) {
  for (size_t seed = 0; seed < 400; ++seed) {
    for (size_t i = 0; i < kMessageSteps; ++i) {
      for (size_t s = 0; s < kMessageRanks; ++s) {
        const RankCell sent = CellOf(s, i, seed);
        At(s, "Distributed.all_gather.0.forward.input.1", i) = sent;
        for (size_t r = 0; r < kMessageRanks; ++r) {
          // Sums of another order.
          RankCell received = sent;
          received.norm *= 1 + 1e-7 * std::sin(static_cast<double>(seed + r));
          received.mean += 1e-7 * std::sin(static_cast<double>(seed + i + r));
          At(r, ResultOf(s), i) = received;
        }
      }
    }
    if (const auto none = Find(); !none.empty()) FAIL() << none[0].what;
    if (seed >= 40) continue;
    for (size_t trial = 0; trial < 25; ++trial) {
      const size_t step = 5 + (seed + trial) % 11;
      const size_t s = trial % 4, r = trial / 4 % 4;
      const RankCell sent = At(0, ResultOf(s), step);
      const RankCell changed = CellOf(s, step, seed, kElements / 100);
      // Where both are one rank, its buffer was written before it was sent.
      const auto set = [&](const RankCell& cell) {
        for (size_t k = 0; k < kMessageRanks; ++k) {
          if (r == s || k == r) At(k, ResultOf(s), step) = cell;
        }
      };
      set(changed);
      const auto found = Find();
      ASSERT_THAT(found, SizeIs(1)) << seed << " " << trial;
      EXPECT_EQ(found[0].step, static_cast<int64_t>(step));
      EXPECT_EQ(found[0].rank, static_cast<int64_t>(r));
      EXPECT_THAT(found[0].what, HasSubstr(absl::StrCat("from rank ", s)));
      set(sent);
    }
  }
}

TEST_F(MessageRulesTest, GroupsThatCallUnequallyOften) {
  // Ranks 0 and 1, and ranks 2 and 3, broadcast among themselves; in every third
  // step the first two do so once more before.
  for (size_t i = 0; i < kMessageSteps; ++i) {
    for (size_t r = 0; r < kMessageRanks; ++r) {
      const size_t last = r < 2 && i % 3 == 0 ? 1 : 0;
      for (size_t n = 0; n <= last; ++n) {
        const std::string call =
            absl::StrCat("Distributed.broadcast.", n, ".forward.");
        At(r, call + "input.0", i) = CellOf(r, i, n);
        At(r, call + "output.0", i) = CellOf(r / 2 * 2, i, n);
      }
    }
  }
  EXPECT_THAT(Find(), IsEmpty());
  // From step 9 on rank 3 has what was sent a step before.
  for (size_t i = 9; i < kMessageSteps; ++i) {
    At(3, "Distributed.broadcast.0.forward.output.0", i) = CellOf(2, i - 1, 0);
  }
  const auto found = Find();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 9);
  EXPECT_EQ(found[0].rank, 3);
  EXPECT_THAT(found[0].what, HasSubstr("from rank 2"));
}

// Gathered into one tensor, the result is not a rank's argument; a NaN is the
// question of overflow_check.
TEST_F(MessageRulesTest, WhatCannotBeJudgedIsNot) {
  for (size_t i = 0; i < kMessageSteps; ++i) {
    for (size_t r = 0; r < kMessageRanks; ++r) {
      const std::string call = "Distributed.all_gather.0.forward.";
      At(r, call + "input.1", i) = CellOf(r, i, 0);
      At(r, call + "output.0", i) = CellOf(7, i, 1);
      const std::string other = "Distributed.broadcast.0.forward.";
      At(r, other + "input.0", i) = CellOf(0, i, 2);
      At(r, other + "output.0", i) = CellOf(0, i, 2);
    }
  }
  At(1, "Distributed.broadcast.0.forward.output.0", 9).norm = std::nan("");
  EXPECT_THAT(Find(), IsEmpty());
}

}  // namespace
}  // namespace rankprobe::analysis
