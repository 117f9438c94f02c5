// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/filter_notices.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::Optional;

std::shared_ptr<const Plan> Make(const std::function<void(Plan*)>& change) {
  auto plan = std::make_shared<Plan>();
  change(plan.get());
  return plan;
}

TEST(FilterNoticesTest, ARankFilterThatLeavesOutASingleProcessIsSaidOnce) {
  FilterNotices notices;
  const auto plan = Make([](Plan* p) {
    p->ranks = IntSet::OfIntervals({{2, 2}, {4, 6}});
  });
  EXPECT_EQ(notices.Started(plan, 0, /*single_process=*/false), std::nullopt);
  EXPECT_EQ(notices.Started(plan, 5, true), std::nullopt);
  EXPECT_THAT(notices.Started(plan, 0, true),
              Optional(std::string(
                  "config.json asks for rank [2, '4-6'] and this is a single "
                  "process of rank 0: nothing is recorded; set \"rank\": []")));
  EXPECT_EQ(notices.Started(plan, 0, true), std::nullopt);
  // A new plan is a reason to report it again.
  const auto next = Make([](Plan* p) { p->ranks = IntSet({3}); });
  EXPECT_THAT(
      notices.Started(next, std::nullopt, true),
      Optional(std::string(
          "config.json asks for rank [3] and this is a single process without "
          "a rank: nothing is recorded; set \"rank\": []")));
  EXPECT_EQ(notices.Started(Make([](Plan*) {}), std::nullopt, true),
            std::nullopt);
}

TEST(FilterNoticesTest, AFilterThatMatchesNothingIsSaidOnce) {
  FilterNotices notices;
  const auto plan = Make([](Plan* p) { p->list = {"relu6", "odd\n"}; });
  EXPECT_EQ(notices.Stopped(plan, 0, 0, 0), std::nullopt) << "nothing was seen";
  EXPECT_EQ(notices.Stopped(plan, 9, 1, 0), std::nullopt);
  const auto line = notices.Stopped(plan, 2, 0, 7);
  ASSERT_TRUE(line.has_value());
  EXPECT_THAT(*line, ::testing::StartsWith("list ['relu6', 'odd"));
  EXPECT_THAT(*line, ::testing::Not(::testing::HasSubstr("\n")));
  EXPECT_THAT(*line,
              ::testing::EndsWith("matched none of the 2 forwards of step 7: "
                                  "nothing was recorded"));
  EXPECT_EQ(notices.Stopped(plan, 2, 0, 8), std::nullopt);
  const auto scope = Make([](Plan* p) { p->scope = {"A.5", "A.6"}; });
  EXPECT_THAT(
      notices.Stopped(scope, 3, 0, 1),
      Optional(std::string("scope ['A.5', 'A.6'] matched none of the 3 "
                           "forwards of step 1: nothing was recorded")));
}

TEST(FilterNoticesTest, BackwardEntriesAreNotCounted) {
  FilterNotices notices;
  EXPECT_EQ(notices.Stopped(
                Make([](Plan* p) { p->list = {"relu.0.backward"}; }), 2, 0, 0),
            std::nullopt);
  EXPECT_EQ(notices.Stopped(Make([](Plan*) {}), 2, 0, 0), std::nullopt);
}

}  // namespace
}  // namespace rankprobe
