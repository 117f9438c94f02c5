// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/capture.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/python/native/torch/api_object.h"
#include "agent/python/native/torch/module_gradients.h"
#include "agent/python/native/torch/node_hook.h"
#include "agent/python/native/torch/program_error.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

thread_local int call_depth = 0;
thread_local bool is_quiet = false;

// Values of the keyword arguments of a vectorcall follow the positional ones.
Py_ssize_t KeywordCount(PyObject* keywords) {
  return keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
}

const char* KeywordName(PyObject* keywords, Py_ssize_t i) {
  const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(keywords, i));
  if (name == nullptr) ClearOwnError();
  return name == nullptr ? "" : name;
}

// Calls no method of a subclass.
bool IsZero(PyObject* number) {
  const bool is_zero = PyFloat_Check(number) ? PyFloat_AS_DOUBLE(number) == 0
                                             : PyLong_Check(number) &&
                                                   PyLong_AsDouble(number) == 0;
  ClearOwnError();
  return is_zero;
}

}  // namespace

CallScope::CallScope() { ++call_depth; }
CallScope::~CallScope() { --call_depth; }
bool CallScope::Active() { return call_depth > 0; }

QuietScope::QuietScope(const Capture& capture) : capture_(capture) {
  if (is_quiet) return;
  const TorchBindings& t = capture.torch();
  const SavedError saved;
  guard_ = capture.TakeGuard();
  if (guard_) {
    const PyRef entered =
        PyRef::Steal(PyObject_CallOneArg(t.guard_enter.get(), guard_.get()));
    if (!entered) guard_ = PyRef();
  }
  is_quiet = static_cast<bool>(guard_);
  if (is_quiet && t.modes_aside)
    modes_ = PyRef::Steal(PyObject_CallNoArgs(t.modes_aside.get()));
  ClearOwnError();
}

QuietScope::~QuietScope() {
  if (!guard_) return;
  const TorchBindings& t = capture_.torch();
  const SavedError saved;
  if (modes_) {
    const PyRef back =
        PyRef::Steal(PyObject_CallOneArg(t.modes_back.get(), modes_.get()));
  }
  PyObject* const args[] = {guard_.get(), Py_None, Py_None, Py_None};
  const PyRef left =
      PyRef::Steal(PyObject_Vectorcall(t.guard_exit.get(), args, 4, nullptr));
  is_quiet = false;
  ClearOwnError();
  capture_.GiveGuard(std::move(guard_));
}

PyRef Capture::TakeGuard() const {
  if (guards_.empty()) {
    return torch_.disable_torch_function
               ? PyRef::Steal(
                     PyObject_CallNoArgs(torch_.disable_torch_function.get()))
               : PyRef();
  }
  PyRef guard = std::move(guards_.back());
  guards_.pop_back();
  return guard;
}

Capture::Capture(std::shared_ptr<Recorder> recorder, const py::dict& torch,
                 std::string skipped_directory)
    : recorder_(std::move(recorder)),
      torch_(torch),
      reader_(&torch_, &tokens_),
      stacks_(&torch_, std::move(skipped_directory)),
      begun_(std::make_unique<BegunBackwards>()) {}

Capture::~Capture() = default;

void Capture::EnterQuiet() {
  quiet_.emplace_back(std::this_thread::get_id(),
                      std::make_unique<QuietScope>(*this));
}

void Capture::LeaveQuiet() {
  const auto at = std::find_if(quiet_.rbegin(), quiet_.rend(), [](auto& entry) {
    return entry.first == std::this_thread::get_id();
  });
  if (at == quiet_.rend()) return;
  const std::unique_ptr<QuietScope> ended = std::move(at->second);
  quiet_.erase(std::next(at).base());
}

void Capture::Fault(const char* where) noexcept {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  std::string what = where;
  if (PyErr_Occurred() != nullptr) {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != nullptr) PyException_SetTraceback(value, trace);
    if (value != nullptr && RaiseLaterIfPrograms(value)) {
      Py_XDECREF(type);
      Py_XDECREF(value);
      Py_XDECREF(trace);
      return;
    }
    const PyRef text = PyRef::Steal(value ? PyObject_Repr(value) : nullptr);
    const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
    if (utf8 != nullptr) absl::StrAppend(&what, ": ", utf8);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    ClearOwnError();
  }
  ++faults_;
  recorder->ReportFault(what);
}

