// SPDX-License-Identifier: Apache-2.0
// The debugger for LibTorch programs. Same calls as msprobe's
// PrecisionDebugger:
//
//   auto debugger = rankprobe::PrecisionDebugger::Create(
//       {.config_path = "config.json"});
//   for (...) {
//     (*debugger)->Start();
//     x = (*debugger)->Forward("conv1", conv1, x);   // L0 and mix
//     loss.backward(); optimizer.step();
//     (*debugger)->Stop();
//     (*debugger)->Step();
//   }
//
// L1 and mix record ATen calls under the prefix Aten. A C++ program cannot
// record whether a call came from torch::, a Tensor method or nn::functional
// (the Python names Functional.*, Tensor.*, Torch.*), Python call stacks,
// keyword arguments (all are positional), and modules that are not called
// through Forward.
//
// Ownership: one per process, kept until the end of training. Threads: the
// training thread; hooks may run on autograd's threads. Config file: if it has
// dump_enable, each Start checks it again, and the collector makes an edit a
// plan of the run (docs/design.md, "Who decides").
// Failure: Create reports a bad config. Nothing after it throws or stops
// training; a missing collector means nothing is recorded.
#ifndef RANKPROBE_AGENT_LIBTORCH_PRECISION_DEBUGGER_H_
#define RANKPROBE_AGENT_LIBTORCH_PRECISION_DEBUGGER_H_

#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/libtorch/aten_observer.h"
#include "agent/libtorch/module_hooks.h"
#include "agent/runtime/recorder/filter_notices.h"
#include "agent/runtime/session/config_file.h"
#include "agent/runtime/session/options.h"

namespace rankprobe {

struct DebuggerOptions {
  // Path of config.json. If empty, config_json is used, else the default
  // config.
  std::string config_path;
  std::string config_json;
  // Override the file.
  ConfigOverrides overrides;
  // Collector and identity; unset fields come from the environment (options.h).
  AgentSettings agent;
};

class PrecisionDebugger {
 public:
  // INVALID_ARGUMENT: the config is invalid; every fault is listed. NOT_FOUND:
  // the file does not exist.
  static absl::StatusOr<std::unique_ptr<PrecisionDebugger>> Create(
      const DebuggerOptions& options);
  // Makes a debugger with an existing recorder, which must not be null.
  static std::unique_ptr<PrecisionDebugger> Over(
      std::unique_ptr<Recorder> recorder) {
    return std::unique_ptr<PrecisionDebugger>(
        new PrecisionDebugger(std::move(recorder)));
  }
  ~PrecisionDebugger();

  void Start();
  void Stop();
  void Step();
  // Sets the number of the first step, >= 0. Call it before the loop.
  absl::Status SetInitStep(int64_t step) {
    return context_->recorder->SetInitStep(step);
  }
  // At level debug, records `tensor` as {name}.{N}.debug, and its gradient.
  void Save(const at::Tensor& tensor, const std::string& name,
            bool save_backward = true);

  // Reports the loss to triggers (docs/formats.md, "Triggers"). Call it between
  // Start and Step; it costs nothing unless a trigger needs it.
  void ReportLoss(double loss) {
    context_->recorder->reports().ReportLoss(loss);
  }
  // Reports tensors that should be equal on all ranks, for example parameters.
  // Reads all of their elements, but only if a trigger needs it.
  void ReportReplica(const std::vector<at::Tensor>& tensors);

  // Calls module->forward(args...) and records it as Module.{path}.{Class}.
  // Results may be a tensor or a tuple of tensors.
  template <typename Module, typename... Args>
  auto Forward(const std::string& path, Module& module, Args&&... args);

  bool recording() const { return context_->recorder->recording(); }
  Recorder* recorder() { return context_->recorder.get(); }

 private:
  explicit PrecisionDebugger(std::shared_ptr<Recorder> recorder);

  void FollowFile();
  // Prints one line on stderr, if there is one.
  static void Say(const std::optional<std::string>& notice);

  static std::vector<at::Tensor> Tensors(const at::Tensor& tensor) {
    return {tensor};
  }
  template <typename... T>
  static std::vector<at::Tensor> Tensors(const std::tuple<T...>& tuple) {
    return std::apply(
        [](const auto&... item) { return std::vector<at::Tensor>{item...}; },
        tuple);
  }

  // Null if there is no file, or if it is not a switch.
  std::unique_ptr<ConfigFile> file_;
  ConfigOverrides overrides_;
  FilterNotices notices_;
  const std::shared_ptr<HookContext> context_;
  AtenObserver observer_;
  ParameterHooks parameters_;
};

template <typename Module, typename... Args>
auto PrecisionDebugger::Forward(const std::string& path, Module& module,
                                Args&&... args) {
  if (!recording()) return module->forward(std::forward<Args>(args)...);
  ModuleCall call(context_, path, *module);
  if (!call.active()) return module->forward(std::forward<Args>(args)...);
  (call.AddInput(args), ...);
  parameters_.Watch(call.module_name(), *module);
  call.RecordInputs();
  auto output = module->forward(std::forward<Args>(args)...);
  call.RecordOutputs(Tensors(output),
                     !std::is_same_v<decltype(output), at::Tensor>);
  return output;
}

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_LIBTORCH_PRECISION_DEBUGGER_H_
