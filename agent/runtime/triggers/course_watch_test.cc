// SPDX-License-Identifier: Apache-2.0
// Rules `move` and `vanished` in a rank's watcher.
#include "agent/runtime/triggers/course_watch.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/runtime/triggers/trigger_watcher.h"
#include "common/config/trigger_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CourseWatchTest : public ::testing::Test {
 protected:
  CourseWatchTest()
      : watcher_(&clock_, [this](v1::AgentEvent event) {
          if (event.has_error()) errors_.push_back(event.error().message());
          if (event.has_fired()) fired_.push_back(event.fired());
        }) {}

  void Set(absl::string_view rules) {
    auto spec = ParseTriggerSpec(absl::StrCat(R"({"rules": [)", rules, "]}"));
    ASSERT_TRUE(spec.ok()) << spec.status();
    watcher_.Configure(*spec);
  }

  // A value of one element.
  void Number(double number) {
    v1::CallPhase phase;
    phase.set_entry("Parameter.a.bias.0.debug");
    v1::TensorStats* const stats =
        phase.mutable_output()->add_items()->mutable_tensor()->mutable_stats();
    stats->set_norm_f(std::fabs(number));
    stats->set_max_f(number);
    stats->set_min_f(number);
    stats->set_mean_f(number);
    watcher_.BeginStep(step_);
    watcher_.OnPhase(phase);
    watcher_.EndStep();
    ++step_;
  }
  static void Fill(double norm, v1::Value* value) {
    v1::TensorStats* const stats = value->mutable_tensor()->mutable_stats();
    stats->set_norm_f(norm);
    stats->set_max_f(norm);
    stats->set_min_f(-norm);
    stats->set_mean_f(norm / 2);
  }

  // A step in which the module's output has this norm; each step is recorded.
  void Step(double norm, const std::string& entry = "Module.a.forward.0") {
    v1::CallPhase phase;
    phase.set_entry(entry);
    Fill(norm, phase.mutable_output()->add_items());
    watcher_.BeginStep(step_);
    watcher_.OnPhase(phase);
    watcher_.EndStep();
    ++step_;
  }
  // Records of task monitor for a parameter and its update.
  void Optimizer(bool with_state, bool with_update = true) {
    watcher_.BeginStep(step_);
    v1::CallPhase before, after;
    before.set_entry("Parameter.a.weight.0.debug");
    v1::ValueMap* const map = before.mutable_debug()->mutable_map();
    const auto add = [](const char* name, v1::ValueMap* to) {
      v1::NamedValue* const item = to->add_items();
      item->set_name(name);
      Fill(1, item->mutable_value());
    };
    add("grad", map);
    if (with_state) add("exp_avg", map);
    watcher_.OnPhase(before);
    if (with_update) {
      after.set_entry("Update.a.weight.0.debug");
      add("update", after.mutable_debug()->mutable_map());
      watcher_.OnPhase(after);
    }
    watcher_.EndStep();
    ++step_;
  }

  ManualClock clock_;
  int64_t step_ = 0;
  std::vector<v1::TriggerFired> fired_;
  std::vector<std::string> errors_;
  TriggerWatcher watcher_;
};

TEST_F(CourseWatchTest, AMoveIsToldOnceWithItsCourse) {
  Set(R"({"name": "sharp", "move": {}, "cool_down_ms": 1})");
  for (int i = 0; i < 20; ++i) Step(2 + 0.1 * (i % 3));
  EXPECT_THAT(fired_, IsEmpty());
  Step(100);
  ASSERT_THAT(fired_, SizeIs(1));
  EXPECT_EQ(fired_[0].rule(), "sharp");
  EXPECT_EQ(fired_[0].step(), 20);
  EXPECT_EQ(fired_[0].entry(), "Module.a.forward.0");
  EXPECT_EQ(fired_[0].detail(), "output.0: Norm 100, off its course of 2.1");
  // It stays there: the steps after a move belong to it.
  for (int i = 0; i < 60; ++i) {
    clock_.Advance(absl::Seconds(1));
    Step(100);
  }
  EXPECT_THAT(fired_, SizeIs(1));
  Step(0.001);
  EXPECT_THAT(fired_, SizeIs(2));
}

TEST_F(CourseWatchTest, ANumberThatPassesThroughZeroIsNoMove) {
  Set(R"({"name": "sharp", "move": {}, "cool_down_ms": 1})");
  for (int i = 0; i < 60; ++i) Number(0.4003 - 0.01 * i);
  EXPECT_THAT(fired_, IsEmpty());
  Number(-50);
  EXPECT_THAT(fired_, SizeIs(1)) << "upwards it moves as ever";
}

