// SPDX-License-Identifier: Apache-2.0
// Gradients of module calls of C++ programs: their values, and that rankprobe
// adds no node to the graph.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>

#include <stdexcept>

#include "agent/libtorch/testing/debugger_fixture.h"

namespace rankprobe {
namespace {

using ::testing::IsEmpty;

// The structure of a transformer's block: a norm that reads its input three
// times, and a residual that reads it once more.
struct RmsNormImpl : torch::nn::Module {
  explicit RmsNormImpl(int64_t width)
      : weight(register_parameter("weight", torch::ones({width}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return x * torch::rsqrt((x * x).mean(-1, true) + 1e-6) * weight;
  }
  at::Tensor weight;
};
TORCH_MODULE(RmsNorm);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : norm(register_module("norm", RmsNorm(width))),
        up(register_module("up", torch::nn::Linear(width, 3 * width))),
        down(register_module("down", torch::nn::Linear(3 * width, width))) {}
  at::Tensor forward(at::Tensor x) {
    const auto call = [this](const char* name, auto& module, at::Tensor in) {
      return debugger == nullptr ? module->forward(in)
                                 : debugger->Forward(name, module, in);
    };
    const at::Tensor h = call("norm", norm, x);
    return x + call("down", down,
                    torch::silu(call("up", up, h)) *
                        torch::sigmoid(x).repeat({1, 3}));
  }
  PrecisionDebugger* debugger = nullptr;
  RmsNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct DeepImpl : torch::nn::Module {
  DeepImpl() {
    for (int i = 0; i < 6; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block(17)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i]->debugger = debugger;
      x = debugger == nullptr
              ? blocks[i]->forward(x)
              : debugger->Forward("block" + std::to_string(i), blocks[i], x);
    }
    return x;
  }
  PrecisionDebugger* debugger = nullptr;
  std::vector<Block> blocks;
};
TORCH_MODULE(Deep);

class ModuleGradientsTest : public LibtorchDebuggerTest {
 protected:
  const v1::Value& GradientOfInput(const std::string& module, int i = 0) {
    return Backward(module).output().items(i);
  }
  const v1::Value& GradientOfOutput(const std::string& module, int i = 0) {
    return Backward(module).input().items(i);
  }
  const v1::CallPhase& Backward(const std::string& module) {
    return WithOutput("Module." + module + ".backward.0");
  }
  size_t Backwards(const std::string& module) {
    size_t count = 0;
    for (const auto& entry : received_.records) {
      count +=
          entry.record.has_call() &&
          entry.record.call().entry() == "Module." + module + ".backward.0";
    }
    return count;
  }
};

std::vector<at::Tensor> TrainDeep(PrecisionDebugger* debugger,
                                  bool switched = false) {
  torch::manual_seed(5);
  Deep model;
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  std::vector<at::Tensor> all;
  for (int step = 0; step < 10; ++step) {
    PrecisionDebugger* const watching =
        switched && step % 3 == 1 ? nullptr : debugger;
    model->debugger = watching;
    if (watching != nullptr) watching->Start();
    const auto x = torch::randn({9, 17});
    const auto out = watching == nullptr ? model->forward(x)
                                         : watching->Forward("model", model, x);
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(out, torch::ones_like(out));
    loss.backward();
    all.push_back(loss.detach());
    optimizer.step();
    if (watching != nullptr) {
      watching->Stop();
      watching->Step();
    }
  }
  for (const at::Tensor& parameter : model->parameters())
    all.push_back(parameter.detach());
  return all;
}

// A view before each module, which an earlier version added, would change the
// order in which the gradients of x are summed.
TEST_F(ModuleGradientsTest, ResidualsAndNormsTrainBitIdentically) {
  const auto plain = TrainDeep(nullptr);
  for (const char* level : {"L0", "L1", "mix"}) {
    for (const bool switched : {false, true}) {
      auto debugger = Make(Config(level));
      const auto watched = TrainDeep(debugger.get(), switched);
      ASSERT_EQ(plain.size(), watched.size());
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_TRUE(torch::equal(plain[i], watched[i]))
            << level << (switched ? ", switched" : "") << ", value " << i;
      }
      EXPECT_THAT(Faults(), IsEmpty());
    }
  }
}

TEST_F(ModuleGradientsTest, TheModuleGetsTheProgramsOwnTensor) {
  struct SeesImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      seen = x.unsafeGetTensorImpl();
      return x * 2;
    }
    const c10::TensorImpl* seen = nullptr;
  };
  auto debugger = Make(Config("L0"));
  auto module = std::make_shared<SeesImpl>();
  auto x = torch::randn({3}, torch::requires_grad());
  debugger->Start();
  const auto y = debugger->Forward("m", module, x);
  EXPECT_EQ(module->seen, x.unsafeGetTensorImpl());
  EXPECT_EQ(y.grad_fn()->next_edge(0).function->name(),
            "torch::autograd::AccumulateGrad");
}

