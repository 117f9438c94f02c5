// SPDX-License-Identifier: Apache-2.0
// The tensors of the call at which a trigger rule fires are kept.
#include <cmath>
#include <limits>
#include <vector>

#include "agent/runtime/testing/recorder_fixture.h"

namespace rankprobe {
namespace {

using ::testing::SizeIs;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class FiredTensorsTest : public testing::RecorderFixture {
 protected:
  FiredTensorsTest() : watcher_(&clock_, [](v1::AgentEvent) {}) {
    received_.watcher = &watcher_;
    v1::TriggerRule* const rule = spec_.add_rules();
    rule->set_name("nan");
    rule->mutable_non_finite();
  }

  // One call with input 1 and output `made`.
  bool Run(float made) {
    const std::vector<float> in = {1}, out = {made};
    const std::vector<int64_t> sizes = {1}, strides = {1};
    const RecordedCall call = recorder_->calls().BeginApi("Torch", "log");
    const auto inputs = [&](CallBuilder& b, v1::CallPhase* p) {
      b.Tensor(Info(in, sizes, strides), p->mutable_input_args()->add_items());
    };
    recorder_->calls().Inputs(call, inputs);
    const bool in_full =
        recorder_->calls().Outputs(call, [&](CallBuilder& b, v1::CallPhase* p) {
          b.Tensor(Info(out, sizes, strides), p->mutable_output()->add_items());
        });
    if (in_full) recorder_->calls().InputsInFull(call, inputs);
    return in_full;
  }
  void Begin() {
    watcher_.Configure(spec_);
    recorder_ = Make(R"({"dump_path": "d", "level": "L1"})");
    recorder_->Start();
  }
  void End() {
    recorder_->Stop();
    recorder_->Step();
  }
  // Number of payloads of the step, according to the records.
  int Payloads() const {
    int count = 0;
    for (const auto& [step, record] : received_.records) {
      for (const v1::Value& value : record.call().input_args().items())
        count += value.tensor().has_payload();
      for (const v1::Value& value : record.call().output().items())
        count += value.tensor().has_payload();
    }
    return count;
  }

  v1::TriggerSpec spec_;
  TriggerWatcher watcher_;
  std::unique_ptr<Recorder> recorder_;
};

TEST_F(FiredTensorsTest, WhatTheCallWasGivenAndWhatItMadeAreKept) {
  Begin();
  EXPECT_FALSE(Run(0));
  EXPECT_TRUE(Run(kNan));
  EXPECT_FALSE(Run(kNan)) << "the rule rests";
  End();
  EXPECT_THAT(received_.payloads, SizeIs(2));
  EXPECT_EQ(Payloads(), 2);
  const v1::CallPhase* const made = received_.Find("Torch.log.1.forward", true);
  ASSERT_NE(made, nullptr);
  EXPECT_TRUE(std::isnan(made->output().items(0).tensor().stats().max_f()));
  const v1::StepEnd& end = received_.records.back().record.step_end();
  EXPECT_EQ(end.payloads(), 2u);
  EXPECT_EQ(end.call_phases(), 7u);
  EXPECT_EQ(end.lost_payloads(), 0u);
}

TEST_F(FiredTensorsTest, ARuleThatAsksForStatisticsKeepsNone) {
  spec_.mutable_rules(0)->set_raise_to(v1::TriggerRule::EVIDENCE_STATISTICS);
  Begin();
  EXPECT_FALSE(Run(kNan));
  End();
  EXPECT_THAT(received_.payloads, SizeIs(0));
}

TEST_F(FiredTensorsTest, WhatDoesNotFitIsNoLoss) {
  for (const bool budget : {false, true}) {
    received_.records.clear();
    received_.shed_payloads = !budget;
    if (budget) spec_.mutable_budget()->set_bytes_per_rank(1);
    Begin();
    Run(kNan);
    End();
    EXPECT_THAT(received_.payloads, SizeIs(0));
    EXPECT_EQ(Payloads(), 0);
    const v1::StepEnd& end = received_.records.back().record.step_end();
    EXPECT_EQ(end.lost_payloads(), 0u);
    EXPECT_EQ(end.payloads(), 0u);
  }
}

}  // namespace
}  // namespace rankprobe
