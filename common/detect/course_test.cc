// SPDX-License-Identifier: Apache-2.0
#include "common/detect/course.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kSmallest = std::numeric_limits<double>::denorm_min();

class CourseTest : public ::testing::Test {
 protected:
  Course Of(size_t count, double first, double factor_a_step = 1) {
    Course course;
    double number = first;
    for (size_t i = 0; i < count; ++i, number *= factor_a_step)
      course.Add(number, options_.window);
    return course;
  }
  CourseLimits Limits(absl::string_view name = "Module.a.forward.0.output.0") {
    return CourseLimits(options_, name);
  }

  CourseOptions options_;
};

TEST_F(CourseTest, AWindowNotYetFullSaysNothing) {
  for (size_t count = 0; count < options_.least; ++count)
    EXPECT_FALSE(Of(count, 1).IsMove(1e30, Limits())) << count;
  EXPECT_TRUE(Of(options_.least, 1).IsMove(1e30, Limits()));
  // A line requires at least two numbers.
  options_.least = 0;
  EXPECT_FALSE(Of(0, 1).IsMove(1e30, Limits()));
  EXPECT_FALSE(Of(1, 1).IsMove(1e30, Limits()));
  EXPECT_TRUE(Of(2, 1).IsMove(1e30, Limits()));
}

TEST_F(CourseTest, FromTheFactorOnEitherWay) {
  const Course course = Of(20, 7);
  EXPECT_FALSE(course.IsMove(7 * 3.99, Limits()));
  EXPECT_TRUE(course.IsMove(7 * 4.01, Limits()));
  EXPECT_FALSE(course.IsMove(7 / 3.99, Limits()));
  EXPECT_TRUE(course.IsMove(7 / 4.01, Limits()));
  EXPECT_TRUE(course.IsMove(-7 * 4.01, Limits())) << "by its amount";
  EXPECT_DOUBLE_EQ(course.Usual(), 7);
}

TEST_F(CourseTest, AgainstTheLineThroughWhatWas) {
  // A factor of five in each of ten steps: the next factor of five is not a
  // move.
  const Course rising = Of(10, 1, 5);
  EXPECT_FALSE(rising.IsMove(std::pow(5, 10), Limits()));
  EXPECT_TRUE(rising.IsMove(1, Limits()));
}

TEST_F(CourseTest, AWideWanderNeedsMore) {
  std::mt19937 random(3);
  std::normal_distribution<double> wander(0, 1);
  Course course;
  for (int i = 0; i < 20; ++i)
    course.Add(std::exp(wander(random)), options_.window);
  EXPECT_FALSE(course.IsMove(5, Limits()));
  EXPECT_TRUE(course.IsMove(1e9, Limits()));
  options_.deviations = 1000;
  EXPECT_FALSE(course.IsMove(1e9, Limits()));
}

TEST_F(CourseTest, WhatAValueIsSaysHowMuchIsAMove) {
  const Course course = Of(20, 1);
  options_.deviations = 1;
  EXPECT_TRUE(course.IsMove(2.1, Limits("Training.0.debug.loss")));
  EXPECT_TRUE(course.IsMove(2.1, Limits("Training.0.debug.loss.1")));
  EXPECT_FALSE(course.IsMove(2.1, Limits("Module.loss.forward.0.output.0")));
  for (const char* name :
       {"Training.0.debug.lr", "Update.fc.weight.0.debug.update"}) {
    EXPECT_FALSE(course.IsMove(1e-9, Limits(name))) << name;
    EXPECT_TRUE(course.IsMove(1e9, Limits(name))) << name;
  }
  EXPECT_TRUE(HasNoCourse("Training.0.debug.step_seconds"));
  EXPECT_TRUE(HasNoCourse("Training.0.debug.target_checksum"));
  EXPECT_TRUE(HasNoCourse("Training.0.debug.target_checksum.1"));
  EXPECT_FALSE(HasNoCourse("Training.0.debug.loss"));
  EXPECT_TRUE(IsStateOfOptimizer("Parameter.a.weight.0.debug.exp_avg"));
  EXPECT_FALSE(IsStateOfOptimizer("Parameter.a.weight.0.debug.grad"));
  EXPECT_FALSE(IsStateOfOptimizer("Update.a.weight.0.debug.update"));
}

// Of n elements Mean is at most Norm / sqrt(n).
TEST_F(CourseTest, AnAverageOfSquaresMovesTwiceAsFar) {
  for (const char* const state :
       {"exp_avg_sq", "max_exp_avg_sq", "square_avg"}) {
    const std::string name = std::string("Parameter.fc.bias.0.debug.") + state;
    EXPECT_FALSE(Of(20, 7).IsMove(7 * 15.9, Limits(name))) << state;
    EXPECT_TRUE(Of(20, 7).IsMove(7 * 16.1, Limits(name))) << state;
  }
  EXPECT_TRUE(
      Of(20, 7).IsMove(7 * 4.1, Limits("Parameter.fc.bias.0.debug.exp_avg")));
}