void Capture::ReportFault(const std::string& what) {
  ++faults_;
  if (recorder_ != nullptr) recorder_->ReportFault(what);
}

void Capture::MaybeFail(const char* where) {
  if (faults_to_inject_ == 0) return;
  --faults_to_inject_;
  throw std::runtime_error(absl::StrCat("injected fault in ", where));
}

void Capture::ForgetWritten(PyObject* const* args, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (const uintptr_t storage = reader_.Storage(args[i]); storage != 0) {
      tokens_.Forget(storage);
    } else if (torch_.IsTensor(args[i])) {
      tokens_.ForgetDevices();
    }
  }
}

RecordedCall Capture::BeginApi(const ApiSpec& spec, PyObject* const* args,
                               Py_ssize_t count, PyObject* keywords) noexcept {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return {};
  RecordedCall call;
  Guarded("api inputs", [&] {
    call = recorder->BeginApi(spec.prefix, spec.op);
    Count(call);
    MaybeFail("api inputs");
    if (call.kept) {
      ReadBudget budget;
      const ReadMode mode{!spec.distributed, call.needs, &budget};
      PyValue named;
      std::vector<PyValue> inputs(static_cast<size_t>(count));
      for (Py_ssize_t i = 0; i < count; ++i) {
        const int place = static_cast<int>(i);
        if (spec.ignored.Has(place)) continue;
        const char* const why = NotRecorded(spec, place);
        inputs[static_cast<size_t>(i)] = why != nullptr && args[i] != Py_None
                                             ? NotRecordedValue(why)
                                             : reader_.Read(args[i], mode);
      }
      for (Py_ssize_t i = 0; i < KeywordCount(keywords); ++i) {
        const char* name = KeywordName(keywords, i);
        named.names.emplace_back(name);
        PyObject* const value = args[count + i];
        const char* const why = NotRecorded(spec, std::string_view(name));
        named.items.push_back(spec.ignored.Has(std::string_view(name))
                                  ? PyValue()
                              : why != nullptr && value != Py_None
                                  ? NotRecordedValue(why)
                                  : reader_.Read(value, mode, name));
      }
      const py::gil_scoped_release release;
      recorder->Inputs(call, [&](CallBuilder& builder, v1::CallPhase* phase) {
        FillList(builder, inputs, phase->mutable_input_args());
        FillMap(builder, named, phase->mutable_input_kwargs());
        if (!spec.written.empty()) MarkWritten(spec, phase);
      });
    }
    if (call.stack_wanted && recorder->WantsStacks()) {
      const StackReader::Stack& stack = stacks_.Read();
      recorder->UseStack(call, stack.frames, stack.number);
    }
  });
  return call;
}

PyValue Capture::ReadArguments(const RecordedCall& call, PyObject* const* args,
                               Py_ssize_t count, PyObject* keywords,
                               const ArgumentSet* only) const {
  PyValue out;
  for (Py_ssize_t i = 0; i < count + KeywordCount(keywords); ++i) {
    const char* name = i < count ? nullptr : KeywordName(keywords, i - count);
    if (only != nullptr &&
        !(name == nullptr ? only->Has(static_cast<int>(i))
                          : only->Has(std::string_view(name)))) {
      continue;
    }
    out.items.push_back(reader_.Read(args[i], {false, call.needs}, name));
  }
  return out;
}

