// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/backward_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace rankprobe::analysis {
namespace {

using ::testing::ElementsAre;
using Names = std::vector<std::string>;

// The partner of each name of the target, or "-".
Names Partners(const Names& target, const Names& reference, bool put_together) {
  const BackwardKeys keys = KeysOfBackward(target, reference, put_together);
  Names out;
  for (const std::string& key : keys.target) {
    const auto it =
        std::find(keys.reference.begin(), keys.reference.end(), key);
    out.push_back(
        it == keys.reference.end()
            ? "-"
            : reference[static_cast<size_t>(it - keys.reference.begin())]);
  }
  return out;
}

TEST(BackwardKeysTest, RecomputedForwardsShiftNumbers) {
  const Names recomputed = {"Tensor.to.0.forward", "Tensor.to.1.forward",
                            "Tensor.to.2.forward", "Tensor.to.2.backward",
                            "Module.a.Linear.backward.1"};
  const Names plain = {"Tensor.to.0.forward", "Tensor.to.0.backward",
                       "Module.a.Linear.backward.0"};
  for (const bool put_together : {false, true}) {
    EXPECT_THAT(
        Partners(recomputed, plain, put_together),
        ElementsAre("Tensor.to.0.forward", "-", "-", "Tensor.to.0.backward",
                    "Module.a.Linear.backward.0"));
  }
}

// A pipeline stage: no call precedes the input of its first cast, so that there
// is not a gradient for it.
TEST(BackwardKeysTest, RanksThatWerePutTogetherHaveTheNamesOfTheOtherRun) {
  const Names stages = {"Tensor.to.2.backward", "Tensor.to.0.backward"};
  const Names one = {"Tensor.to.2.backward", "Tensor.to.1.backward",
                     "Tensor.to.0.backward"};
  EXPECT_THAT(Partners(stages, one, true),
              ElementsAre("Tensor.to.2.backward", "Tensor.to.0.backward"));
  EXPECT_THAT(Partners(one, stages, true),
              ElementsAre("Tensor.to.2.backward", "-", "Tensor.to.0.backward"));
  // Otherwise only the order of arrival is known.
  EXPECT_THAT(Partners(stages, one, false),
              ElementsAre("Tensor.to.2.backward", "Tensor.to.1.backward"));
}

// The same calls, whose gradients arrive in another order.
TEST(BackwardKeysTest, TheSameNamesInAnotherOrder) {
  const Names target = {"Tensor.to.0.backward", "Tensor.to.1.backward"};
  const Names reference = {"Tensor.to.1.backward", "Tensor.to.0.backward"};
  EXPECT_THAT(Partners(target, reference, true),
              ElementsAre("Tensor.to.0.backward", "Tensor.to.1.backward"));
  EXPECT_THAT(Partners(target, reference, false),
              ElementsAre("Tensor.to.1.backward", "Tensor.to.0.backward"));
}

}  // namespace
}  // namespace rankprobe::analysis
