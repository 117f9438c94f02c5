// SPDX-License-Identifier: Apache-2.0
// A step that begins behind the last one of a program.
#include <memory>

#include "agent/runtime/recorder/recorder.h"
#include "agent/runtime/testing/fake_session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

class EmptyStepTest : public ::testing::Test {
 protected:
  EmptyStepTest() {
    RecorderOptions options;
    options.config_json = R"({"dump_path": "d", "level": "L1"})";
    options.rank = 0;
    auto recorder = Recorder::Create(
        options, std::make_unique<testing::FakeSession>(&received_), &clock_);
    EXPECT_TRUE(recorder.ok()) << recorder.status();
    recorder_ = *std::move(recorder);
  }
  void Call() {
    recorder_->Outputs(recorder_->BeginApi("Torch", "relu"),
                       [](CallBuilder&, v1::CallPhase*) {});
  }

  testing::Received received_;
  ManualClock clock_;
  std::unique_ptr<Recorder> recorder_;
};

TEST_F(EmptyStepTest, IsNotThere) {
  EXPECT_FALSE(recorder_->ForgetEmptyStep()) << "none has begun";
  recorder_->Start();
  v1::RunFact fact;
  fact.set_section("a");
  recorder_->RecordFacts({fact});
  EXPECT_TRUE(recorder_->ForgetEmptyStep());
  EXPECT_FALSE(recorder_->ForgetEmptyStep());
  EXPECT_FALSE(recorder_->recording());
  recorder_.reset();
  EXPECT_TRUE(received_.records.empty());
}

TEST_F(EmptyStepTest, WithACallItIsKept) {
  recorder_->Start();
  Call();
  EXPECT_FALSE(recorder_->ForgetEmptyStep());
  recorder_->Stop();
  recorder_->Step();
  recorder_->Start();
  EXPECT_TRUE(recorder_->ForgetEmptyStep()) << "the next one";
}

// Its begin is with the collector: nothing can take it back.
TEST_F(EmptyStepTest, WhatWasSentIsKept) {
  recorder_->Start();
  recorder_->Stop();
  EXPECT_FALSE(recorder_->ForgetEmptyStep());
}

}  // namespace
}  // namespace rankprobe