// Temporaries and tensors that are not const are recorded like const ones.
TEST_F(ModuleGradientsTest, EveryKindOfTensorArgumentIsRecorded) {
  auto debugger = Make(Config("L0"));
  torch::nn::Linear layer(3, 3);
  const auto constant = torch::ones({2, 3});
  auto variable = torch::ones({2, 3});
  debugger->Start();
  debugger->Forward("constant", layer, constant);
  debugger->Forward("variable", layer, variable);
  debugger->Forward("temporary", layer, torch::ones({2, 3}));
  debugger->Step();
  for (const char* name : {"constant", "variable", "temporary"}) {
    const auto& forward =
        Forward(std::string("Module.") + name + ".Linear.forward.0");
    ASSERT_EQ(forward.input_args().items_size(), 1) << name;
    ExpectStats(forward.input_args().items(0), constant);
  }
}

TEST_F(ModuleGradientsTest, AnInputsGradientIsWhatTheModuleSendsThere) {
  auto debugger = Make(Config("L0"));
  RmsNorm norm(4);
  const auto leaf = torch::randn({5, 4}, torch::requires_grad());
  const auto x = leaf * 2;
  debugger->Start();
  const auto y = debugger->Forward("norm", norm, x);
  // Another use of x, outside of the module.
  (y.sum() + (x * 100).sum()).backward();
  debugger->Step();
  const auto own = (leaf.detach() * 2).requires_grad_();
  norm->forward(own).sum().backward();
  ExpectStats(GradientOfInput("norm.RmsNorm"), own.grad());
  ExpectStats(GradientOfOutput("norm.RmsNorm"), torch::ones({5, 4}));
  EXPECT_EQ(Backwards("norm.RmsNorm"), 1u);
  EXPECT_THAT(Faults(), IsEmpty());
}

struct TwoInputsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
    return a * 2 + b * b;
  }
};
TORCH_MODULE(TwoInputs);

TEST_F(ModuleGradientsTest, OneTensorAsTwoInputsHasOneGradient) {
  auto debugger = Make(Config("L0"));
  TwoInputs module;
  const auto x = torch::randn({4}, torch::requires_grad());
  debugger->Start();
  debugger->Forward("two", module, x, x).sum().backward();
  debugger->Step();
  ExpectStats(GradientOfInput("two.TwoInputs"), x.grad());
  EXPECT_EQ(GradientOfInput("two.TwoInputs", 1).scalar().s(),
            "not recorded: the same tensor as an input before it");
}

TEST_F(ModuleGradientsTest, AnInputThatIsNotUsedIsNull) {
  struct FirstImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& a, const at::Tensor&) { return a * 3; }
  };
  auto debugger = Make(Config("L0"));
  auto module = std::make_shared<FirstImpl>();
  const auto a = torch::randn({4}, torch::requires_grad());
  const auto b = torch::randn({4}, torch::requires_grad());
  debugger->Start();
  debugger->Forward("first", module, a, b).sum().backward();
  debugger->Step();
  const std::string name = Names().begin()->substr(7);
  const std::string path = name.substr(0, name.find(".backward"));
  ExpectStats(GradientOfInput(path), a.grad());
  EXPECT_FALSE(GradientOfInput(path, 1).has_tensor());
}

TEST_F(ModuleGradientsTest, ModulesThatChangeTheirInput) {
  auto debugger = Make(Config("L0"));
  torch::nn::ReLU in_place(torch::nn::ReLUOptions(/*inplace=*/true));
  const auto leaf = torch::randn({6}, torch::requires_grad());
  auto x = leaf * 3;
  debugger->Start();
  debugger->Forward("relu", in_place, x).sum().backward();
  debugger->Step();
  ExpectStats(GradientOfInput("relu.ReLU"), leaf.grad() / 3);
  EXPECT_THAT(Faults(), IsEmpty());
}

TEST_F(ModuleGradientsTest, AViewThatIsChangedInPlaceSaysSo) {
  auto debugger = Make(Config("L0"));
  torch::nn::ReLU in_place(torch::nn::ReLUOptions(/*inplace=*/true));
  const auto leaf = torch::randn({4, 6}, torch::requires_grad());
  auto base = leaf * 3;
  auto view = base.slice(0, 0, 2);
  debugger->Start();
  debugger->Forward("relu", in_place, view).sum().backward();
  debugger->Step();
  EXPECT_EQ(GradientOfInput("relu.ReLU").scalar().s(),
            "not recorded: the module changed its input in place");
}

