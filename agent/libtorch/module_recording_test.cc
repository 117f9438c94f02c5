// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "agent/libtorch/testing/debugger_fixture.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl()
      : first(register_module("first", torch::nn::Linear(4, 8))),
        second(register_module("second", torch::nn::Linear(8, 2))) {}
  at::Tensor forward(const at::Tensor& x) {
    if (debugger == nullptr) return second(torch::relu(first(x)));
    auto h = debugger->Forward("model.first", first, x);
    return debugger->Forward("model.second", second, torch::relu(h));
  }
  PrecisionDebugger* debugger = nullptr;
  torch::nn::Linear first, second;
};
TORCH_MODULE(TwoLayers);

TEST_F(LibtorchDebuggerTest, ModulesParametersAndTheirGradients) {
  auto debugger = Make(Config("L0"));
  TwoLayers model;
  model->debugger = debugger.get();
  const auto x = torch::randn({5, 4}, torch::requires_grad());
  debugger->Start();
  debugger->Forward("model", model, x).sum().backward();
  debugger->Stop();
  debugger->Step();
  EXPECT_THAT(Names(),
              IsSupersetOf({"Module.model.TwoLayers.forward.0",
                            "Module.model.TwoLayers.backward.0",
                            "Module.model.first.Linear.forward.0",
                            "Module.model.first.Linear.backward.0",
                            "Module.model.second.Linear.forward.0",
                            "Module.model.second.Linear.backward.0",
                            "Module.model.first.Linear.parameters_grad.0",
                            "Module.model.second.Linear.parameters_grad.0"}));
  for (const std::string& name : Names())
    EXPECT_THAT(name, Not(HasSubstr("Aten."))) << "L0 records modules only";
  const auto& first = WithOutput("Module.model.first.Linear.forward.0");
  ASSERT_EQ(first.parameters().items_size(), 2);
  EXPECT_EQ(first.parameters().items(0).name(), "weight");
  ExpectStats(first.parameters().items(0).value(), model->first->weight);
  const auto& backward = WithOutput("Module.model.first.Linear.backward.0");
  ExpectStats(backward.output().items(0), x.grad());
  bool weight_seen = false;
  for (const auto& entry : received_.records) {
    const v1::CallPhase& call = entry.record.call();
    if (call.entry() != "Module.model.first.Linear.parameters_grad.0") continue;
    for (const v1::NamedValue& item : call.gradients().items()) {
      if (item.name() != "weight") continue;
      weight_seen = true;
      const auto& list = item.value();
      ExpectStats(list.has_list() ? list.list().items(0) : list,
                  model->first->weight.grad());
    }
  }
  EXPECT_TRUE(weight_seen);
  EXPECT_THAT(Faults(), IsEmpty());
}

TEST_F(LibtorchDebuggerTest, MixPutsCallsUnderTheirModules) {
  auto debugger = Make(Config("mix"));
  TwoLayers model;
  model->debugger = debugger.get();
  debugger->Start();
  debugger->Forward("model", model, torch::randn({5, 4}));
  debugger->Step();
  std::map<std::string, std::string> parents;
  for (const auto& entry : received_.records)
    if (entry.record.has_edge())
      parents[entry.record.edge().entry()] = entry.record.edge().parent();
  EXPECT_EQ(parents["Aten.addmm.0.forward"],
            "Module.model.first.Linear.forward.0");
  EXPECT_EQ(parents["Aten.relu.0.forward"], "Module.model.TwoLayers.forward.0");
  EXPECT_EQ(parents["Module.model.first.Linear.forward.0"],
            "Module.model.TwoLayers.forward.0");
  EXPECT_EQ(parents["Module.model.TwoLayers.forward.0"], "");
}

struct ThrowingImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    torch::relu(x);
    throw std::runtime_error("the user's own");
  }
};
TORCH_MODULE(Throwing);

