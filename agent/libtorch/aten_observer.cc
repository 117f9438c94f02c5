// SPDX-License-Identifier: Apache-2.0
#include "agent/libtorch/aten_observer.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <string>
#include <utility>

namespace rankprobe {
namespace {

using torch::autograd::variable_list;

constexpr char kNamespace[] = "aten::";

// The only observer of the process, because RecordFunction callbacks are plain
// function pointers. Set by Install, cleared by Remove.
std::mutex& ActiveMutex() {
  static std::mutex mutex;
  return mutex;
}
std::shared_ptr<HookContext>& ActiveContext() {
  static std::shared_ptr<HookContext> context;
  return context;
}
std::shared_ptr<HookContext> GetActive() {
  const std::lock_guard<std::mutex> lock(ActiveMutex());
  return ActiveContext();
}

// Exists from the begin to the end of one observed call.
struct CallScope : at::ObserverContext {
  CallScope() { ++SuppressionDepth(); }
  ~CallScope() override { --SuppressionDepth(); }
  std::shared_ptr<HookContext> context;
  RecordedCall call;
  // Tensors among the inputs: a result that is one of them was not created by
  // this call, and has no node of its own.
  std::vector<const c10::TensorImpl*> inputs;
};

class BackwardHook : public torch::autograd::FunctionPostHook {
 public:
  BackwardHook(std::shared_ptr<HookContext> context, RecordedCall call)
      : context_(std::move(context)), call_(std::move(call)) {}

  variable_list operator()(const variable_list& grad_inputs,
                           const variable_list& grad_outputs) override {
    const SuppressObserver suppress;
    try {
      context_->recorder->calls().Backward(
          call_, [&](CallBuilder& builder, v1::CallPhase* phase) {
            phase->mutable_input();
            for (const at::Tensor& t : grad_outputs)
              context_->adapter.Add(builder, t,
                                    phase->mutable_input()->add_items());
            phase->mutable_output();
            for (const at::Tensor& t : grad_inputs)
              context_->adapter.Add(builder, t,
                                    phase->mutable_output()->add_items());
          });
    } catch (const std::exception& e) {
      context_->recorder->ReportFault(std::string("backward of ") +
                                      call_.forward_entry + ": " + e.what());
    }
    return grad_inputs;
  }

 private:
  const std::shared_ptr<HookContext> context_;
  const RecordedCall call_;
};

const at::Tensor* FirstTensor(const c10::IValue& value) {
  if (value.isTensor())
    return value.toTensor().defined() ? &value.toTensor() : nullptr;
  return nullptr;
}

void NoteInput(const c10::IValue& value,
               std::vector<const c10::TensorImpl*>* inputs) {
  if (value.isTensor() && value.toTensor().defined())
    inputs->push_back(value.toTensor().unsafeGetTensorImpl());
}

void HookBackward(const CallScope& scope,
                  const std::vector<c10::IValue>& outputs, const char* name) {
  if (outputs.empty() || !at::GradMode::is_enabled()) return;
  at::Tensor tensor;
  if (const at::Tensor* first = FirstTensor(outputs[0])) {
    tensor = *first;
  } else if (outputs[0].isTensorList()) {
    const auto list = outputs[0].toTensorVector();
    if (!list.empty()) tensor = list[0];
  }
  if (!tensor.defined() || !tensor.requires_grad()) return;
  const std::string op(name);
  const bool in_place = !op.empty() && op.back() == '_';
  const bool passed_through =
      std::find(scope.inputs.begin(), scope.inputs.end(),
                tensor.unsafeGetTensorImpl()) != scope.inputs.end();
  if (passed_through && !in_place) return;
  const auto node = tensor.grad_fn();
  if (node == nullptr) return;
  node->add_post_hook(
      std::make_unique<BackwardHook>(scope.context, scope.call));
}

std::unique_ptr<at::ObserverContext> OnStart(const at::RecordFunction& fn) {
  if (SuppressionDepth() > 0) return nullptr;
  const std::shared_ptr<HookContext> context = GetActive();
  if (context == nullptr || !context->recorder->recording()) return nullptr;
  auto scope = std::make_unique<CallScope>();
  // A backward node: the calls that it makes are not made by the program.
  if (fn.scope() != at::RecordScope::FUNCTION) return scope;
  const std::string name = fn.name();
  if (name.rfind(kNamespace, 0) != 0) return nullptr;
  try {
    scope->context = context;
    scope->call = context->recorder->calls().BeginApi(
        "Aten", name.substr(sizeof(kNamespace) - 1));
    for (const c10::IValue& value : fn.inputs())
      NoteInput(value, &scope->inputs);
    context->recorder->calls().Inputs(
        scope->call, [&](CallBuilder& builder, v1::CallPhase* phase) {
          phase->mutable_input_kwargs();
          phase->mutable_input_args();
          for (const c10::IValue& value : fn.inputs()) {
            context->adapter.Add(builder, value,
                                 phase->mutable_input_args()->add_items());
          }
        });
  } catch (const std::exception& e) {
    context->recorder->ReportFault(name + ": " + e.what());
  }
  return scope;
}

void OnEnd(const at::RecordFunction& fn, at::ObserverContext* untyped) {
  auto* const scope = static_cast<CallScope*>(untyped);
  if (scope == nullptr || scope->context == nullptr) return;
  HookContext& context = *scope->context;
  try {
    const std::vector<c10::IValue>& outputs = fn.outputs();
    context.recorder->calls().Outputs(
        scope->call, [&](CallBuilder& builder, v1::CallPhase* phase) {
          phase->mutable_output();
          for (const c10::IValue& value : outputs)
            context.adapter.Add(builder, value,
                                phase->mutable_output()->add_items());
        });
    if (context.recorder->calls().WantsBackward(scope->call))
      HookBackward(*scope, outputs, fn.name());
  } catch (const std::exception& e) {
    context.recorder->ReportFault(std::string(fn.name()) + ": " + e.what());
  }
}

}  // namespace

void AtenObserver::Install() {
  if (handle_.has_value()) return;
  {
    const std::lock_guard<std::mutex> lock(ActiveMutex());
    ActiveContext() = context_;
  }
  handle_ =
      at::addGlobalCallback(at::RecordFunctionCallback(OnStart, OnEnd)
                                .needsInputs(true)
                                .needsOutputs(true)
                                .scopes({at::RecordScope::FUNCTION,
                                         at::RecordScope::BACKWARD_FUNCTION}));
}

void AtenObserver::Remove() {
  if (!handle_.has_value()) return;
  at::removeCallback(*handle_);
  handle_.reset();
  const std::lock_guard<std::mutex> lock(ActiveMutex());
  ActiveContext() = nullptr;
}

}  // namespace rankprobe
