// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/request_pacer.h"

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(RequestPacer, HalvesOnOverloadAndGrowsWithAnswers) {
  ManualClock clock;
  RequestPacer pacer({.most_at_once = 16, .random = [] { return 0.5; }},
                     &clock);
  EXPECT_EQ(pacer.at_once(), 16);
  pacer.OnOverload();
  // Belongs to the same wave of answers.
  pacer.OnOverload();
  EXPECT_EQ(pacer.at_once(), 8);
  clock.Advance(absl::Seconds(2));
  pacer.OnOverload();
  EXPECT_EQ(pacer.at_once(), 4);
  for (int i = 0; i < 6; ++i) pacer.OnSuccess();
  EXPECT_EQ(pacer.at_once(), 5);
  for (int i = 0; i < 1000; ++i) pacer.OnSuccess();
  EXPECT_EQ(pacer.at_once(), 16);
  for (int i = 0; i < 10; ++i) {
    clock.Advance(absl::Seconds(2));
    pacer.OnOverload();
  }
  EXPECT_EQ(pacer.at_once(), 1);
}

TEST(RequestPacer, LetsInNoMoreThanItsLimit) {
  ManualClock clock;
  RequestPacer pacer({.most_at_once = 2, .random = [] { return 0.5; }}, &clock);
  EXPECT_TRUE(pacer.Enter(absl::ZeroDuration()));
  EXPECT_TRUE(pacer.Enter(absl::ZeroDuration()));
  EXPECT_FALSE(pacer.Enter(absl::Milliseconds(1)));
  pacer.Leave();
  EXPECT_TRUE(pacer.Enter(absl::ZeroDuration()));
}

TEST(RequestPacer, WaitsAreSpreadOverALengthThatDoubles) {
  ManualClock clock;
  double share = 0;
  RequestPacer pacer({.random = [&] { return share; }}, &clock);
  EXPECT_EQ(pacer.WaitAfter(1), absl::ZeroDuration());
  share = 0.5;
  EXPECT_EQ(pacer.WaitAfter(1), absl::Milliseconds(50));
  EXPECT_EQ(pacer.WaitAfter(2), absl::Milliseconds(100));
  EXPECT_EQ(pacer.WaitAfter(4), absl::Milliseconds(400));
  EXPECT_EQ(pacer.WaitAfter(1000), absl::Seconds(5));
}

}  // namespace
}  // namespace rankprobe