TEST_F(LibtorchDebuggerTest, AnExceptionOfTheModelReachesTheUser) {
  auto debugger = Make(Config("mix"));
  Throwing bad;
  debugger->Start();
  EXPECT_THROW(debugger->Forward("bad", bad, torch::ones({2})),
               std::runtime_error);
  EXPECT_THROW(torch::matmul(torch::ones({2, 3}), torch::ones({2, 3})),
               c10::Error);
  // Later calls are recorded, and not as children of the failed module.
  torch::neg(torch::ones({2}));
  debugger->Step();
  std::map<std::string, std::string> parents;
  for (const auto& entry : received_.records)
    if (entry.record.has_edge())
      parents[entry.record.edge().entry()] = entry.record.edge().parent();
  EXPECT_EQ(Names().count("Aten.neg.0.forward"), 1u);
  EXPECT_EQ(parents["Aten.neg.0.forward"], "");
  EXPECT_EQ(Names().count("Module.bad.Throwing.forward.0"), 1u);
}

TEST_F(LibtorchDebuggerTest, StopBeforeBackwardKeepsTheGradients) {
  auto debugger = Make(Config("L1"));
  const auto x = torch::randn({3}, torch::requires_grad());
  debugger->Start();
  const auto y = torch::sin(x).sum();
  debugger->Stop();
  torch::cos(x);  // not recorded
  y.backward();
  debugger->Step();
  EXPECT_EQ(Names().count("Aten.sin.0.backward"), 1u);
  EXPECT_EQ(Names().count("Aten.cos.0.forward"), 0u);
}

TEST_F(LibtorchDebuggerTest, GradientsAfterTheStepAreNotMixedIn) {
  auto debugger = Make(Config("L1"));
  const auto x = torch::randn({3}, torch::requires_grad());
  debugger->Start();
  const auto y = torch::sin(x).sum();
  debugger->Step();
  const size_t records = received_.records.size();
  y.backward();
  debugger->Start();
  debugger->Step();
  for (size_t i = records; i < received_.records.size(); ++i)
    EXPECT_NE(received_.records[i].record.call().entry(),
              "Aten.sin.0.backward");
}

TEST_F(LibtorchDebuggerTest, SaveRecordsTheTensorAndItsGradient) {
  auto debugger = Make(Config("debug"));
  const auto x = torch::randn({3}, torch::requires_grad());
  const auto y = x * 2.0;
  debugger->Save(y, "y");
  (y * 3.0).sum().backward();
  debugger->Step();
  EXPECT_THAT(received_.Calls(0),
              ElementsAre("y.0.debug", "y_grad.0.debug", "y_grad.0.debug"));
  ExpectStats(received_.Find("y.0.debug", false)->debug(), y);
  ExpectStats(received_.records.at(3).record.call().debug(),
              torch::full({3}, 3.0));
}

TEST_F(LibtorchDebuggerTest, NothingIsWatchedWhenNothingIsWanted) {
  auto debugger = Make(Config("L1", R"(, "dump_enable": false)"));
  debugger->Start();
  EXPECT_FALSE(debugger->recording());
  const auto x = torch::randn({3}, torch::requires_grad());
  torch::sin(x).sum().backward();
  debugger->Step();
  EXPECT_THAT(received_.records, IsEmpty());
}

std::vector<at::Tensor> Train(PrecisionDebugger* debugger) {
  torch::manual_seed(3);
  TwoLayers model;
  model->debugger = debugger;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    if (debugger != nullptr) debugger->Start();
    const auto x = torch::randn({16, 4});
    const auto out = debugger == nullptr ? model->forward(x)
                                         : debugger->Forward("model", model, x);
    optimizer.zero_grad();
    torch::mse_loss(out, torch::ones_like(out)).backward();
    optimizer.step();
    if (debugger != nullptr) {
      debugger->Stop();
      debugger->Step();
    }
  }
  return model->parameters();
}

TEST_F(LibtorchDebuggerTest, TrainingIsBitIdenticalWithEveryLevelAndTask) {
  const auto plain = Train(nullptr);
  for (const char* level : {"L0", "L1", "mix"}) {
    for (const char* more : {"", R"(, "statistics": {"summary_mode": "md5"})",
                             R"(, "statistics": {"summary_mode": "xor"})"}) {
      auto debugger = Make(Config(level, more));
      const auto watched = Train(debugger.get());
      ASSERT_EQ(plain.size(), watched.size());
      for (size_t i = 0; i < plain.size(); ++i)
        EXPECT_TRUE(torch::equal(plain[i], watched[i])) << level << more;
      EXPECT_THAT(Faults(), IsEmpty());
      EXPECT_GT(Names().size(), 5u);
    }
  }
}

}  // namespace
}  // namespace rankprobe