void Capture::EndApi(const ApiSpec& spec, RecordedCall call,
                     PyObject* const* args, Py_ssize_t count,
                     PyObject* keywords, PyObject* result,
                     ModuleGradients* gradients) noexcept {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  Guarded("api outputs", [&] {
    if (spec.distributed) {
      tokens_.Clear();
    } else if (spec.writes_arguments) {
      ForgetWritten(args, count + KeywordCount(keywords));
    } else {
      if (spec.in_place) ForgetWritten(args, std::min<Py_ssize_t>(count, 1));
      for (Py_ssize_t i = 0; i < KeywordCount(keywords); ++i) {
        if (std::string_view(KeywordName(keywords, i)) == "out")
          ForgetWritten(args + count + i, 1);
      }
    }
    MaybeFail("api outputs");
    PyValue outputs;
    if (call.kept) {
      if (spec.distributed) {
        outputs = ReadArguments(call, args, count, keywords, nullptr);
      } else if (spec.gives_written && result == Py_None) {
        outputs = ReadArguments(call, args, count, keywords, &spec.written);
      } else if (spec.returns_address) {
        outputs.items.push_back(NotRecordedValue(kAnAddress));
      } else if (PyTuple_Check(result)) {
        outputs = reader_.ReadItems(result, {true, call.needs});
      } else {
        outputs.items.push_back(reader_.Read(result, {true, call.needs}));
      }
      for (const int i : spec.ignored_outputs) {
        if (static_cast<size_t>(i) < outputs.items.size())
          outputs.items[static_cast<size_t>(i)] = PyValue();
      }
    }
    PyObject* work = result;
    if (PyList_CheckExact(result) && PyList_GET_SIZE(result) > 0)
      work = PyList_GET_ITEM(result, PyList_GET_SIZE(result) - 1);
    const bool late = spec.distributed && call.kept &&
                      torch_.IsInstance(work, torch_.work_type);
    {
      const py::gil_scoped_release release;
      recorder->Outputs(
          call,
          [&](CallBuilder& builder, v1::CallPhase* phase) {
            FillList(builder, outputs.items, phase->mutable_output());
          },
          late);
    }
    if (late) {
      const PyRef all =
          PyRef::Steal(PyTuple_New(count + KeywordCount(keywords)));
      for (Py_ssize_t i = 0; i < count + KeywordCount(keywords); ++i) {
        Py_INCREF(args[i]);
        PyTuple_SET_ITEM(all.get(), i, args[i]);
      }
      pending_.push_back({PyRef::Share(work), call, all, spec.ignored_outputs});
    }
    if (spec.dropout) {
      for (Py_ssize_t i = 0; i < count + KeywordCount(keywords); ++i) {
        const bool is_p =
            i < count
                ? i == 1
                : std::string_view(KeywordName(keywords, i - count)) == "p";
        if (is_p && IsZero(args[i])) return;
      }
    }
    if (!torch_.calls_like_modules) {
      HookBackward(std::move(call), result);
    } else if (gradients != nullptr) {
      gradients->Outputs(TensorsOf(
          PyTuple_Check(result) ? PySequence_Fast_ITEMS(result) : &result,
          PyTuple_Check(result) ? PyTuple_GET_SIZE(result) : 1));
    }
  });
}

GraphTensors Capture::TensorsOf(PyObject* const* values,
                                Py_ssize_t count) const {
  GraphTensors tensors;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (torch_.IsTensor(values[i])) tensors.push_back(PyRef::Share(values[i]));
  }
  return tensors;
}

std::unique_ptr<ModuleGradients> Capture::BeginGradients(
    const RecordedCall& call, PyObject* const* args,
    Py_ssize_t count) noexcept {
  const std::shared_ptr<Recorder> recorder = recorder_;
  std::unique_ptr<ModuleGradients> gradients;
  if (!torch_.calls_like_modules || recorder == nullptr ||
      !recorder->WantsBackward(call)) {
    return gradients;
  }
  Guarded("api gradients", [&] {
    if (!torch_.GradEnabled()) return;
    ModuleCall module;
    module.call = call;
    gradients = std::make_unique<ModuleGradients>(shared_from_this(), module,
                                                  TensorsOf(args, count));
  });
  return gradients;
}

void Capture::AbandonApi(const RecordedCall& call) noexcept {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  // Of torch.utils.checkpoint; there is no public name to compare with.
  PyObject* error = PyErr_Occurred();
  const bool stopped =
      error != nullptr && PyType_Check(error) &&
      std::string_view(reinterpret_cast<PyTypeObject*>(error)->tp_name)
          .ends_with("_StopRecomputationError");
  Guarded("api abandoned", [&] {
    if (stopped) {
      RecordStopped(call);
    } else {
      recorder->Abandon(call);
    }
  });
}

void Capture::RecordStopped(const RecordedCall& call) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  const py::gil_scoped_release release;
  recorder->Outputs(call, [](CallBuilder&, v1::CallPhase* phase) {
    v1::ScalarValue* text =
        phase->mutable_output()->add_items()->mutable_scalar();
    text->set_type("str");
    text->set_s("recomputation stopped here");
  });
}

