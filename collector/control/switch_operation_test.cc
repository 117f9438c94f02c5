// SPDX-License-Identifier: Apache-2.0
#include "collector/control/switch_operation.h"

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

// One rank, whose messages take `latency_`, and a disk that takes no time.
class SwitchOperationTest : public ::testing::Test {
 protected:
  void Start() {
    SwitchOperation::Request request;
    request.spec.set_config_json(R"({"dump_path": "d"})");
    request.spec.set_enabled(true);
    request.config = *RunPlans::Parse(std::string(request.spec.config_json()));
    SwitchOperation::Actions actions;
    actions.send = [this](const std::string&, const v1::Directive& directive) {
      inbox_.push_back(directive);
    };
    actions.next_epoch = [this] { return ++epoch_; };
    actions.whose = [](const std::string&) { return v1::Identity(); };
    actions.look = [this](const std::string&) {
      return SwitchProgress{step_, told_step_ns_, idle_};
    };
    actions.save = [this](const v1::PlanSpec&,
                          const SwitchOperation::Saved& saved) {
      saved(disk_, true);
    };
    actions.agree = [this](const std::shared_ptr<const CompiledPlan>& plan) {
      agreed_ = plan->spec.effective_at_step();
    };
    actions.converge = [](const std::string&, const std::string&) {};
    actions.take_back = [this] { ++taken_back_; };
    actions.now = [this] { return now_; };
    operation_ = std::make_shared<SwitchOperation>(
        std::move(request), std::vector<std::string>{"session"},
        std::move(actions),
        [this](absl::StatusOr<v1::SwitchResult> r) { result_ = std::move(r); });
    operation_->Start();
  }

  // The rank continues for `time`.
  void Train(absl::Duration time) {
    now_ += time;
    step_ += time / absl::Nanoseconds(step_ns_);
  }

  // Answers all messages; returns false if a commit was among them.
  bool Answer() {
    Train(latency_);
    for (; !inbox_.empty(); inbox_.pop_front()) {
      if (inbox_.front().has_commit()) return false;
      if (!inbox_.front().has_prepare()) continue;
      const v1::PlanSpec plan = inbox_.front().prepare().plan();
      v1::PlanPrepared answer;
      answer.set_epoch(plan.epoch());
      answer.set_current_step(step_);
      answer.set_accepted(plan.effective_at_step() > step_);
      inbox_.pop_front();
      operation_->OnPrepared("session", answer);
      return true;
    }
    return true;
  }

  absl::Duration latency_ = absl::Milliseconds(5);
  int64_t step_ns_ = 1'000'000, told_step_ns_ = 0;
  absl::Time now_ = absl::UnixEpoch();
  int64_t step_ = 100;
  uint64_t epoch_ = 0;
  int64_t agreed_ = -1;
  bool idle_ = false;
  absl::Status disk_;
  int taken_back_ = 0;
  std::deque<v1::Directive> inbox_;
  std::shared_ptr<SwitchOperation> operation_;
  std::optional<absl::StatusOr<v1::SwitchResult>> result_;
};

TEST_F(SwitchOperationTest, RanksThatTurnOutSlowerGetAnEarlierStep) {
  step_ns_ = told_step_ns_ = 23'000;
  Start();
  const int64_t first = inbox_[0].prepare().plan().effective_at_step();
  EXPECT_GT(first - step_, 4000);
  // It was fast only for a moment.
  step_ns_ = told_step_ns_ = 25'000'000;
  while (Answer()) ASSERT_FALSE(result_.has_value());
  EXPECT_LT((agreed_ - step_) * absl::Nanoseconds(step_ns_), absl::Seconds(2));
  EXPECT_EQ(epoch_, 2u);
}

TEST_F(SwitchOperationTest, AStepThatSlowRanksReachSoonStays) {
  step_ns_ = told_step_ns_ = 1'000'000;
  Start();
  step_ns_ = told_step_ns_ = 4'000'000;
  while (Answer()) ASSERT_FALSE(result_.has_value());
  EXPECT_EQ(epoch_, 1u);
}

TEST_F(SwitchOperationTest, RanksThatTurnOutFasterGetALaterStep) {
  for (const int64_t fast : {1'000'000, 20'000}) {
    result_.reset();
    inbox_.clear();
    step_ns_ = fast;
    told_step_ns_ = 10'000'000'000;  // the last step was a long one
    Start();
    EXPECT_EQ(inbox_[0].prepare().plan().effective_at_step(), step_ + 2);
    while (Answer()) ASSERT_FALSE(result_.has_value()) << fast;
    // In time, and not too late.
    EXPECT_GT(agreed_, step_) << fast;
    EXPECT_LT((agreed_ - step_) * absl::Nanoseconds(fast), absl::Seconds(2));
  }
}

TEST_F(SwitchOperationTest, AMomentOfSpeedMovesTheStepByLittle) {
  told_step_ns_ = 25'000'000;
  Start();
  // Five steps in almost no time.
  now_ += absl::Microseconds(1);
  step_ += 5;
  v1::PlanPrepared answer;
  answer.set_epoch(1);
  answer.set_current_step(step_);
  inbox_.clear();
  operation_->OnPrepared("session", answer);
  ASSERT_EQ(epoch_, 2u);
  EXPECT_LE(inbox_.back().prepare().plan().effective_at_step() - step_, 64);
}

TEST_F(SwitchOperationTest, ADiskThatFailsForTheStepOfARestChangesNothing) {
  step_ns_ = told_step_ns_ = 1'000'000'000;
  Start();
  while (Answer()) ASSERT_FALSE(result_.has_value());
  ASSERT_EQ(agreed_, step_ + 2);
  inbox_.clear();
  idle_ = true;
  disk_ = absl::UnavailableError("full");
  now_ += absl::Seconds(3);
  operation_->Tick(now_);
  ASSERT_EQ(inbox_.back().prepare().plan().effective_at_step(), step_ + 1);
  Answer();
  EXPECT_FALSE(result_.has_value());
  EXPECT_EQ(taken_back_, 1);
  v1::PlanApplied applied;
  applied.set_epoch(1);
  applied.set_step(agreed_);
  operation_->OnApplied("session", applied);
  ASSERT_TRUE(result_.has_value() && result_->ok());
  EXPECT_EQ((*result_)->effective_at_step(), agreed_);
}

}  // namespace
}  // namespace rankprobe