TEST_F(ModuleGradientsTest, WhatIsHandedOnHasTheGradientOfTheOutput) {
  auto debugger = Make(Config("L0"));
  torch::nn::Identity identity;
  auto leaf = torch::randn({6}, torch::requires_grad());
  for (int step = 0; step < 3; ++step) {
    received_.records.clear();
    debugger->Start();
    (debugger->Forward("same", identity, leaf) * 5).sum().backward();
    debugger->Step();
    const auto five = torch::full({6}, 5.0);
    ExpectStats(GradientOfInput("same.Identity"), five);
    ExpectStats(GradientOfOutput("same.Identity"), five);
    // Hooks of earlier steps were removed from the leaf.
    EXPECT_EQ(Backwards("same.Identity"), 1u) << step;
  }
  EXPECT_THAT(Faults(), IsEmpty());
}

struct HeadsImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    return {x * 2, x * x};
  }
};
TORCH_MODULE(Heads);

// The second output is not used, so its gradient never arrives.
TEST_F(ModuleGradientsTest, AnOutputThatIsNotUsedHoldsNothingUp) {
  auto debugger = Make(Config("L0"));
  Heads heads;
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(4, 4));
  const auto leaf = torch::randn({3, 1, 4}, torch::requires_grad());
  debugger->Start();
  const auto inner = std::get<0>(debugger->Forward("inner", heads, leaf * 1));
  const auto outer = std::get<0>(debugger->Forward("leaf", heads, leaf));
  (inner.sum() + outer.sum()).backward();
  debugger->Step();
  for (const char* name : {"inner.Heads", "leaf.Heads"}) {
    ExpectStats(GradientOfInput(name), torch::full({3, 1, 4}, 2.0));
    ExpectStats(GradientOfOutput(name), torch::ones({3, 1, 4}));
    EXPECT_FALSE(GradientOfOutput(name, 1).has_tensor());
    EXPECT_EQ(Backwards(name), 1u);
  }
  EXPECT_THAT(Faults(), IsEmpty());
}

TEST_F(ModuleGradientsTest, TwoPassesThroughOneGraph) {
  auto debugger = Make(Config("L0"));
  Heads heads;
  const auto x = torch::randn({4}, torch::requires_grad());
  debugger->Start();
  const auto [first, second] = debugger->Forward("heads", heads, x);
  first.sum().backward({}, /*retain_graph=*/true);
  second.sum().backward();
  debugger->Step();
  EXPECT_EQ(Backwards("heads.Heads"), 2u);
  EXPECT_TRUE(torch::equal(x.grad(), 2 + 2 * x.detach()));
  EXPECT_THAT(Faults(), IsEmpty());
}

struct ThrowsBackward : torch::autograd::Function<ThrowsBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*,
                            const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("the user's own");
  }
};

TEST_F(ModuleGradientsTest, ABackwardThatFailsIsTheUsersAndTheNextIsRecorded) {
  auto debugger = Make(Config("L0"));
  TwoInputs two;
  const auto x = torch::randn({4}, torch::requires_grad());
  debugger->Start();
  const auto bad =
      debugger->Forward("bad", two, ThrowsBackward::apply(x * 1), x).sum();
  EXPECT_THROW(bad.backward(), std::runtime_error);
  debugger->Forward("good", two, x, x.detach()).sum().backward();
  debugger->Step();
  ExpectStats(GradientOfInput("good.TwoInputs"), torch::full({4}, 2.0));
  EXPECT_THAT(Faults(), IsEmpty());
}

TEST_F(ModuleGradientsTest, TheGraphIsFreedAsWithoutUs) {
  auto debugger = Make(Config("L0"));
  torch::nn::Linear layer(4, 4);
  const auto x = torch::randn({4}, torch::requires_grad());
  debugger->Start();
  // The layer's node keeps its input.
  at::Tensor input = x * 1;
  const c10::weak_intrusive_ptr<c10::StorageImpl> kept(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
          input.storage().unsafeGetStorageImpl()));
  at::Tensor y = debugger->Forward("layer", layer, input);
  input.reset();
  EXPECT_FALSE(kept.expired());
  y.sum().backward();
  y.reset();
  EXPECT_TRUE(kept.expired());
  debugger->Step();
}

struct SaysWhenGone : testing::FakeSession {
  SaysWhenGone(testing::Received* received, bool* g)
      : FakeSession(received), gone(g) {}
  ~SaysWhenGone() override { *gone = true; }
  bool* const gone;
};

// A leaf lives on, and would keep its hooks alive.
TEST_F(ModuleGradientsTest, NothingIsLeftOnALeaf) {
  bool gone = false;
  RecorderOptions options;
  options.config_json = Config("L0");
  auto recorder = Recorder::Create(
      std::move(options), std::make_unique<SaysWhenGone>(&received_, &gone),
      &clock_);
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  auto debugger = PrecisionDebugger::Over(*std::move(recorder));
  torch::nn::Identity identity;
  auto leaf = torch::randn({6}, torch::requires_grad());
  debugger->Start();
  (debugger->Forward("same", identity, leaf) * 5).sum().backward();
  debugger->Forward("again", identity, leaf);
  debugger->Step();
  debugger.reset();
  EXPECT_TRUE(gone);
}

}  // namespace
}  // namespace rankprobe
