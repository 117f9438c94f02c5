// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/triggers/trigger_watcher.h"

#include <limits>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

class TriggerWatcherTest : public ::testing::Test {
 protected:
  TriggerWatcherTest()
      : watcher_(&clock_, [this](v1::AgentEvent event) {
          events_.push_back(std::move(event));
        }) {}

  static v1::CallPhase Phase(const std::string& entry, double max,
                             double norm = 1) {
    v1::CallPhase phase;
    phase.set_entry(entry);
    v1::TensorStats* stats =
        phase.mutable_output()->add_items()->mutable_tensor()->mutable_stats();
    stats->set_max_f(max);
    stats->set_min_f(0);
    stats->set_norm_f(norm);
    return phase;
  }

  static v1::TriggerRule* AddRule(v1::TriggerSpec* spec, const char* name) {
    v1::TriggerRule* rule = spec->add_rules();
    rule->set_name(name);
    return rule;
  }

  std::unique_ptr<RecordBuffer> Records(int64_t step, size_t bytes = 10) {
    auto buffer = std::make_unique<RecordBuffer>();
    buffer->batch()->set_step(step);
    while (buffer->ApproxBytes() < bytes)
      buffer->Add()->mutable_call()->mutable_output()->add_items();
    buffer->Add();
    return buffer;
  }

  ManualClock clock_;
  std::vector<v1::AgentEvent> events_;
  TriggerWatcher watcher_;
};

TEST_F(TriggerWatcherTest, NotANumberFiresOnceUntilItsCoolDownIsOver) {
  v1::TriggerSpec spec;
  v1::TriggerRule* rule = AddRule(&spec, "nan");
  rule->mutable_non_finite();
  rule->set_cool_down_ms(1000);
  rule->set_max_fires(2);
  watcher_.Configure(spec);
  ASSERT_TRUE(watcher_.active());
  watcher_.BeginStep(7);
  watcher_.OnPhase(Phase("a", 1));
  EXPECT_THAT(events_, SizeIs(0));
  watcher_.OnPhase(Phase("b", kNan));
  watcher_.OnPhase(Phase("c", kInf));
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_EQ(events_[0].fired().entry(), "b");
  EXPECT_EQ(events_[0].fired().step(), 7);
  EXPECT_EQ(events_[0].fired().rule(), "nan");
  EXPECT_EQ(events_[0].fired().detail(), "output 0: Max NaN");
  clock_.Advance(absl::Milliseconds(1001));
  watcher_.OnPhase(Phase("c", kInf));
  ASSERT_THAT(events_, SizeIs(2));
  EXPECT_EQ(events_[1].fired().detail(), "output 0: Max Infinity");
  // Its budget is used up, and a new spec with the same rule does not restore
  // it.
  watcher_.Configure(spec);
  clock_.Advance(absl::Seconds(10));
  watcher_.OnPhase(Phase("c", kInf));
  EXPECT_THAT(events_, SizeIs(2));
}

TEST_F(TriggerWatcherTest, InfinitiesCanBeFineAndEntriesChosen) {
  v1::TriggerSpec spec;
  v1::TriggerRule* rule = AddRule(&spec, "nan");
  rule->mutable_non_finite()->set_nan_only(true);
  rule->set_entry_contains("attn");
  watcher_.Configure(spec);
  watcher_.OnPhase(Phase("attn.softmax", -kInf));
  watcher_.OnPhase(Phase("mlp", kNan));
  EXPECT_THAT(events_, SizeIs(0));
  watcher_.OnPhase(Phase("attn.softmax", kNan));
  EXPECT_THAT(events_, SizeIs(1));
}

// The mask of an attention, in a separate phase and together with its outputs.
TEST_F(TriggerWatcherTest, AMaskIsNoFault) {
  v1::TriggerSpec spec;
  AddRule(&spec, "nan")->mutable_non_finite();
  watcher_.Configure(spec);
  const auto set = [](double max, double min, v1::Value* value) {
    value->mutable_tensor()->mutable_stats()->set_max_f(max);
    value->mutable_tensor()->mutable_stats()->set_min_f(min);
  };
  v1::CallPhase fill;
  fill.set_entry("Tensor.masked_fill.0.forward");
  set(1, -1, fill.mutable_input_args()->add_items());
  fill.mutable_input_args()->add_items()->mutable_scalar()->set_f(-kInf);
  watcher_.OnPhase(fill);
  v1::CallPhase filled;
  filled.set_entry(fill.entry());
  set(1, -kInf, filled.mutable_output()->add_items());
  watcher_.OnPhase(filled);
  v1::CallPhase softmax;
  softmax.set_entry("Torch.softmax.0.forward");
  set(1, -kInf, softmax.mutable_input_args()->add_items());
  set(1, 0, softmax.mutable_output()->add_items());
  watcher_.OnPhase(softmax);
  EXPECT_THAT(events_, SizeIs(0));
  // Made of finite values, without an infinite argument.
  v1::CallPhase log = filled;
  log.set_entry("Torch.log.0.forward");
  watcher_.OnPhase(log);
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_THAT(events_[0].fired().entry(), HasSubstr("log"));
}

