// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/api_capture.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "agent/python/native/torch/api_object.h"
#include "agent/python/native/torch/capture.h"
#include "agent/python/native/torch/module_gradients.h"
#include "agent/python/native/torch/node_hook.h"
#include "agent/python/native/torch/program_error.h"
#include "agent/python/native/torch/reading_scope.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

// The values of a vectorcall's keyword arguments follow the positional ones.
Py_ssize_t KeywordCount(PyObject* keywords) {
  return keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
}

const char* KeywordName(PyObject* keywords, Py_ssize_t i) {
  const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(keywords, i));
  if (name == nullptr) ClearOwnError();
  return name == nullptr ? "" : name;
}

void DropIgnored(const std::vector<int>& ignored, PyValue* outputs) {
  for (const int i : ignored) {
    if (static_cast<size_t>(i) < outputs->items.size())
      outputs->items[static_cast<size_t>(i)] = PyValue();
  }
}

// Calls no method of a subclass.
bool IsZero(PyObject* number) {
  const bool is_zero = PyFloat_Check(number) ? PyFloat_AS_DOUBLE(number) == 0
                                             : PyLong_Check(number) &&
                                                   PyLong_AsDouble(number) == 0;
  ClearOwnError();
  return is_zero;
}

// Whether a dropout drops nothing, because its argument `p` is 0.
bool DropsNothing(PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  for (Py_ssize_t i = 0; i < count + KeywordCount(keywords); ++i) {
    const bool is_p =
        i < count ? i == 1
                  : std::string_view(KeywordName(keywords, i - count)) == "p";
    if (is_p && IsZero(args[i])) return true;
  }
  return false;
}

GraphTensors TensorsOf(const TorchBindings& torch, PyObject* const* values,
                       Py_ssize_t count) {
  GraphTensors tensors;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (torch.IsTensor(values[i])) tensors.push_back(PyRef::Share(values[i]));
  }
  return tensors;
}

// The first tensor in nested containers; null if there is none within a depth
// of 100.
PyObject* FirstTensor(const TorchBindings& torch, PyObject* first) {
  for (int depth = 0; depth < 100 && first != nullptr; ++depth) {
    if (torch.IsTensor(first)) break;
    if ((PyTuple_Check(first) || PyList_Check(first)) &&
        PySequence_Fast_GET_SIZE(first) > 0) {
      first = PySequence_Fast_GET_ITEM(first, 0);
    } else if (PyDict_Check(first)) {
      PyObject *key = nullptr, *value = nullptr, *found = nullptr;
      Py_ssize_t at = 0;
      while (found == nullptr && PyDict_Next(first, &at, &key, &value)) {
        if (torch.IsTensor(value)) found = value;
      }
      first = found;
    } else {
      return nullptr;
    }
  }
  return first != nullptr && torch.IsTensor(first) ? first : nullptr;
}

}  // namespace

void RecordStopped(Recorder& recorder, const RecordedCall& call) {
  const py::gil_scoped_release release;
  recorder.calls().Outputs(call, [](CallBuilder&, v1::CallPhase* phase) {
    CallBuilder::String("recomputation stopped here",
                        phase->mutable_output()->add_items());
  });
}

void RecordGradients(Recorder& recorder, const RecordedCall& call,
                     const ValueReader& reader, ReadMode mode,
                     PyObject* grad_inputs, PyObject* grad_outputs) {
  const PyValue inputs = reader.Read(grad_outputs, mode),
                outputs = reader.Read(grad_inputs, mode);
  const ReadingScope reading(recorder.calls(), call.needs,
                             BytesOf(inputs) + BytesOf(outputs));
  recorder.calls().Backward(
      call,
      [&](CallBuilder& builder, v1::CallPhase* phase) {
        FillList(builder, inputs.items, phase->mutable_input());
        FillList(builder, outputs.items, phase->mutable_output());
      },
      reading.may_wait());
}