void Capture::HookBackward(RecordedCall call, PyObject* result) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  if (!recorder->WantsBackward(call)) return;
  PyObject* first = result;
  for (int depth = 0; depth < 100 && first != nullptr; ++depth) {
    if (torch_.IsTensor(first)) break;
    if ((PyTuple_Check(first) || PyList_Check(first)) &&
        PySequence_Fast_GET_SIZE(first) > 0) {
      first = PySequence_Fast_GET_ITEM(first, 0);
    } else if (PyDict_Check(first)) {
      PyObject *key = nullptr, *value = nullptr, *found = nullptr;
      Py_ssize_t at = 0;
      while (found == nullptr && PyDict_Next(first, &at, &key, &value)) {
        if (torch_.IsTensor(value)) found = value;
      }
      first = found;
    } else {
      return;
    }
  }
  if (first == nullptr || !torch_.IsTensor(first)) return;
  if (!TorchBindings::IsTrue(torch_.requires_grad, first) ||
      !torch_.GradEnabled()) {
    return;
  }
  const PyRef node = TorchBindings::Get(torch_.grad_fn, first);
  if (!node || node.get() == Py_None) return;
  const PyRef hook = PyRef::Steal(
      NewBackwardHook(shared_from_this(), std::move(call), NextOrder()));
  if (!hook) throw py::error_already_set();
  RegisterHook(torch_, node.get(), hook.get(), /*before=*/false);
}

void Capture::Backward(const RecordedCall& call, uint64_t order,
                       PyObject* grad_inputs, PyObject* grad_outputs) noexcept {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  begun_->EndAfter(order);
  Guarded("api backward", [&] {
    MaybeFail("api backward");
    const ReadMode mode{true, call.needs};
    const PyValue inputs = reader_.Read(grad_outputs, mode),
                  outputs = reader_.Read(grad_inputs, mode);
    const py::gil_scoped_release release;
    recorder->Backward(call, [&](CallBuilder& builder, v1::CallPhase* phase) {
      FillList(builder, inputs.items, phase->mutable_input());
      FillList(builder, outputs.items, phase->mutable_output());
    });
  });
}

void Capture::WorkDone(const py::object& work) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  const auto at = std::find_if(
      pending_.begin(), pending_.end(),
      [&](const Pending& p) { return p.work.get() == work.ptr(); });
  if (at == pending_.end()) return;
  const QuietScope quiet(*this);
  const Pending pending = std::move(*at);
  pending_.erase(at);
  Guarded("asynchronous outputs", [&] {
    tokens_.Clear();
    MaybeFail("asynchronous outputs");
    PyValue outputs =
        reader_.Read(pending.args.get(), {false, pending.call.needs});
    for (const int i : pending.ignored_outputs) {
      if (static_cast<size_t>(i) < outputs.items.size())
        outputs.items[static_cast<size_t>(i)] = PyValue();
    }
    const py::gil_scoped_release release;
    recorder->LateOutputs(
        pending.call, [&](CallBuilder& builder, v1::CallPhase* phase) {
          FillList(builder, outputs.items, phase->mutable_output());
        });
  });
}

void Capture::FinishDevices() noexcept {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  const QuietScope quiet(*this);
  Guarded("numbers of devices", [&] {
    const PyRef got =
        PyRef::Steal(PyObject_CallNoArgs(torch_.finish_devices.get()));
    if (!got) {
      // An error of the program's, in the middle of it. What was on its way may
      // have been dropped: lost, not waited for.
      Fault("numbers of devices");
      constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();
      const py::gil_scoped_release release;
      recorder->ResolveDeferred({kAll, kAll, {}});
      return;
    }
    unsigned long long first = 0, end = 0, address = 0;  // NOLINT: Python's
    PyObject* keep = nullptr;
    if (!PyArg_ParseTuple(got.get(), "KKKO", &first, &end, &address, &keep))
      return;
    if (first == end) return;
    DeferredResults results{first, end, {}};
    if (address != 0) {
      results.numbers = {reinterpret_cast<const ReducedNumbers*>(address),
                         static_cast<size_t>(end - first)};
    }
    const py::gil_scoped_release release;
    recorder->ResolveDeferred(results);
  });
}

void Capture::BeginStep() {
  tokens_.Clear();
  stacks_.Clear();
  pending_.clear();
  // Left by a pass that raised.
  const auto left = begun_->Take();
  const std::vector<PyRef> kept = std::exchange(kept_, {});
  seen_ = matched_ = 0;
}

}  // namespace rankprobe
