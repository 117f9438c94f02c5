// SPDX-License-Identifier: Apache-2.0
// config set, and edits of the config file: the effect of their dump_enable;
// recording for some steps ends with these.
#include <string>

#include "collector/testing/edits_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::FollowingRank;
using ::testing::HasSubstr;
using testing::kOff;
using testing::kOn;
using ::testing::Not;

constexpr char kSaysNothing[] = R"({"dump_path": "d", "level": "L0"})";

class ConfigSetTest : public testing::EditsFixture {
 protected:
  void SetUp() override {
    EditsFixture::SetUp();
    Join(0, &rank_);
    Run({&rank_}, 3);
  }

  void Set(const std::string& config) {
    v1::SetConfigRequest request;
    request.set_run("run");
    request.set_config_json(config);
    result_.reset();
    control_->plans().SetConfig(
        request,
        [this](absl::StatusOr<v1::SwitchResult> r) { result_ = std::move(r); },
        "anna");
  }
  // Enables dumping for some steps and begins the first of them. Returns the
  // step after the last.
  int64_t EnableFor(int64_t steps) {
    v1::SetDumpEnableRequest request;
    request.set_run("run");
    request.set_enable(true);
    request.mutable_options()->set_for_steps(steps);
    result_.reset();
    control_->plans().SetDumpEnable(
        request,
        [this](absl::StatusOr<v1::SwitchResult> r) { result_ = std::move(r); });
    while (!result_.has_value()) Run({&rank_}, 1);
    return (*result_)->effective_at_step() + steps;
  }
  // Returns the step after the last recorded one; 0 if recording stays on.
  int64_t End() {
    const v1::GetConfigResponse config = Config();
    if (!config.enabled()) return config.effective_at_step();
    return config.for_steps() == 0
               ? 0
               : config.effective_at_step() + config.for_steps();
  }

  FollowingRank rank_;
};

TEST_F(ConfigSetTest, DumpEnableInItSwitches) {
  Set(kSaysNothing);
  Run({&rank_});
  EXPECT_FALSE(rank_.in_force.enabled());
  Set(kOn);
  Run({&rank_});
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_TRUE(rank_.in_force.enabled());
  EXPECT_EQ(End(), 0);
  Set(kSaysNothing);
  Run({&rank_});
  EXPECT_TRUE(rank_.in_force.enabled());
  EXPECT_EQ(End(), 0);
  Set(kOff);
  Run({&rank_});
  EXPECT_FALSE(rank_.in_force.enabled());
}

TEST_F(ConfigSetTest, WhatIsOnForSomeStepsEndsWithThem) {
  for (const char* config : {kSaysNothing, kOn}) {
    SCOPED_TRACE(config);
    const int64_t end = EnableFor(12);
    Set(config);
    Run({&rank_}, 4);
    ASSERT_TRUE(result_.has_value() && result_->ok());
    EXPECT_TRUE(rank_.in_force.enabled());
    EXPECT_EQ(rank_.in_force.config_json(), config);
    EXPECT_EQ(End(), end);
    Run({&rank_}, 20);
  }
  // After the steps, as if dumping were off.
  Set(kSaysNothing);
  Run({&rank_});
  EXPECT_FALSE(rank_.in_force.enabled());
  Set(kOn);
  Run({&rank_});
  EXPECT_TRUE(rank_.in_force.enabled());
}

TEST_F(ConfigSetTest, NoStepIsRecordedBehindTheLast) {
  for (const char* config : {kSaysNothing, kOn}) {
    SCOPED_TRACE(config);
    const int64_t end = EnableFor(2);
    ASSERT_EQ(rank_.step, end - 2) << "one is to come";
    Set(config);
    Run({&rank_});
    ASSERT_TRUE(result_.has_value() && result_->ok());
    EXPECT_FALSE(rank_.in_force.enabled());
    EXPECT_GE(rank_.in_force.effective_at_step(), end);
  }
}

TEST_F(ConfigSetTest, OneRequestStaysUntilAllAreWantedAgain) {
  const auto enable = [&](std::optional<std::string> id) {
    v1::SetDumpEnableRequest request;
    request.set_run("run");
    request.set_enable(true);
    if (id.has_value()) request.set_request_id(*id);
    result_.reset();
    control_->plans().SetDumpEnable(
        request,
        [this](absl::StatusOr<v1::SwitchResult> r) { result_ = std::move(r); });
    while (!result_.has_value()) Run({&rank_}, 1);
    return result_->ok() ? (*result_)->summary() : result_->status().ToString();
  };
  const auto section = [this] {
    return ParseConfig(rank_.in_force.config_json(), {})->plan.request_id;
  };
  EXPECT_THAT(enable("slow\n1"), HasSubstr("of request \"slow\\n1\" only"));
  EXPECT_EQ(section(), "slow\n1");
  EXPECT_THAT(enable(std::nullopt), HasSubstr("only"));
  EXPECT_EQ(section(), "slow\n1");
  EXPECT_THAT(enable(""), Not(HasSubstr("only")));
  EXPECT_EQ(section(), "");
  Set(R"({"dump_path": "d", "task": "structure"})");
  Run({&rank_});
  EXPECT_THAT(enable("a"), HasSubstr("the config has task structure"));
}

TEST_F(ConfigSetTest, AnEditedFileNeitherMakesItLonger) {
  const int64_t end = EnableFor(12);
  Edit(rank_, kSaysNothing);
  Run({&rank_}, 4);
  EXPECT_TRUE(rank_.in_force.enabled());
  EXPECT_EQ(End(), end);
  Edit(rank_, kOn);
  Run({&rank_}, 3);
  EXPECT_EQ(End(), end);
  Run({&rank_}, 20);
  Edit(rank_, R"({"dump_path": "d", "dump_enable": true, "level": "L0"})");
  Run({&rank_});
  EXPECT_TRUE(rank_.in_force.enabled());
  EXPECT_EQ(End(), 0);
}

}  // namespace
}  // namespace rankprobe
