// SPDX-License-Identifier: Apache-2.0
// Triggers and budgets apply to saved values (level debug, task monitor) as to
// those of calls.
#include <limits>
#include <vector>

#include "agent/runtime/testing/recorder_fixture.h"

namespace rankprobe {
namespace {

using ::testing::SizeIs;

class SavedWatchTest : public testing::RecorderFixture {
 protected:
  SavedWatchTest()
      : watcher_(&clock_, [this](v1::AgentEvent event) {
          events_.push_back(std::move(event));
        }) {
    received_.watcher = &watcher_;
    recorder_ = Make(R"({"dump_path": "d", "level": "debug"})");
  }

  std::optional<SavedValue> Save(float number) {
    data_ = {number};
    const TensorInfo info = Info(data_, sizes_, strides_);
    const auto fill = [&](CallBuilder& b, v1::Value* v) { b.Tensor(info, v); };
    return recorder_->saved().Save("y", fill, [](CallBuilder&, v1::Value*) {});
  }

  std::vector<v1::AgentEvent> events_;
  TriggerWatcher watcher_;
  std::unique_ptr<Recorder> recorder_;
  std::vector<float> data_;
  const std::vector<int64_t> sizes_ = {1}, strides_ = {1};
};

TEST_F(SavedWatchTest, ATriggerFindsThem) {
  v1::TriggerSpec spec;
  v1::TriggerRule* const rule = spec.add_rules();
  rule->set_name("nan");
  rule->mutable_non_finite();
  rule->set_cool_down_ms(1);
  watcher_.Configure(spec);
  Save(1);
  recorder_->Step();
  EXPECT_THAT(events_, SizeIs(0));
  const auto saved = Save(std::numeric_limits<float>::quiet_NaN());
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_EQ(events_[0].fired().entry(), "y.0.debug");
  EXPECT_EQ(events_[0].fired().step(), 1);
  EXPECT_EQ(events_[0].fired().detail(), "value 0: Max NaN");
  clock_.Advance(absl::Seconds(1));
  // Their gradients arrive later.
  TensorInfo info;
  info.view = {data_.data(), v1::DTYPE_FLOAT32, sizes_, strides_};
  recorder_->saved().SaveGradient(
      *saved, "", [&](CallBuilder& b, v1::Value* v) { b.Tensor(info, v); });
  ASSERT_THAT(events_, SizeIs(2));
  EXPECT_EQ(events_[1].fired().entry(), "y_grad.0.debug");
  recorder_->Step();
}

TEST_F(SavedWatchTest, TheyCostTheBudget) {
  v1::TriggerSpec spec;
  spec.mutable_budget()->set_bytes_per_step(1);
  watcher_.Configure(spec);
  Save(1);
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_EQ(events_[0].budget().budget(), "bytes_per_step");
  EXPECT_EQ(events_[0].budget().degraded(), 2u);
  recorder_->Step();
}

}  // namespace
}  // namespace rankprobe