TEST_F(CourseWatchTest, TheRatioToANumberThatPassesThroughZeroHasNoCourse) {
  const auto step = [this](double mean, double ratio) {
    v1::CallPhase phase;
    phase.set_entry("Update.a.bias.0.debug");
    v1::ValueMap* const map = phase.mutable_debug()->mutable_map();
    for (const auto& [name, number] :
         {std::pair("update", 1.0), std::pair("ratio", ratio)}) {
      v1::NamedValue* const item = map->add_items();
      item->set_name(name);
      Fill(number, item->mutable_value());
    }
    map->mutable_items(0)
        ->mutable_value()
        ->mutable_tensor()
        ->mutable_stats()
        ->set_mean_f(mean);
    watcher_.BeginStep(step_);
    watcher_.OnPhase(phase);
    watcher_.EndStep();
    ++step_;
  };
  // Also if the rule checks only the ratio.
  for (const double mean : {1.0, 0.5}) {
    Set(R"({"name": "sharp", "move": {}, "entry_contains": "ratio"})");
    for (int i = 0; i < 20; ++i) step(mean, 0.01);
    step(mean, 1000);
    EXPECT_THAT(fired_, SizeIs(mean == 1.0 ? 0 : 1));
  }
}

// Zeros, which are not part of the course, count as steps after a move, as in
// scan.
TEST_F(CourseWatchTest, TheStepsBehindAMoveAreThoseThatWereRecorded) {
  Set(R"({"name": "sharp", "move": {"window": 4}, "cool_down_ms": 1})");
  for (int i = 0; i < 5; ++i) Step(1);
  Step(1000);
  ASSERT_THAT(fired_, SizeIs(1));
  for (const double norm :
       {0.0, std::numeric_limits<double>::quiet_NaN(), 0.0}) {
    clock_.Advance(absl::Seconds(1));
    Step(norm);
  }
  clock_.Advance(absl::Seconds(1));
  Step(1000);
  ASSERT_THAT(fired_, SizeIs(2));
  EXPECT_EQ(fired_[1].step(), 9);
}

TEST_F(CourseWatchTest, ASoundRunAndItsExtremesSayNothing) {
  Set(R"({"name": "sharp", "move": {}}, {"name": "dead", "vanished": {}})");
  std::mt19937 random(5);
  std::lognormal_distribution<double> wander(0, 0.2);
  for (int i = 0; i < 500; ++i) {
    Step(std::exp(-0.02 * i) * wander(random));
    // Neither part of a course nor a zero: rule non_finite checks it.
    Step(i % 2 == 0 ? std::nan("") : HUGE_VAL);
    // A constant 1e38 is its course.
    Step(1e38 * wander(random), "Module.large.forward.0");
  }
  EXPECT_THAT(fired_, IsEmpty());
}

TEST_F(CourseWatchTest, StatisticWindowAndFactorAreTheRules) {
  Set(R"({"name": "max", "move": {"statistic": "STATISTIC_MAX", "window": 3,
                                  "factor": 50, "only_up": true}})");
  for (const double last : {49.0, 1e-9, 51.0}) {
    EXPECT_THAT(fired_, IsEmpty());
    const std::string entry = absl::StrCat("Module.", last);
    for (int i = 0; i < 3; ++i) Step(1, entry);
    Step(last, entry);
  }
  ASSERT_THAT(fired_, SizeIs(1));
  EXPECT_THAT(fired_[0].detail(), HasSubstr("Max 51, off its course of 1"));
}

TEST_F(CourseWatchTest, NamesAreThoseOfAQuery) {
  Set(R"({"name": "rate", "move": {}, "entry_contains": "0.debug.lr"})");
  const auto training = [this](double rate, double loss) {
    v1::CallPhase phase;
    phase.set_entry("Training.0.debug");
    for (const auto& [name, number] :
         {std::pair("loss", loss), std::pair("lr", rate)}) {
      v1::NamedValue* const item =
          phase.mutable_debug()->mutable_map()->add_items();
      item->set_name(name);
      Fill(number, item->mutable_value());
    }
    watcher_.BeginStep(step_++);
    watcher_.OnPhase(phase);
    watcher_.EndStep();
  };
  for (int i = 0; i < 10; ++i) training(0.1, 3);
  training(0.1, 3000);
  training(1e-5, 3);  // a schedule ends like that
  EXPECT_THAT(fired_, IsEmpty());
  training(10, 3);
  ASSERT_THAT(fired_, SizeIs(1));
  EXPECT_THAT(fired_[0].detail(), HasSubstr("lr: Norm 10, "));
}

TEST_F(CourseWatchTest, WhatVanishesIsToldWhenItHasBeenZeroForLongEnough) {
  Set(R"({"name": "dead", "vanished": {"values": 3}, "cool_down_ms": 1})");
  for (int i = 0; i < 5; ++i) Step(1);
  Step(0);
  Step(0);
  Step(1);  // not for good
  // Steps in which the value is not recorded are not zeros.
  for (int i = 0; i < 10; ++i) {
    watcher_.BeginStep(step_++);
    watcher_.EndStep();
  }
  Step(0);
  Step(std::nan(""));
  Step(0);
  EXPECT_THAT(fired_, IsEmpty());
  Step(0);
  ASSERT_THAT(fired_, SizeIs(1));
  EXPECT_EQ(fired_[0].detail(),
            "output.0: 0 for 3 recorded steps, after 6 in which it was not");
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(absl::Seconds(1));
    Step(0);
  }
  EXPECT_THAT(fired_, SizeIs(1)) << "told once";
  Step(1);
  for (int i = 0; i < 3; ++i) Step(0);
  EXPECT_THAT(fired_, SizeIs(2)) << "it was there again";
}

