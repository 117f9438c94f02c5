// SPDX-License-Identifier: Apache-2.0
// A step that begins after the last one of a program.
#include <memory>

#include "agent/runtime/testing/recorder_fixture.h"

namespace rankprobe {
namespace {

class EmptyStepTest : public testing::RecorderFixture {
 protected:
  void Call() {
    recorder_->calls().Outputs(recorder_->calls().BeginApi("Torch", "relu"),
                               [](CallBuilder&, v1::CallPhase*) {});
  }

  std::unique_ptr<Recorder> recorder_ =
      Make(R"({"dump_path": "d", "level": "L1"})");
};

TEST_F(EmptyStepTest, IsNotThere) {
  EXPECT_FALSE(recorder_->ForgetEmptyStep()) << "none has begun";
  recorder_->Start();
  v1::RunFact fact;
  fact.set_section("a");
  recorder_->reports().RecordFacts({fact});
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

// The collector has its begin: nothing can undo it.
TEST_F(EmptyStepTest, WhatWasSentIsKept) {
  recorder_->Start();
  recorder_->Stop();
  EXPECT_FALSE(recorder_->ForgetEmptyStep());
}

}  // namespace
}  // namespace rankprobe
