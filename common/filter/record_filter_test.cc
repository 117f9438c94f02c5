// SPDX-License-Identifier: Apache-2.0
#include "common/filter/record_filter.h"

#include <random>
#include <utility>
#include <vector>

#include "common/records/entry_names.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using Item = v1::CallTrace::Item;

// A random training step: APIs inside nested modules, gradients between them.
class RandomStep {
 public:
  explicit RandomStep(std::mt19937* random) : random_(*random) {}

  std::vector<Item> Make() {
    while (items_.size() < 60) Block(0);
    return std::move(items_);
  }

 private:
  int Pick(int n) {
    return static_cast<int>(random_() % static_cast<unsigned>(n));
  }

  void Add(v1::CallTrace::Kind kind, const std::string& entry) {
    items_.emplace_back();
    items_.back().set_kind(kind);
    items_.back().set_entry(entry);
  }

  void Block(int depth) {
    switch (Pick(6)) {
      case 0:
        if (depth < 4) {
          const std::string module =
              "Module." + std::string(kModules[Pick(3)]) + ".Linear";
          const std::string entry =
              ModuleEntry(module, number_++ % 4, /*forward=*/true);
          Add(v1::CallTrace::KIND_MODULE_BEGIN, entry);
          for (int i = Pick(5); i > 0; --i) Block(depth + 1);
          // Some modules are left by an exception and have no end.
          if (Pick(8) != 0) Add(v1::CallTrace::KIND_MODULE_END, entry);
        }
        break;
      case 1: {
        const std::string module =
            "Module." + std::string(kModules[Pick(3)]) + ".Linear";
        const std::string entry = ModuleEntry(module, Pick(4), false);
        Add(v1::CallTrace::KIND_MODULE_BEGIN, entry);
        Add(v1::CallTrace::KIND_MODULE_END, entry);
        if (Pick(2) == 0) Add(v1::CallTrace::KIND_PARAMETERS_GRAD, module);
        break;
      }
      default:
        Add(v1::CallTrace::KIND_API,
            ApiEntry("Torch", kOps[Pick(4)], number_++ % 5, Pick(4) != 0));
    }
  }

  static constexpr const char* kModules[] = {"attn", "mlp", "relu"};
  static constexpr const char* kOps[] = {"relu", "add", "matmul", "softmax"};
  std::mt19937& random_;
  std::vector<Item> items_;
  int64_t number_ = 0;
};

std::shared_ptr<const Plan> RandomPlan(std::mt19937* random,
                                       const std::vector<Item>& step) {
  const auto pick = [&](size_t n) { return (*random)() % n; };
  auto plan = std::make_shared<Plan>();
  plan->level = static_cast<Level>(pick(3));
  plan->risk_level = static_cast<RiskLevel>(pick(3));
  plan->data_mode.forward = pick(4) != 0;
  plan->data_mode.backward = !plan->data_mode.forward || pick(4) != 0;
  plan->data_mode.parameters_grad = plan->data_mode.backward;
  if (pick(2) == 0) {
    plan->scope = {step[pick(step.size())].entry(),
                   step[pick(step.size())].entry()};
  }
  if (pick(2) == 0) {
    for (size_t i = 1 + pick(2); i > 0; --i) {
      const char* const parts[] = {"relu", "mlp", "add.1", "attn", "forward.0"};
      plan->list.push_back(parts[pick(5)]);
    }
  }
  return plan;
}

v1::CallPhase PhaseOf(const Item& item) {
  v1::CallPhase phase;
  phase.set_entry(item.entry());
  const bool backward = IsBackwardEntry(item.entry());
  switch (item.kind()) {
    case v1::CallTrace::KIND_API:
      phase.set_kind(backward ? v1::CALL_KIND_API_BACKWARD
                              : v1::CALL_KIND_API_FORWARD);
      break;
    case v1::CallTrace::KIND_PARAMETERS_GRAD:
      phase.set_entry(ParametersGradEntry(item.entry(), 0));
      phase.set_kind(v1::CALL_KIND_PARAMETERS_GRAD);
      break;
    default:
      phase.set_kind(backward ? v1::CALL_KIND_MODULE_BACKWARD
                              : v1::CALL_KIND_MODULE_FORWARD);
  }
  return phase;
}

// The agent and the collector decide the same for all sequences of calls, and
// however the trace is divided into records.
TEST(RecordFilterTest, DecidesWhatTheAgentDecides) {
  std::mt19937 random(29);
  int kept = 0, left_out = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::vector<Item> step = RandomStep(&random).Make();
    const auto plan = RandomPlan(&random, step);
    CallFilter agent(plan.get());
    RecordFilter gate(plan);
    v1::CallTrace trace;
    uint64_t sent = 0;
    for (const Item& item : step) {
      *trace.add_items() = item;
      Verdict verdict = Verdict::kKeep;
      switch (item.kind()) {
        case v1::CallTrace::KIND_API:
          verdict = agent.Api(item.entry());
          break;
        case v1::CallTrace::KIND_MODULE_BEGIN:
          verdict = agent.ModuleBegin(item.entry());
          break;
        case v1::CallTrace::KIND_MODULE_END:
          agent.ModuleEnd(item.entry());
          continue;
        default:
          verdict = agent.ParametersGrad(item.entry());
      }
      if (plan->level == Level::kL1 && verdict == Verdict::kLevel) {
        // The agent may have been configured to record single modules anyway.
        verdict = Verdict::kKeep;
      }
      if (!PlanHasWindows(*plan)) {
        trace.Clear();
        // A list at L0 keeps gradients of a module by what came before them;
        // no trace is sent for that, and nothing is refused for it.
        if (item.kind() == v1::CallTrace::KIND_PARAMETERS_GRAD &&
            verdict == Verdict::kList)
          continue;
      } else {
        trace.set_first(sent);
        sent += static_cast<uint64_t>(trace.items_size());
        gate.Replay(trace);
        trace.Clear();
      }
      ASSERT_EQ(VerdictName(gate.Check(PhaseOf(item))), VerdictName(verdict))
          << "round " << round << ": " << item.entry();
      ++(verdict == Verdict::kKeep ? kept : left_out);
    }
  }
  // The sequences are chosen so that both happen often.
  EXPECT_GT(kept, 10000);
  EXPECT_GT(left_out, 10000);
}