RecordedCall ApiCapture::Begin(const ApiSpec& spec, PyObject* const* args,
                               Py_ssize_t count, PyObject* keywords) noexcept {
  RecordedCall call;
  capture_->Guarded("api inputs", [&](Recorder& recorder) {
    call = recorder.calls().BeginApi(spec.prefix, spec.op);
    capture_->Count(call);
    capture_->MaybeFail("api inputs");
    if (call.kept) {
      const Given given = ReadGiven(spec, call, args, count, keywords);
      const ReadingScope reading(recorder.calls(), call.needs,
                                 BytesOf(given.args) + BytesOf(given.named));
      recorder.calls().Inputs(
          call,
          [&](CallBuilder& builder, v1::CallPhase* phase) {
            given.Fill(builder, phase);
            if (!spec.written.empty()) MarkWritten(spec, phase);
          },
          reading.may_wait());
    }
    if (call.stack_wanted && recorder.calls().WantsStacks()) {
      const StackReader::Stack& stack = capture_->stacks().Read();
      recorder.calls().UseStack(call, stack.frames, stack.number);
    }
  });
  return call;
}

void ApiCapture::Given::Fill(CallBuilder& builder, v1::CallPhase* phase) const {
  FillList(builder, args, phase->mutable_input_args());
  FillMap(builder, named, phase->mutable_input_kwargs());
}

ApiCapture::Given ApiCapture::ReadGiven(const ApiSpec& spec,
                                        const RecordedCall& call,
                                        PyObject* const* args, Py_ssize_t count,
                                        PyObject* keywords) const {
  const ValueReader& reader = capture_->reader();
  ReadBudget budget;
  const ReadMode mode{!spec.distributed, call.needs, &budget};
  Given given;
  given.args.resize(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    const int place = static_cast<int>(i);
    if (spec.ignored.Has(place)) continue;
    const char* const why = NotRecorded(spec, place);
    given.args[static_cast<size_t>(i)] = why != nullptr && args[i] != Py_None
                                             ? NotRecordedValue(why)
                                             : reader.Read(args[i], mode);
  }
  for (Py_ssize_t i = 0; i < KeywordCount(keywords); ++i) {
    const char* name = KeywordName(keywords, i);
    given.named.names.emplace_back(name);
    PyObject* const value = args[count + i];
    const char* const why = NotRecorded(spec, std::string_view(name));
    given.named.items.push_back(
        spec.ignored.Has(std::string_view(name)) ? PyValue()
        : why != nullptr && value != Py_None     ? NotRecordedValue(why)
                                             : reader.Read(value, mode, name));
  }
  return given;
}

PyValue ApiCapture::ReadArguments(const RecordedCall& call,
                                  PyObject* const* args, Py_ssize_t count,
                                  PyObject* keywords,
                                  const ArgumentSet* only) const {
  PyValue out;
  for (Py_ssize_t i = 0; i < count + KeywordCount(keywords); ++i) {
    const char* name = i < count ? nullptr : KeywordName(keywords, i - count);
    if (only != nullptr &&
        !(name == nullptr ? only->Has(static_cast<int>(i))
                          : only->Has(std::string_view(name)))) {
      continue;
    }
    out.items.push_back(
        capture_->reader().Read(args[i], {false, call.needs}, name));
  }
  return out;
}

PyValue ApiCapture::ReadOutputs(const ApiSpec& spec, const RecordedCall& call,
                                PyObject* const* args, Py_ssize_t count,
                                PyObject* keywords, PyObject* result) const {
  PyValue outputs;
  if (spec.distributed) {
    outputs = ReadArguments(call, args, count, keywords, nullptr);
  } else if (spec.gives_written && result == Py_None) {
    outputs = ReadArguments(call, args, count, keywords, &spec.written);
  } else if (spec.returns_address) {
    outputs.items.push_back(NotRecordedValue(kAnAddress));
  } else if (PyTuple_Check(result)) {
    outputs = capture_->reader().ReadItems(result, {true, call.needs});
  } else {
    outputs.items.push_back(
        capture_->reader().Read(result, {true, call.needs}));
  }
  DropIgnored(spec.ignored_outputs, &outputs);
  return outputs;
}