// `x.new_empty(n).bernoulli_(p)`, a slice of a new buffer, `out=`.
TEST_F(TriggerWatcherTest, WhatNobodyHasWrittenIsNoFault) {
  v1::TriggerSpec spec;
  AddRule(&spec, "nan")->mutable_non_finite();
  v1::TriggerRule* const jump = AddRule(&spec, "jump");
  jump->mutable_norm_jump()->set_factor(10);
  jump->mutable_norm_jump()->set_warmup(1);
  watcher_.Configure(spec);
  const auto with_input = [](const std::string& entry, double max, double norm,
                             double output) {
    v1::CallPhase phase = Phase(entry, output);
    v1::TensorStats* const stats = phase.mutable_input_args()
                                       ->add_items()
                                       ->mutable_tensor()
                                       ->mutable_stats();
    stats->set_max_f(max);
    stats->set_norm_f(norm);
    return phase;
  };
  watcher_.OnPhase(Phase("Tensor.new_empty.0.forward", kNan));
  watcher_.OnPhase(Phase("Tensor.narrow.0.forward", kNan));
  watcher_.OnPhase(with_input("Tensor.bernoulli_.0.forward", kNan, 1, 1));
  watcher_.OnPhase(with_input("Tensor.bernoulli_.0.forward", 1, 1e30, 1));
  v1::CallPhase out = Phase("Torch.add.0.forward", 1);
  v1::NamedValue* const keyword = out.mutable_input_kwargs()->add_items();
  keyword->set_name("out");
  keyword->mutable_value()->mutable_tensor()->mutable_stats()->set_max_f(kNan);
  watcher_.OnPhase(out);
  EXPECT_THAT(events_, SizeIs(0));
  // Results of such a call are checked like any other.
  watcher_.OnPhase(with_input("Tensor.bernoulli_.1.forward", kNan, 1, kNan));
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_EQ(events_[0].fired().detail(), "output 0: Max NaN");
}

TEST_F(TriggerWatcherTest, TensorsOfPointToPointOperationsAreLookedAt) {
  v1::TriggerSpec spec;
  AddRule(&spec, "nan")->mutable_non_finite();
  watcher_.Configure(spec);
  watcher_.BeginStep(7);
  v1::CallPhase phase;
  phase.set_entry("Distributed.batch_isend_irecv.0.forward");
  v1::ValueList* operations =
      phase.mutable_input_args()->add_items()->mutable_list();
  operations->add_items()->mutable_p2p()->mutable_tensor()->mutable_stats();
  operations->add_items()
      ->mutable_p2p()
      ->mutable_tensor()
      ->mutable_stats()
      ->set_max_f(kNan);
  watcher_.OnPhase(phase);
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_EQ(events_[0].fired().detail(), "input 0: Max NaN");
}

TEST_F(TriggerWatcherTest, ANormJumpsAgainstItsOwnHistory) {
  v1::TriggerSpec spec;
  v1::TriggerRule* rule = AddRule(&spec, "jump");
  rule->mutable_norm_jump()->set_factor(10);
  rule->mutable_norm_jump()->set_warmup(3);
  watcher_.Configure(spec);
  watcher_.OnPhase(Phase("small", 1, 0.001));
  watcher_.OnPhase(Phase("grows", 1, 50));  // no history: no jump
  for (int i = 0; i < 3; ++i) {
    watcher_.OnPhase(Phase("small", 1, 0.001));
    watcher_.OnPhase(Phase("large", 1, 1000));
  }
  EXPECT_THAT(events_, SizeIs(0));
  watcher_.OnPhase(Phase("large", 1, 9000));
  EXPECT_THAT(events_, SizeIs(0));
  watcher_.OnPhase(Phase("small", 1, 0.02));
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_EQ(events_[0].fired().entry(), "small");
  EXPECT_THAT(events_[0].fired().detail(), HasSubstr("20 times"));
}

TEST_F(TriggerWatcherTest, LossBounds) {
  v1::TriggerSpec spec;
  v1::LossBound* bound = AddRule(&spec, "loss")->mutable_loss();
  bound->set_above(10);
  AddRule(&spec, "bad")->mutable_loss()->set_non_finite(true);
  watcher_.Configure(spec);
  watcher_.OnLoss(9.5);
  EXPECT_THAT(events_, SizeIs(0));
  watcher_.OnLoss(10.5);
  watcher_.OnLoss(kNan);
  ASSERT_THAT(events_, SizeIs(2));
  EXPECT_EQ(events_[0].fired().detail(), "loss 10.5 above 10");
  EXPECT_EQ(events_[1].fired().rule(), "bad");
}