TEST_F(CourseWatchTest, WhatWasNeverThereHasVanishedOnlyWhereItIsAskedFor) {
  Set(R"({"name": "dead", "vanished": {}})");
  for (int i = 0; i < 50; ++i) Step(0);
  EXPECT_THAT(fired_, IsEmpty());
  Set(R"({"name": "dead", "vanished": {"from_start": true}})");
  for (int i = 0; i < 4; ++i) Step(0);
  EXPECT_THAT(fired_, IsEmpty());
  Step(0);
  EXPECT_THAT(fired_, SizeIs(1));
}

TEST_F(CourseWatchTest, ARuleThatRestsTellsOfWhatIsStillZero) {
  Set(R"({"name": "dead", "vanished": {}, "cool_down_ms": 1000})");
  for (int i = 0; i < 5; ++i) {
    Step(1);
    Step(1, "Module.b.forward.0");
  }
  for (int i = 0; i < 8; ++i) {
    Step(0);
    Step(0, "Module.b.forward.0");
  }
  EXPECT_THAT(fired_, SizeIs(1));
  clock_.Advance(absl::Milliseconds(1001));
  Step(0);
  Step(0, "Module.b.forward.0");
  ASSERT_THAT(fired_, SizeIs(2));
  EXPECT_EQ(fired_[1].entry(), "Module.b.forward.0");
}

TEST_F(CourseWatchTest, TheStateOfAnOptimizerThatIsNoMoreThere) {
  Set(R"({"name": "dead", "vanished": {}, "cool_down_ms": 1})");
  Optimizer(/*with_state=*/false);  // it comes with the first step
  for (int i = 0; i < 3; ++i) Optimizer(true);
  Optimizer(false, /*with_update=*/false);  // another config
  EXPECT_THAT(fired_, IsEmpty());
  Optimizer(true);
  for (int i = 0; i < 3; ++i) {
    Optimizer(false);
    clock_.Advance(absl::Seconds(1));
  }
  ASSERT_THAT(fired_, SizeIs(1));
  EXPECT_EQ(fired_[0].entry(), "Update.a.weight.0.debug");
  EXPECT_EQ(fired_[0].step(), 6);
  EXPECT_THAT(fired_[0].detail(),
              HasSubstr("no longer exists; last in step 5"));
}

TEST_F(CourseWatchTest, ANewSpecWithTheSameRuleKeepsWhatWasSeen) {
  const char* const rule = R"({"name": "sharp", "move": {"window": 10}})";
  Set(rule);
  for (int i = 0; i < 10; ++i) Step(1);
  Set(absl::StrCat(R"({"name": "other", "loss": {"above": 1}}, )", rule));
  Step(100);
  EXPECT_THAT(fired_, SizeIs(1));
  // Another condition under the same name starts without a history.
  Set(R"({"name": "sharp2", "move": {"window": 10}})");
  Set(R"({"name": "sharp2", "move": {"window": 11}})");
  for (int i = 0; i < 4; ++i) Step(1);
  Step(100);
  EXPECT_THAT(fired_, SizeIs(1));
}

TEST_F(CourseWatchTest, NothingIsWatchedWithoutARule) {
  Set("");
  EXPECT_FALSE(watcher_.active());
  Set(R"({"name": "sharp", "move": {}})");
  EXPECT_TRUE(watcher_.active());
}

v1::TriggerRule Rule(absl::string_view json) {
  const auto spec =
      ParseTriggerSpec(absl::StrCat(R"({"rules": [)", json, "]}"));
  EXPECT_TRUE(spec.ok()) << spec.status();
  return WithDefaults(*spec).rules(0);
}

TEST(CourseMemoryTest, IsBoundedAndGivenBack) {
  CourseMemory memory(10000);
  v1::TensorStats stats;
  stats.set_norm_f(1);
  {
    CourseWatch watch(Rule(R"({"name": "a", "move": {}})"), &memory);
    int moved = 0;
    for (int round = 0; round < 30; ++round) {
      stats.set_norm_f(round < 29 ? 1 : 1000);
      for (int i = 0; i < 1000; ++i) {
        const auto found = watch.Look(round, absl::StrCat("Module.", i), "x",
                                      stats, /*rests=*/false);
        // The first values are watched, the others are not.
        if (found.has_value()) EXPECT_EQ(i, moved++);
      }
    }
    EXPECT_GT(moved, 20);
    EXPECT_LT(moved, 50);
    EXPECT_GT(memory.left_out(), 0u);
  }
  EXPECT_TRUE(memory.Take(10000));
}

TEST_F(CourseWatchTest, ManyNamesAreToldOnce) {
  Set(R"({"name": "sharp", "move": {"window": 1000}})");
  for (int i = 0; i < 5000; ++i) Step(1, absl::StrCat("Module.", i));
  ASSERT_THAT(errors_, SizeIs(1));
  EXPECT_THAT(errors_[0], HasSubstr("no memory for more values"));
}

}  // namespace
}  // namespace rankprobe
