// SPDX-License-Identifier: Apache-2.0
#include "collector/control/step_pace.h"

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

class StepPaceTest : public ::testing::Test {
 protected:
  // A rank that reports its steps every 20 ms, as agents do, for a second.
  void Steps(int64_t steps_per_report, int64_t last_step_ns) {
    for (int i = 0; i < 50; ++i) {
      now_ += absl::Milliseconds(20);
      step_ += steps_per_report;
      pace_.Note(step_, last_step_ns, now_);
    }
  }
  double Millis() const {
    return static_cast<double>(pace_.StepNanos(now_)) / 1e6;
  }

  StepPace pace_;
  absl::Time now_ = absl::UnixEpoch();
  int64_t step_ = 0;
};

TEST_F(StepPaceTest, OneFastStepIsNotBelieved) {
  EXPECT_EQ(pace_.StepNanos(now_), 0);
  pace_.Note(-1, 0, now_);
  now_ += absl::Milliseconds(30);
  pace_.Note(0, 0, now_);
  pace_.Note(1, 23'000, now_ + absl::Microseconds(23));
  now_ += absl::Milliseconds(10);
  EXPECT_GT(Millis(), 15);
  // The current step is a slow one.
  now_ += absl::Seconds(2);
  EXPECT_GT(Millis(), 900);
}

TEST_F(StepPaceTest, ItIsTheAverageOfTheLastMoments) {
  Steps(1000, 20'000);
  EXPECT_NEAR(Millis(), 0.02, 0.005);
  // Not computed from earlier steps.
  now_ += absl::Minutes(5);
  Steps(10, 2'000'000);
  EXPECT_NEAR(Millis(), 2, 0.4);
  Steps(1000, 20'000);
  EXPECT_NEAR(Millis(), 0.02, 0.005);
  // A long step among short ones.
  pace_.Note(++step_, 500'000'000, now_);
  EXPECT_EQ(Millis(), 500);
}

TEST_F(StepPaceTest, ARankThatCountsAnew) {
  Steps(1000, 20'000);
  step_ = 0;
  Steps(1, 20'000'000);
  EXPECT_NEAR(Millis(), 20, 4);
}

}  // namespace
}  // namespace rankprobe