TEST_F(TriggerWatcherTest, TheFlightRecorderKeepsTheLastStepsWithinItsBytes) {
  v1::TriggerSpec spec;
  spec.mutable_flight()->set_steps(3);
  spec.mutable_flight()->set_max_bytes(64 << 10);
  spec.mutable_flight()->set_ship_at_exit(true);
  EXPECT_EQ(watcher_.FlightPlan(), nullptr);
  watcher_.Configure(spec);
  ASSERT_NE(watcher_.FlightPlan(), nullptr);
  for (int64_t step = 0; step < 10; ++step) {
    watcher_.KeepFlight(Records(step));
    watcher_.KeepFlight(Records(step));
    watcher_.EndStep();
  }
  watcher_.KeepFlight(Records(10));  // in progress: stays
  std::optional<FlightRing::Contents> contents = watcher_.TakeLastFlight();
  ASSERT_TRUE(contents.has_value());
  EXPECT_EQ(contents->steps, 3u);
  EXPECT_EQ(contents->first_step, 7);
  EXPECT_EQ(contents->last_step, 9);
  EXPECT_THAT(contents->buffers, SizeIs(6));
  watcher_.KeepFlight(Records(10));
  watcher_.EndStep();
  contents = watcher_.TakeLastFlight();
  ASSERT_TRUE(contents.has_value());
  EXPECT_EQ(contents->first_step, 10);
  EXPECT_THAT(contents->buffers, SizeIs(2));
  EXPECT_FALSE(watcher_.TakeLastFlight().has_value());
}

TEST_F(TriggerWatcherTest, AStepOverTheBytesIsDroppedWholeAndOthersStay) {
  FlightRing ring;
  ring.SetLimits(10, 100 << 10);
  ring.Add(Records(0, 30 << 10));
  ring.EndStep();
  ring.Add(Records(1, 30 << 10));
  ring.EndStep();
  EXPECT_EQ(ring.steps(), 2u);
  for (int i = 0; i < 10; ++i) ring.Add(Records(2, 30 << 10));
  EXPECT_LE(ring.bytes(), 100u << 10);
  ring.EndStep();
  ring.Add(Records(3, 1 << 10));
  ring.EndStep();
  FlightRing::Contents contents = ring.Take();
  EXPECT_EQ(contents.last_step, 3);
  for (const auto& buffer : contents.buffers)
    EXPECT_NE(buffer->batch()->step(), 2) << "half a step is none";
  EXPECT_EQ(ring.bytes(), 0u);
}

TEST_F(TriggerWatcherTest, ARequestIsFollowedUntilDumpingIsOn) {
  v1::TriggerSpec spec;
  spec.mutable_flight()->set_steps(3);
  watcher_.Configure(spec);
  EXPECT_FALSE(watcher_.TakeRequestedFlight().has_value());
  for (int64_t step = 0; step < 2; ++step) {
    watcher_.KeepFlight(Records(step));
    watcher_.EndStep();
  }
  watcher_.KeepFlight(Records(2));
  watcher_.RequestFlight();
  EXPECT_EQ(watcher_.TakeRequestedFlight()->steps, 2u);
  EXPECT_FALSE(watcher_.TakeRequestedFlight().has_value());
  watcher_.EndStep();
  // The step in which the request came, and the next.
  EXPECT_EQ(watcher_.TakeRequestedFlight()->first_step, 2);
  watcher_.KeepFlight(Records(3));
  watcher_.EndStep();
  EXPECT_EQ(watcher_.TakeRequestedFlight()->first_step, 3);
  watcher_.EndStep();  // a step that was dumped
  watcher_.KeepFlight(Records(5));
  watcher_.EndStep();
  EXPECT_FALSE(watcher_.TakeRequestedFlight().has_value());
}

TEST_F(TriggerWatcherTest, TheStepsOfARuleThatFiredStayUntilTheyAreSent) {
  v1::TriggerSpec spec;
  spec.mutable_flight()->set_steps(3);
  AddRule(&spec, "nan")->mutable_non_finite();
  watcher_.Configure(spec);
  const auto end_steps = [this](int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      watcher_.KeepFlight(Records(step));
      watcher_.EndStep();
    }
  };
  end_steps(0, 9);
  watcher_.OnPhase(Phase("a", kNan));
  end_steps(10, 15);  // the request is on its way
  watcher_.RequestFlight();
  EXPECT_EQ(watcher_.TakeRequestedFlight()->first_step, 7);
  end_steps(16, 23);  // all follow the request
  EXPECT_EQ(watcher_.TakeRequestedFlight()->steps, 8u);
  end_steps(24, 60);
  EXPECT_EQ(watcher_.TakeRequestedFlight()->first_step, 24)
      << "the later ones are left out";
  end_steps(61, 70);
  EXPECT_FALSE(watcher_.TakeRequestedFlight().has_value()) << "16 steps follow";
}

