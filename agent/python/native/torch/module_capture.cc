// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/module_capture.h"

#include "absl/strings/match.h"
#include "agent/python/native/torch/capture.h"
#include "agent/python/native/torch/reading_scope.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

// The frames of a trace, followed by the callers of the compiled code, which
// are outside of the compiler's own wrapper.
std::vector<std::string> WithCaller(std::vector<std::string> frames,
                                    const std::vector<std::string>& stack) {
  auto outer = stack.begin();
  for (auto at = stack.begin(); at != stack.end(); ++at) {
    if (absl::StrContains(*at, "/torch/_dynamo/eval_frame.py, line "))
      outer = at + 1;
  }
  frames.insert(frames.end(), outer, stack.end());
  return frames;
}

}  // namespace

std::optional<ModuleCall> ModuleCapture::Begin(
    const std::string& name, PyObject* args, PyObject* kwargs,
    const std::vector<std::string>* frames) {
  if (!capture_->Active()) return std::nullopt;
  const QuietScope quiet(capture_->quiet());
  if (!capture_->backwards().empty()) capture_->backwards().EndComplete();
  ModuleCall module;
  module.compiled = frames != nullptr;
  capture_->Guarded("module inputs", [&](Recorder& recorder) {
    CallRecorder& calls = recorder.calls();
    const ValueReader& reader = capture_->reader();
    module.call = calls.BeginModule(name);
    capture_->Count(module.call);
    capture_->MaybeFail("module inputs");
    if (module.call.kept) {
      ReadBudget budget;
      const ReadMode mode{!module.compiled, module.call.needs, &budget};
      const PyValue inputs = reader.ReadSection(args, mode),
                    named = reader.ReadSection(kwargs, mode);
      const ReadingScope reading(calls, module.call.needs,
                                 BytesOf(inputs) + BytesOf(named));
      calls.Inputs(
          module.call,
          [&](CallBuilder& builder, v1::CallPhase* phase) {
            FillList(builder, inputs.items, phase->mutable_input_args());
            FillMap(builder, named, phase->mutable_input_kwargs());
          },
          reading.may_wait());
    }
    if (!module.call.stack_wanted || !calls.WantsStacks()) return;
    const StackReader::Stack& stack = capture_->stacks().Read();
    if (frames == nullptr) {
      calls.UseStack(module.call, stack.frames, stack.number);
    } else {
      calls.UseStack(module.call, WithCaller(*frames, stack.frames));
    }
  });
  if (module.call.forward_entry.empty()) return std::nullopt;
  return module;
}

void ModuleCapture::End(const ModuleCall& module, PyObject* output,
                        const PyRef& parameters) {
  const std::shared_ptr<Recorder> recorder = capture_->recorder();
  if (recorder == nullptr) return;
  const QuietScope quiet(capture_->quiet());
  PyValue outputs, named;
  capture_->Guarded("module outputs", [&](Recorder&) {
    capture_->MaybeFail("module outputs");
    if (!module.call.kept) return;
    const ValueReader& reader = capture_->reader();
    ReadBudget budget;
    const ReadMode mode{!module.compiled, module.call.needs, &budget};
    if (PyTuple_Check(output)) {
      outputs = reader.ReadItems(output, mode);
    } else {
      outputs.items.push_back(reader.Read(output, mode));
    }
    if (parameters) named = reader.ReadSection(parameters.get(), mode);
    // Also a computed tensor that replaces a parameter.
    for (const PyValue& item : named.items) {
      if (item.tensor != nullptr) item.tensor->is_parameter = true;
    }
  });
  // Also if reading the outputs failed: the module must not stay open.
  const ReadingScope reading(recorder->calls(), module.call.needs,
                             BytesOf(named) + BytesOf(outputs));
  recorder->calls().Outputs(
      module.call,
      [&](CallBuilder& builder, v1::CallPhase* phase) {
        FillMap(builder, named, phase->mutable_parameters());
        FillList(builder, outputs.items, phase->mutable_output());
      },
      /*late=*/false, reading.may_wait());
}

void ModuleCapture::Abandon(const ModuleCall& module) {
  const std::shared_ptr<Recorder> recorder = capture_->recorder();
  if (recorder != nullptr) recorder->calls().Abandon(module.call);
}

void ModuleCapture::Stop(const ModuleCall& module) {
  capture_->Quietly("module stopped", [&](Recorder& recorder) {
    RecordStopped(recorder, module.call);
  });
}

bool ModuleCapture::WantsBackward(const ModuleCall& module) const {
  if (module.traced) return true;
  const std::shared_ptr<Recorder> recorder = capture_->recorder();
  return recorder != nullptr && recorder->calls().WantsBackward(module.call);
}

void ModuleCapture::BeginBackward(const ModuleCall& module) {
  if (module.traced) {
    if (!PyRef::Steal(PyObject_CallNoArgs(module.traced.get())))
      throw py::error_already_set();
    return;
  }
  const std::shared_ptr<Recorder> recorder = capture_->recorder();
  if (recorder != nullptr && module.call.is_module)
    recorder->calls().BeginModuleBackward(module.call);
}

void ModuleCapture::Backward(const ModuleCall& module,
                             const py::object& grad_inputs,
                             const py::object& grad_outputs) {
  capture_->Quietly("module backward", [&](Recorder& recorder) {
    if (module.traced) {
      if (!PyRef::Steal(PyObject_CallFunctionObjArgs(
              module.traced.get(), grad_inputs.ptr(), grad_outputs.ptr(),
              nullptr)))
        throw py::error_already_set();
      return;
    }
    capture_->MaybeFail("module backward");
    RecordGradients(recorder, module.call, capture_->reader(),
                    {!module.compiled, module.call.needs}, grad_inputs.ptr(),
                    grad_outputs.ptr());
  });
}

void ModuleCapture::ParameterGradient(const std::string& module,
                                      const std::string& name,
                                      PyObject* gradient) {
  capture_->Quietly("parameter gradient", [&](Recorder& recorder) {
    capture_->MaybeFail("parameter gradient");
    // Collectives write gradients without increasing the version counter.
    const RecordedCall::Needs needs = recorder.saved().Needs();
    const PyValue value = capture_->reader().Read(gradient, {false, needs});
    if (value.kind != PyValue::Kind::kTensor) return;
    const ReadingScope reading(recorder.calls(), needs, BytesOf(value));
    recorder.calls().ParameterGradient(
        module, name,
        [&](CallBuilder& builder, v1::Value* out) {
          Fill(builder, value, out);
          out->mutable_tensor()->set_requires_grad(false);
        },
        reading.may_wait());
  });
}

}  // namespace rankprobe
