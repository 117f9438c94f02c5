// SPDX-License-Identifier: Apache-2.0
// Steps that record nothing, one after another.
#include <memory>

#include "agent/runtime/testing/recorder_fixture.h"
#include "agent/runtime/triggers/trigger_watcher.h"
#include "gmock/gmock.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;

class IdleStepTest : public testing::RecorderFixture {
 protected:
  void Full() {
    recorder_->Start();
    recorder_->Step();
  }

  std::unique_ptr<Recorder> recorder_ =
      Make(R"({"dump_path": "d", "level": "L1", "dump_enable": false})");
};

TEST_F(IdleStepTest, IsCountedAndReported) {
  EXPECT_FALSE(recorder_->StartIdle()) << "no step has begun yet";
  Full();
  EXPECT_TRUE(recorder_->StartIdle());
  EXPECT_TRUE(recorder_->StepIdle());
  EXPECT_TRUE(recorder_->StartIdle());
  EXPECT_TRUE(recorder_->StepIdle());
  EXPECT_EQ(recorder_->current_step(), 3);
  EXPECT_THAT(received_.steps_begun, ElementsAre(0, 1, 2));
  EXPECT_TRUE(received_.records.empty());
}

TEST_F(IdleStepTest, BeginsInFullAfterASecond) {
  Full();
  clock_.Advance(absl::Milliseconds(999));
  EXPECT_TRUE(recorder_->StartIdle());
  EXPECT_TRUE(recorder_->StepIdle());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_FALSE(recorder_->StartIdle());
  Full();
  EXPECT_TRUE(recorder_->StartIdle());
}

TEST_F(IdleStepTest, IsNoneIfThePlanOfTheCollectorRecords) {
  Full();
  absl::StatusOr<ConfigResult> config =
      ParseConfig(R"({"dump_path": "d", "level": "L1"})", {});
  ASSERT_TRUE(config.ok());
  received_.remote = {std::make_shared<const Plan>(std::move(config->plan)), 1,
                      true};
  EXPECT_FALSE(recorder_->StartIdle());
  recorder_->Start();
  EXPECT_TRUE(recorder_->recording());
  EXPECT_FALSE(recorder_->StepIdle()) << "it has begun";
  recorder_->Stop();
  recorder_->Step();
  EXPECT_EQ(recorder_->current_step(), 2);
}

TEST_F(IdleStepTest, IsNoneWithTriggerRules) {
  TriggerWatcher watcher(&clock_, [](v1::AgentEvent) {});
  received_.watcher = &watcher;
  recorder_ =
      Make(R"({"dump_path": "d", "level": "L1", "dump_enable": false})");
  Full();
  EXPECT_TRUE(recorder_->StartIdle());
  EXPECT_TRUE(recorder_->StepIdle());
  v1::TriggerSpec spec;
  v1::TriggerRule* rule = spec.add_rules();
  rule->set_name("r");
  rule->mutable_non_finite();
  watcher.Configure(spec);
  EXPECT_FALSE(recorder_->StartIdle());
  EXPECT_FALSE(recorder_->StepIdle());
  recorder_.reset();
}

}  // namespace
}  // namespace rankprobe