TEST_F(TriggerWatcherTest, AProcessThatEndsInTheStepOfItsNanSendsThatStep) {
  v1::TriggerSpec spec;
  spec.mutable_flight()->set_steps(3);
  AddRule(&spec, "nan")->mutable_non_finite();
  watcher_.Configure(spec);
  watcher_.KeepFlight(Records(0));
  watcher_.EndStep();
  EXPECT_FALSE(watcher_.TakeLastFlight().has_value()) << "nothing has fired";
  watcher_.OnPhase(Phase("a", kNan));
  watcher_.KeepFlight(Records(1));
  const std::optional<FlightRing::Contents> contents =
      watcher_.TakeLastFlight();
  ASSERT_TRUE(contents.has_value());
  EXPECT_EQ(contents->first_step, 0);
  EXPECT_EQ(contents->last_step, 1);
}

TEST_F(TriggerWatcherTest, BudgetsDegradeInTwoStagesAndSayWhich) {
  v1::TriggerSpec spec;
  spec.mutable_budget()->set_bytes_per_step(1000);
  watcher_.Configure(spec);
  ASSERT_TRUE(watcher_.active());
  watcher_.BeginStep(1);
  EXPECT_TRUE(watcher_.Fits(1000));
  EXPECT_FALSE(watcher_.Fits(1001));
  watcher_.AddCost(600, 0);
  EXPECT_FALSE(watcher_.Fits(401));
  EXPECT_EQ(watcher_.evidence_level(), 0u);
  watcher_.AddCost(400, 0);
  EXPECT_EQ(watcher_.evidence_level(), 1u);
  watcher_.AddCost(1000, 0);
  EXPECT_EQ(watcher_.evidence_level(), 2u);
  ASSERT_THAT(events_, SizeIs(2));
  EXPECT_EQ(events_[0].budget().budget(), "bytes_per_step");
  EXPECT_EQ(events_[0].budget().degraded(), 1u);
  EXPECT_EQ(events_[1].budget().degraded(), 2u);
  watcher_.BeginStep(2);
  EXPECT_EQ(watcher_.evidence_level(), 0u);
  // The run's level stays the same over steps.
  watcher_.SetRunLevel(1);
  watcher_.BeginStep(3);
  EXPECT_EQ(watcher_.evidence_level(), 1u);
}

TEST_F(TriggerWatcherTest, TimeIsABudgetToo) {
  v1::TriggerSpec spec;
  spec.mutable_budget()->set_ms_per_step(2);
  watcher_.Configure(spec);
  watcher_.BeginStep(1);
  EXPECT_TRUE(watcher_.timed());
  watcher_.AddCost(0, 1'500'000);
  EXPECT_EQ(watcher_.evidence_level(), 0u);
  watcher_.AddCost(0, 600'000);
  EXPECT_EQ(watcher_.evidence_level(), 1u);
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_EQ(events_[0].budget().budget(), "ms_per_step");
}

TEST_F(TriggerWatcherTest, ReportsTheCallsOfTheLastWholeStep) {
  EXPECT_EQ(watcher_.ReportCalls(1).step(), -1);
  watcher_.BeginStep(4);
  watcher_.OnCall(v1::CallTrace::KIND_API, "a");
  EXPECT_EQ(watcher_.ReportCalls(1).calls().items_size(), 1);
  watcher_.OnCall(v1::CallTrace::KIND_API, "b");
  watcher_.EndStep();
  watcher_.BeginStep(5);
  watcher_.OnCall(v1::CallTrace::KIND_API, "c");
  const v1::CallReport report = watcher_.ReportCalls(9);
  EXPECT_EQ(report.id(), 9u);
  EXPECT_EQ(report.step(), 4);
  ASSERT_EQ(report.calls().items_size(), 2);
  EXPECT_EQ(report.calls().items(1).entry(), "b");
}

TEST_F(TriggerWatcherTest, ASpecWithFaultsIsNotTaken) {
  v1::TriggerSpec spec;
  spec.mutable_flight()->set_steps(5000);
  watcher_.Configure(spec);
  EXPECT_EQ(watcher_.FlightPlan(), nullptr);
}

}  // namespace
}  // namespace rankprobe
