// SPDX-License-Identifier: Apache-2.0
// L0 of a C++ program: the work that PrecisionDebugger::Forward does around a
// module. The module receives the same tensors as without rankprobe.
// Same ownership, threading and failure rules as AtenObserver.
#ifndef RANKPROBE_AGENT_LIBTORCH_MODULE_HOOKS_H_
#define RANKPROBE_AGENT_LIBTORCH_MODULE_HOOKS_H_

#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "agent/libtorch/hook_context.h"
#include "agent/libtorch/module_gradients.h"

namespace rankprobe {

// One forward call of one module.
class ModuleCall {
 public:
  // "Module.{path}.{Class}"; the class is the module's C++ class without
  // namespace and "Impl".
  ModuleCall(std::shared_ptr<HookContext> context, const std::string& path,
             const torch::nn::Module& module);
  ~ModuleCall();
  ModuleCall(const ModuleCall&) = delete;
  ModuleCall& operator=(const ModuleCall&) = delete;

  bool active() const { return !call_.forward_entry.empty(); }
  const std::string& module_name() const { return name_; }

  // Adds the next argument of the forward. An argument that is neither a tensor
  // nor a number is recorded as null.
  template <typename T>
  void AddInput(const T& value) {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      AddTensor(value);
    } else {
      AddPlain(value);
    }
  }
  void RecordInputs();
  void RecordOutputs(const std::vector<at::Tensor>& outputs, bool tuple);

 private:
  void AddTensor(const at::Tensor& input);
  void AddPlain(int64_t value) { arguments_.emplace_back(value); }
  void AddPlain(int value) {
    arguments_.emplace_back(static_cast<int64_t>(value));
  }
  void AddPlain(double value) { arguments_.emplace_back(value); }
  void AddPlain(bool value) { arguments_.emplace_back(value); }
  template <typename T>
  void AddPlain(const T&) {
    arguments_.emplace_back();
  }

  const std::shared_ptr<HookContext> context_;
  const torch::nn::Module& module_;
  const std::string name_;
  RecordedCall call_;
  bool ended_ = false;
  std::vector<c10::IValue> arguments_;
  std::optional<ModuleGradients> gradients_;
};

// Records the gradients of the modules' own parameters. Each parameter is
// hooked once in the process.
class ParameterHooks {
 public:
  explicit ParameterHooks(std::shared_ptr<HookContext> context)
      : context_(std::move(context)) {}
  void Watch(const std::string& module_name, const torch::nn::Module& module);

 private:
  const std::shared_ptr<HookContext> context_;
  // A shared or an intrusive pointer, depending on the version of PyTorch.
  using NodePtr = std::decay_t<decltype(torch::autograd::impl::grad_accumulator(
      at::Tensor()))>;
  // Keeps the accumulators alive, and with them the hooks.
  std::unordered_map<const c10::TensorImpl*, NodePtr> watched_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_LIBTORCH_MODULE_HOOKS_H_