TEST(RecordFilterTest, ACallThatWasNotTracedIsOutsideEveryWindow) {
  auto plan = std::make_shared<Plan>();
  plan->level = Level::kL1;
  plan->scope = {"Torch.add.0.forward", "Torch.add.1.forward"};
  RecordFilter gate(plan);
  Item item;
  item.set_kind(v1::CallTrace::KIND_API);
  item.set_entry("Torch.add.0.forward");
  v1::CallTrace trace;
  *trace.add_items() = item;
  gate.Replay(trace);
  EXPECT_EQ(gate.Check(PhaseOf(item)), Verdict::kKeep);
  item.set_entry("Torch.add.5.forward");
  EXPECT_EQ(gate.Check(PhaseOf(item)), Verdict::kScope);
  // With a part of the trace lost the decision is not known, so nothing is
  // refused.
  trace.set_first(7);
  gate.Replay(trace);
  EXPECT_EQ(gate.Check(PhaseOf(item)), Verdict::kKeep);
}

TEST(RecordFilterTest, SectionsFollowTheDataMode) {
  auto plan = std::make_shared<Plan>();
  plan->level = Level::kL1;
  plan->risk_level = RiskLevel::kAll;
  plan->data_mode.input = false;
  const RecordFilter gate(plan);
  v1::CallPhase phase;
  phase.set_entry("Torch.add.0.forward");
  phase.set_kind(v1::CALL_KIND_API_FORWARD);
  phase.mutable_output();
  EXPECT_EQ(gate.Check(phase), Verdict::kKeep);
  phase.mutable_input_args();
  EXPECT_EQ(gate.Check(phase), Verdict::kDataMode);
}

TEST(RecordFilterTest, StructureHasNoCallsAndDebugOnlyItsOwn) {
  auto plan = std::make_shared<Plan>();
  plan->task = Task::kStructure;
  plan->level = Level::kMix;
  v1::CallPhase phase;
  phase.set_entry("Torch.add.0.forward");
  phase.set_kind(v1::CALL_KIND_API_FORWARD);
  EXPECT_EQ(RecordFilter(plan).Check(phase), Verdict::kLevel);
  plan->task = Task::kStatistics;
  plan->level = Level::kDebug;
  EXPECT_EQ(RecordFilter(plan).Check(phase), Verdict::kLevel);
  phase.set_kind(v1::CALL_KIND_DEBUG);
  EXPECT_EQ(RecordFilter(plan).Check(phase), Verdict::kKeep);
}

// Task monitor keeps modules, and the values of parameters and of the step that
// SavedValues::Save records.
TEST(RecordFilterTest, MonitorTakesModulesAndSavedValues) {
  auto plan = std::make_shared<Plan>();
  plan->task = Task::kMonitor;
  plan->level = Level::kL0;
  const RecordFilter filter(plan);
  v1::CallPhase call;
  call.set_entry("Training.0.debug");
  call.set_kind(v1::CALL_KIND_DEBUG);
  EXPECT_EQ(filter.Check(call), Verdict::kKeep);
  call.set_entry("Module.fc.Linear.forward.0");
  call.set_kind(v1::CALL_KIND_MODULE_FORWARD);
  EXPECT_EQ(filter.Check(call), Verdict::kKeep);
  call.set_entry("Torch.add.0.forward");
  call.set_kind(v1::CALL_KIND_API_FORWARD);
  EXPECT_EQ(filter.Check(call), Verdict::kLevel);
  call.set_entry("Distributed.all_reduce.0.forward");
  EXPECT_EQ(filter.Check(call), Verdict::kLevel);
}

TEST(RecordFilterTest,
     MonitorTakesCommunicationOfAllCallsAndWhateverListNames) {
  auto plan = std::make_shared<Plan>();
  plan->task = Task::kMonitor;
  plan->level = Level::kL0;
  plan->list = {"layers.0"};
  plan->data_mode.forward = false;
  plan->monitor.communication = true;
  const RecordFilter filter(plan);
  v1::CallPhase call;
  call.set_kind(v1::CALL_KIND_API_FORWARD);
  call.set_entry("Distributed.all_reduce.0.forward");
  EXPECT_EQ(filter.Check(call), Verdict::kKeep);
  call.set_entry("Torch.add.0.forward");
  EXPECT_EQ(filter.Check(call), Verdict::kLevel);
  call.set_kind(v1::CALL_KIND_API_BACKWARD);
  call.set_entry("Distributed.all_reduce.0.backward");
  EXPECT_EQ(filter.Check(call), Verdict::kDataMode);
}

}  // namespace
}  // namespace rankprobe