TEST_F(CourseTest, OneNumberWithASignMayPassZero) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const char* const name = "Parameter.a.bias.0.debug.exp_avg";
  EXPECT_TRUE(MayPassZero(name, 0.3, 0.3));
  EXPECT_TRUE(MayPassZero(name, 0.3, -0.3));
  EXPECT_TRUE(MayPassZero(name, 1e-30, -1.00001e-30)) << "rounded";
  EXPECT_FALSE(MayPassZero(name, std::sqrt(2.0), 1)) << "two elements";
  EXPECT_FALSE(MayPassZero(name, 0, 0));
  EXPECT_FALSE(MayPassZero(name, kNaN, kNaN));
  EXPECT_FALSE(MayPassZero("Training.0.debug.loss", 0.3, 0.3)) << "an amount";
  CourseLimits limits = Limits(name);
  limits.passes_zero = true;
  Course course = Of(20, 1);
  EXPECT_TRUE(course.IsMove(1e-5, Limits(name)));
  EXPECT_FALSE(course.IsMove(1e-5, limits));
  EXPECT_TRUE(course.IsMove(-1e5, limits));
  // A slow move, and the numbers after it.
  course = Of(0, 1);
  int moves = 0;
  for (int i = 0; i < 60; ++i) {
    const double number = 0.4003 - 0.01 * i;
    EXPECT_FALSE(course.IsMove(number, limits)) << i;
    moves += course.IsMove(number, Limits(name)) ? 1 : 0;
    course.Add(number, options_.window);
  }
  EXPECT_GE(moves, 2) << "into 0, and out of it";
  EXPECT_TRUE(course.IsMove(50, limits));
}

TEST_F(CourseTest, OnlyTheWindowIsKept) {
  Course course = Of(1000, 1e-20);
  for (size_t i = 0; i < options_.window; ++i) course.Add(5, options_.window);
  EXPECT_DOUBLE_EQ(course.Usual(), 5);
  EXPECT_FALSE(course.IsMove(5, Limits()));
  EXPECT_TRUE(course.IsMove(1e-20, Limits()));
}

TEST_F(CourseTest, NumbersOfAnySizeAreTrueValues) {
  for (const double number : {1e38, 1e-38, kLargest, kSmallest}) {
    const Course course = Of(20, number);
    EXPECT_FALSE(course.IsMove(number, Limits())) << number;
    EXPECT_TRUE(course.IsMove(1, Limits())) << number;
  }
  EXPECT_TRUE(Of(20, 1).IsMove(kLargest, Limits()));
  EXPECT_TRUE(Of(20, 1).IsMove(kSmallest, Limits()));
}

// The fast path, which most numbers take, agrees with the medians.
TEST_F(CourseTest, TheShortWayIsTheLongOne) {
  std::mt19937 random(11);
  int moves = 0;
  for (int round = 0; round < 3000; ++round) {
    std::normal_distribution<double> wander(0, 0.02 * (round % 40));
    std::vector<double> past;
    Course course;
    const size_t count = 2 + static_cast<size_t>(round % 19);
    for (size_t i = 0; i < count; ++i) {
      past.push_back(std::exp(wander(random) +
                              0.05 * (round % 7) * static_cast<double>(i)));
      course.Add(past.back(), options_.window);
    }
    CourseLimits limits = Limits();
    limits.only_up = round % 2 == 0;
    const double now = std::exp(10 * wander(random));
    // The rule as described in docs/monitor.md.
    const auto median = [](std::vector<double> of) {
      std::sort(of.begin(), of.end());
      return of[of.size() / 2];
    };
    std::vector<double> logs, level, off;
    for (const double one : past) logs.push_back(std::log(one));
    const size_t half = count / 2;
    const double slope =
        (median({logs.end() - static_cast<std::ptrdiff_t>(half), logs.end()}) -
         median({logs.begin(),
                 logs.begin() + static_cast<std::ptrdiff_t>(half)})) /
        static_cast<double>(count - half);
    for (size_t i = 0; i < count; ++i)
      level.push_back(logs[i] + slope * static_cast<double>(count - i));
    for (const double one : level)
      off.push_back(std::fabs(one - median(level)));
    const double by = std::log(now) - median(level);
    const double far = limits.only_up ? by : std::fabs(by);
    const bool expected = count >= options_.least &&
                          far > 8 * std::max(1.4826 * median(off), 0.1) &&
                          far > std::log(4.0);
    ASSERT_EQ(course.IsMove(now, limits), expected) << round;
    moves += expected ? 1 : 0;
  }
  EXPECT_GT(moves, 100);
  EXPECT_LT(moves, 2900);
}

TEST(ZeroRunTest, ZerosOnEndAfterSomethingElse) {
  ZeroRun run;
  for (int i = 0; i < 3; ++i) run.Add(true);
  EXPECT_TRUE(run.Vanished(0, 3));
  EXPECT_FALSE(run.Vanished(1, 3)) << "it never was anything else";
  run.Add(false);
  EXPECT_FALSE(run.Vanished(0, 0)) << "nothing is 0";
  for (int i = 0; i < 2; ++i) run.Add(true);
  EXPECT_TRUE(run.Vanished(1, 2));
  EXPECT_FALSE(run.Vanished(2, 2));
  EXPECT_FALSE(run.Vanished(1, 3));
  EXPECT_EQ(run.before(), 1u);
  EXPECT_EQ(run.zeros(), 2u);
}

}  // namespace
}  // namespace rankprobe