bool ApiCapture::Writes(const ApiSpec& spec, Py_ssize_t count,
                        PyObject* keywords) {
  bool has_out = false;
  for (Py_ssize_t i = 0; i < KeywordCount(keywords); ++i)
    has_out |= std::string_view(KeywordName(keywords, i)) == "out";
  return has_out || spec.distributed || spec.writes_arguments ||
         (spec.in_place && count > 0) || !spec.written.empty();
}

void ApiCapture::ForgetWritten(const ApiSpec& spec, PyObject* const* args,
                               Py_ssize_t count, PyObject* keywords) {
  const auto forget = [&](PyObject* argument) {
    if (const uintptr_t storage = capture_->reader().Storage(argument);
        storage != 0) {
      capture_->tokens().Forget(storage);
    } else if (capture_->torch().IsTensor(argument)) {
      capture_->tokens().ForgetDevices();
    }
  };
  if (spec.distributed) {
    capture_->tokens().Clear();
    return;
  }
  const Py_ssize_t all = count + KeywordCount(keywords);
  for (Py_ssize_t i = 0; i < all; ++i) {
    if (spec.writes_arguments || (spec.in_place && i == 0 && count > 0) ||
        (i >= count &&
         std::string_view(KeywordName(keywords, i - count)) == "out"))
      forget(args[i]);
  }
}

void ApiCapture::End(const ApiSpec& spec, RecordedCall call,
                     PyObject* const* args, Py_ssize_t count,
                     PyObject* keywords, PyObject* result,
                     ModuleGradients* gradients) noexcept {
  capture_->Guarded("api outputs", [&](Recorder& recorder) {
    const TorchBindings& torch = capture_->torch();
    ForgetWritten(spec, args, count, keywords);
    capture_->MaybeFail("api outputs");
    PyObject* work = result;
    if (PyList_CheckExact(result) && PyList_GET_SIZE(result) > 0)
      work = PyList_GET_ITEM(result, PyList_GET_SIZE(result) - 1);
    const bool late = spec.distributed && call.kept &&
                      torch.IsInstance(work, torch.work_type);
    PyValue outputs;
    if (call.kept)
      outputs = ReadOutputs(spec, call, args, count, keywords, result);
    // Until wait() returns, another thread may write them.
    if (late) ForgetNumbers(&outputs);
    bool in_full = false;
    {
      const ReadingScope reading(recorder.calls(), call.needs,
                                 BytesOf(outputs));
      in_full = recorder.calls().Outputs(
          call,
          [&](CallBuilder& builder, v1::CallPhase* phase) {
            FillList(builder, outputs.items, phase->mutable_output());
          },
          late, reading.may_wait());
    }
    if (in_full && !Writes(spec, count, keywords)) {
      const Given given = ReadGiven(spec, call, args, count, keywords);
      const py::gil_scoped_release release;
      recorder.calls().InputsInFull(
          call, [&](CallBuilder& builder, v1::CallPhase* phase) {
            given.Fill(builder, phase);
          });
    }
    if (late) {
      const Py_ssize_t all_count = count + KeywordCount(keywords);
      const PyRef all = PyRef::Steal(PyTuple_New(all_count));
      for (Py_ssize_t i = 0; i < all_count; ++i)
        PyTuple_SET_ITEM(all.get(), i, Py_NewRef(args[i]));
      pending_.push_back({PyRef::Share(work), call, all, spec.ignored_outputs});
    }
    if (spec.dropout && DropsNothing(args, count, keywords)) return;
    if (!torch.calls_like_modules) {
      HookBackward(recorder, std::move(call), result);
    } else if (gradients != nullptr) {
      gradients->Outputs(PyTuple_Check(result)
                             ? TensorsOf(torch, PySequence_Fast_ITEMS(result),
                                         PyTuple_GET_SIZE(result))
                             : TensorsOf(torch, &result, 1));
    }
  });
}

