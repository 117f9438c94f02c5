// SPDX-License-Identifier: Apache-2.0
#include "agent/libtorch/module_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rankprobe {
namespace {

using torch::autograd::variable_list;

std::string ClassName(const torch::nn::Module& module) {
  const std::string full = module.name();
  const size_t colon = full.rfind("::");
  const std::string last =
      colon == std::string::npos ? full : full.substr(colon + 2);
  return std::string(absl::StripSuffix(last, "Impl"));
}

class AccumulatedHook : public torch::autograd::FunctionPostHook {
 public:
  AccumulatedHook(std::shared_ptr<HookContext> context, std::string module,
                  std::string parameter, const at::Tensor& variable)
      : context_(std::move(context)),
        module_(std::move(module)),
        parameter_(std::move(parameter)),
        variable_(variable.getIntrusivePtr()) {}

  variable_list operator()(const variable_list& outputs,
                           const variable_list&) override {
    const SuppressObserver suppress;
    try {
      // Locking gives a reference only while the parameter exists.
      if (auto impl = variable_.lock()) {
        const at::Tensor gradient = at::Tensor(std::move(impl)).grad();
        if (gradient.defined()) Record(gradient);
      }
    } catch (const std::exception& e) {
      context_->recorder->ReportFault(absl::StrCat("gradient of ", module_, ".",
                                                   parameter_, ": ", e.what()));
    }
    return outputs;
  }

 private:
  void Record(const at::Tensor& gradient) {
    const HostTensor host(gradient);
    if (host.valid())
      context_->recorder->ParameterGradient(module_, parameter_, host.info());
  }

  const std::shared_ptr<HookContext> context_;
  const std::string module_;
  const std::string parameter_;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> variable_;
};

}  // namespace

// Gradients that have arrived for one call; complete when those of all inputs
// that want one are there, or of all outputs when no input does.
struct ModuleCall::Gradients {
  std::shared_ptr<HookContext> context;
  RecordedCall call;
  std::mutex mutex;
  std::vector<at::Tensor> of_outputs, of_inputs;
  size_t missing_outputs = 0, missing_inputs = 0;
  bool any_input = false;
  bool recorded = false;

  void OutputArrived(size_t i, const at::Tensor& gradient) {
    const std::lock_guard<std::mutex> lock(mutex);
    of_outputs[i] = gradient;
    if (missing_outputs > 0) --missing_outputs;
    if (!any_input && missing_outputs == 0) Record();
  }
  void InputArrived(size_t i, const at::Tensor& gradient) {
    const std::lock_guard<std::mutex> lock(mutex);
    of_inputs[i] = gradient;
    if (missing_inputs > 0) --missing_inputs;
    if (missing_inputs == 0) Record();
  }

 private:
  void Record() {
    if (std::exchange(recorded, true)) return;
    const SuppressObserver suppress;
    try {
      context->recorder->Backward(call, [&](CallBuilder& builder,
                                            v1::CallPhase* phase) {
        phase->mutable_input();
        for (const at::Tensor& t : of_outputs)
          context->adapter.Add(builder, t, phase->mutable_input()->add_items());
        phase->mutable_output();
        if (!any_input) return;
        for (const at::Tensor& t : of_inputs)
          context->adapter.Add(builder, t,
                               phase->mutable_output()->add_items());
      });
    } catch (const std::exception& e) {
      context->recorder->ReportFault(
          absl::StrCat("backward of ", call.forward_entry, ": ", e.what()));
    }
    of_outputs.clear();
    of_inputs.clear();
  }
};

ModuleCall::ModuleCall(std::shared_ptr<HookContext> context,
                       const std::string& path, const torch::nn::Module& module)
    : context_(std::move(context)),
      module_(module),
      name_(absl::StrCat("Module.", path, ".", ClassName(module))),
      call_(context_->recorder->BeginModule(name_)) {
  if (!active()) return;
  gradients_ = std::make_shared<Gradients>();
  gradients_->context = context_;
  gradients_->call = call_;
}

ModuleCall::~ModuleCall() {
  if (active() && !ended_) context_->recorder->Abandon(call_);
}

at::Tensor ModuleCall::Input(const at::Tensor& input) {
  if (!active()) return input;
  arguments_.emplace_back(input);
  const size_t index = gradients_->of_inputs.size();
  gradients_->of_inputs.emplace_back();
  if (!input.defined() || !input.requires_grad() || !at::GradMode::is_enabled())
    return input;
  const SuppressObserver suppress;
  at::Tensor view = input.view_as(input);
  gradients_->any_input = true;
  ++gradients_->missing_inputs;
  view.register_hook(
      [gradients = gradients_, index](const at::Tensor& gradient) -> void {
        gradients->InputArrived(index, gradient);
      });
  return view;
}

void ModuleCall::RecordInputs() {
  if (!active()) return;
  try {
    context_->recorder->Inputs(
        call_, [&](CallBuilder& builder, v1::CallPhase* phase) {
          phase->mutable_input_kwargs();
          phase->mutable_input_args();
          for (const c10::IValue& value : arguments_) {
            context_->adapter.Add(builder, value,
                                  phase->mutable_input_args()->add_items());
          }
        });
  } catch (const std::exception& e) {
    context_->recorder->ReportFault(
        absl::StrCat(call_.forward_entry, ": ", e.what()));
  }
}

void ModuleCall::RecordOutputs(const std::vector<at::Tensor>& outputs,
                               bool tuple) {
  if (!active()) return;
  ended_ = true;
  try {
    context_->recorder->Outputs(call_, [&](CallBuilder& builder,
                                           v1::CallPhase* phase) {
      phase->mutable_output();
      for (const at::Tensor& t : outputs)
        context_->adapter.Add(builder, t, phase->mutable_output()->add_items());
      phase->mutable_parameters();
      for (const auto& item : module_.named_parameters(/*recurse=*/false)) {
        v1::NamedValue* parameter = phase->mutable_parameters()->add_items();
        parameter->set_name(item.key());
        context_->adapter.Add(builder, item.value(),
                              parameter->mutable_value());
      }
    });
    if (!context_->recorder->WantsBackward(call_)) return;
    gradients_->of_outputs.resize(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].defined() && outputs[i].requires_grad())
        ++gradients_->missing_outputs;
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !outputs[i].requires_grad()) continue;
      outputs[i].register_hook(
          [gradients = gradients_, i](const at::Tensor& gradient) -> void {
            gradients->OutputArrived(i, gradient);
          });
    }
  } catch (const std::exception& e) {
    context_->recorder->ReportFault(
        absl::StrCat(call_.forward_entry, ": ", e.what()));
  }
}

void ParameterHooks::Watch(const std::string& module_name,
                           const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const at::Tensor& parameter = item.value();
    if (!parameter.requires_grad() ||
        watched_.count(parameter.unsafeGetTensorImpl()) > 0)
      continue;
    auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
    if (accumulator == nullptr) continue;
    accumulator->add_post_hook(std::make_unique<AccumulatedHook>(
        context_, module_name, item.key(), parameter));
    watched_[parameter.unsafeGetTensorImpl()] = std::move(accumulator);
  }
}

}  // namespace rankprobe
