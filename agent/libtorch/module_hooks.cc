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
      // Locking returns a reference only while the parameter exists.
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
      context_->recorder->calls().ParameterGradient(module_, parameter_,
                                                    host.info());
  }

  const std::shared_ptr<HookContext> context_;
  const std::string module_;
  const std::string parameter_;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> variable_;
};

}  // namespace

ModuleCall::ModuleCall(std::shared_ptr<HookContext> context,
                       const std::string& path, const torch::nn::Module& module)
    : context_(std::move(context)),
      module_(module),
      name_(absl::StrCat("Module.", path, ".", ClassName(module))),
      call_(context_->recorder->calls().BeginModule(name_)) {
  if (!active()) return;
  gradients_.emplace(context_, call_);
}

ModuleCall::~ModuleCall() {
  if (active() && !ended_) context_->recorder->calls().Abandon(call_);
}

void ModuleCall::AddTensor(const at::Tensor& input) {
  if (!active()) return;
  arguments_.emplace_back(input);
  gradients_->AddInput(input);
}

void ModuleCall::RecordInputs() {
  if (!active()) return;
  try {
    const SuppressObserver suppress;
    gradients_->EndInputs();
    context_->recorder->calls().Inputs(
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
    context_->recorder->calls().Outputs(call_, [&](CallBuilder& builder,
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
    if (!context_->recorder->calls().WantsBackward(call_)) return;
    const SuppressObserver suppress;
    gradients_->Outputs(outputs);
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