std::unique_ptr<ModuleGradients> ApiCapture::BeginGradients(
    const RecordedCall& call, PyObject* const* args,
    Py_ssize_t count) noexcept {
  const TorchBindings& torch = capture_->torch();
  std::unique_ptr<ModuleGradients> gradients;
  if (!torch.calls_like_modules) return gradients;
  capture_->Guarded("api gradients", [&](Recorder& recorder) {
    if (!recorder.calls().WantsBackward(call) || !torch.GradEnabled()) return;
    ModuleCall module;
    module.call = call;
    gradients = std::make_unique<ModuleGradients>(
        capture_->shared_from_this(), module, TensorsOf(torch, args, count));
  });
  return gradients;
}

void ApiCapture::Abandon(const RecordedCall& call) noexcept {
  // The exception of torch.utils.checkpoint; it has no public name to compare
  // with.
  PyObject* error = PyErr_Occurred();
  const bool stopped =
      error != nullptr && PyType_Check(error) &&
      std::string_view(reinterpret_cast<PyTypeObject*>(error)->tp_name)
          .ends_with("_StopRecomputationError");
  capture_->Guarded("api abandoned", [&](Recorder& recorder) {
    if (stopped) {
      RecordStopped(recorder, call);
    } else {
      recorder.calls().Abandon(call);
    }
  });
}

void ApiCapture::HookBackward(Recorder& recorder, RecordedCall call,
                              PyObject* result) {
  if (!recorder.calls().WantsBackward(call)) return;
  const TorchBindings& torch = capture_->torch();
  PyObject* const first = FirstTensor(torch, result);
  if (first == nullptr || !TorchBindings::IsTrue(torch.requires_grad, first) ||
      !torch.GradEnabled()) {
    return;
  }
  const PyRef node = TorchBindings::Get(torch.grad_fn, first);
  if (!node || node.get() == Py_None) return;
  const PyRef hook = PyRef::Steal(
      NewBackwardHook(capture_->shared_from_this(), std::move(call),
                      capture_->backwards().NextOrder()));
  if (!hook) throw py::error_already_set();
  RegisterHook(torch, node.get(), hook.get(), /*before=*/false);
}

void ApiCapture::Backward(const RecordedCall& call, uint64_t order,
                          PyObject* grad_inputs,
                          PyObject* grad_outputs) noexcept {
  if (capture_->recorder() == nullptr) return;
  capture_->backwards().EndAfter(order);
  capture_->Guarded("api backward", [&](Recorder& recorder) {
    capture_->MaybeFail("api backward");
    RecordGradients(recorder, call, capture_->reader(), {true, call.needs},
                    grad_inputs, grad_outputs);
  });
}

void ApiCapture::WorkDone(const py::object& work) {
  const auto at = std::find_if(
      pending_.begin(), pending_.end(),
      [&](const Pending& p) { return p.work.get() == work.ptr(); });
  if (at == pending_.end()) return;
  const Pending pending = std::move(*at);
  pending_.erase(at);
  capture_->Quietly("asynchronous outputs", [&](Recorder& recorder) {
    capture_->tokens().Clear();
    capture_->MaybeFail("asynchronous outputs");
    PyValue outputs = capture_->reader().Read(pending.args.get(),
                                              {false, pending.call.needs});
    DropIgnored(pending.ignored_outputs, &outputs);
    const py::gil_scoped_release release;
    recorder.calls().LateOutputs(
        pending.call, [&](CallBuilder& builder, v1::CallPhase* phase) {
          FillList(builder, outputs.items, phase->mutable_output());
        });
  });
}

}  // namespace rankprobe
