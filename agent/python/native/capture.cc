#include "agent/python/native/capture.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/python/native/api_object.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

thread_local int quiet_depth = 0;

// Values of the keyword arguments of a vectorcall follow the positional ones.
Py_ssize_t KeywordCount(PyObject* keywords) {
  return keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
}

const char* KeywordName(PyObject* keywords, Py_ssize_t i) {
  const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(keywords, i));
  if (name == nullptr) PyErr_Clear();
  return name == nullptr ? "" : name;
}

template <typename T, typename V>
bool Has(const std::vector<T>& list, const V& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

void FillList(CallBuilder& builder, const std::vector<PyValue>& values,
              v1::ValueList* out) {
  for (const PyValue& value : values) Fill(builder, value, out->add_items());
}

void FillMap(CallBuilder& builder, const PyValue& values, v1::ValueMap* out) {
  for (size_t i = 0; i < values.items.size(); ++i) {
    v1::NamedValue* item = out->add_items();
    item->set_name(values.names[i]);
    Fill(builder, values.items[i], item->mutable_value());
  }
}

}  // namespace

QuietScope::QuietScope(const Capture& capture) : capture_(capture) {
  ++quiet_depth;
  if (capture.mode() == nullptr) return;
  const TorchBindings& t = capture.torch();
  const SavedError saved;
  const PyRef size = PyRef::Steal(PyObject_CallNoArgs(t.mode_stack_size.get()));
  if (size && PyLong_AsLong(size.get()) > 0) {
    popped_ = PyRef::Steal(PyObject_CallNoArgs(t.mode_pop.get()));
    if (popped_ && popped_.get() != capture.mode()) {
      // Somebody else's, entered after ours: it stays.
      const PyRef done =
          PyRef::Steal(PyObject_CallOneArg(t.mode_push.get(), popped_.get()));
      popped_ = PyRef();
    }
  }
  PyErr_Clear();
}

QuietScope::~QuietScope() {
  --quiet_depth;
  if (!popped_) return;
  const SavedError saved;
  const PyRef done = PyRef::Steal(
      PyObject_CallOneArg(capture_.torch().mode_push.get(), popped_.get()));
  PyErr_Clear();
}

bool QuietScope::Active() { return quiet_depth > 0; }

Capture::Capture(std::shared_ptr<Recorder> recorder, const py::dict& torch,
                 std::string skipped_directory)
    : recorder_(std::move(recorder)),
      torch_(torch),
      reader_(&torch_, &tokens_),
      stacks_(&torch_, std::move(skipped_directory)) {}

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
    const PyRef text = PyRef::Steal(value ? PyObject_Repr(value) : nullptr);
    const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
    if (utf8 != nullptr) absl::StrAppend(&what, ": ", utf8);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Clear();
  }
  ++faults_;
  recorder->ReportFault(what);
}

void Capture::ReportFault(const std::string& what) {
  ++faults_;
  if (recorder_ != nullptr) recorder_->ReportFault(what);
}

template <typename Fn>
void Capture::Guarded(const char* where, Fn&& fn) noexcept {
  const SavedError saved;
  try {
    fn();
    if (PyErr_Occurred() != nullptr) Fault(where);
  } catch (py::error_already_set& e) {
    e.restore();
    Fault(where);
  } catch (const std::exception& e) {
    Fault(absl::StrCat(where, ": ", e.what()).c_str());
  }
}

void Capture::MaybeFail(const char* where) {
  if (faults_to_inject_ == 0) return;
  --faults_to_inject_;
  throw std::runtime_error(absl::StrCat("injected fault in ", where));
}

void Capture::ForgetWritten(PyObject* const* args, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (const uintptr_t storage = reader_.Storage(args[i]); storage != 0)
      tokens_.Forget(storage);
  }
}

RecordedCall Capture::BeginApi(const ApiSpec& spec, PyObject* const* args,
                               Py_ssize_t count, PyObject* keywords) noexcept {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return {};
  RecordedCall call;
  Guarded("api inputs", [&] {
    call = recorder->BeginApi(spec.prefix, spec.op);
    MaybeFail("api inputs");
    if (call.kept) {
      PyValue named;
      std::vector<PyValue> inputs(static_cast<size_t>(count));
      for (Py_ssize_t i = 0; i < count; ++i) {
        if (!Has(spec.ignored_inputs, i)) {
          inputs[static_cast<size_t>(i)] =
              reader_.Read(args[i], nullptr, 0, !spec.distributed);
        }
      }
      for (Py_ssize_t i = 0; i < KeywordCount(keywords); ++i) {
        const char* name = KeywordName(keywords, i);
        named.names.emplace_back(name);
        named.items.push_back(
            Has(spec.ignored_keywords, name)
                ? PyValue()
                : reader_.Read(args[count + i], name, 0, !spec.distributed));
      }
      const py::gil_scoped_release release;
      recorder->Inputs(call, [&](CallBuilder& builder, v1::CallPhase* phase) {
        FillList(builder, inputs, phase->mutable_input_args());
        FillMap(builder, named, phase->mutable_input_kwargs());
      });
    }
    if (call.stack_wanted && recorder->WantsStacks())
      recorder->UseStack(call, stacks_.Read(mode_ ? true : false));
  });
  return call;
}

PyValue Capture::ReadDistributedOutputs(PyObject* const* args, Py_ssize_t count,
                                        PyObject* keywords) const {
  PyValue out;
  for (Py_ssize_t i = 0; i < count + KeywordCount(keywords); ++i) {
    const char* name = i < count ? nullptr : KeywordName(keywords, i - count);
    out.items.push_back(reader_.Read(args[i], name, 0, false));
  }
  return out;
}

void Capture::EndApi(const ApiSpec& spec, const RecordedCall& call,
                     PyObject* const* args, Py_ssize_t count,
                     PyObject* keywords, PyObject* result) noexcept {
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
        outputs = ReadDistributedOutputs(args, count, keywords);
      } else if (PyTuple_Check(result)) {
        outputs = reader_.ReadItems(result);
      } else {
        outputs.items.push_back(reader_.Read(result));
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
      RecordedCall ended = call;
      ended.outputs_late = late;
      const py::gil_scoped_release release;
      recorder->Outputs(ended, [&](CallBuilder& builder, v1::CallPhase* phase) {
        FillList(builder, outputs.items, phase->mutable_output());
      });
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
        if (is_p && PyNumber_Check(args[i]) && PyFloat_AsDouble(args[i]) == 0)
          return;
        PyErr_Clear();
      }
    }
    HookBackward(call, result);
  });
}

void Capture::AbandonApi(const RecordedCall& call) noexcept {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  Guarded("api abandoned", [&] { recorder->Abandon(call); });
}

void Capture::HookBackward(const RecordedCall& call, PyObject* result) {
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
  const PyRef hook = PyRef::Steal(NewBackwardHook(shared_from_this(), call));
  const PyRef handle = PyRef::Steal(
      PyObject_CallMethod(node.get(), "register_hook", "O", hook.get()));
}

void Capture::Backward(const RecordedCall& call, PyObject* grad_inputs,
                       PyObject* grad_outputs) noexcept {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  Guarded("api backward", [&] {
    MaybeFail("api backward");
    const PyValue inputs = reader_.Read(grad_outputs),
                  outputs = reader_.Read(grad_inputs);
    const py::gil_scoped_release release;
    recorder->Backward(call, [&](CallBuilder& builder, v1::CallPhase* phase) {
      FillList(builder, inputs.items, phase->mutable_input());
      FillList(builder, outputs.items, phase->mutable_output());
    });
  });
}

std::optional<ModuleCall> Capture::BeginModule(const std::string& name,
                                               const py::tuple& args,
                                               const py::object& kwargs) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return std::nullopt;
  if (!Active()) return std::nullopt;
  const QuietScope quiet(*this);
  ModuleCall module;
  Guarded("module inputs", [&] {
    module.call = recorder->BeginModule(name);
    MaybeFail("module inputs");
    if (module.call.kept) {
      const PyValue inputs = reader_.Read(args.ptr()),
                    named = reader_.Read(kwargs.ptr());
      const py::gil_scoped_release release;
      recorder->Inputs(
          module.call, [&](CallBuilder& builder, v1::CallPhase* phase) {
            FillList(builder, inputs.items, phase->mutable_input_args());
            FillMap(builder, named, phase->mutable_input_kwargs());
          });
    }
    if (module.call.stack_wanted && recorder->WantsStacks())
      recorder->UseStack(module.call, stacks_.Read(mode_ ? true : false));
  });
  if (module.call.forward_entry.empty()) return std::nullopt;
  return module;
}

void Capture::EndModule(const ModuleCall& module, const py::object& output,
                        const py::dict& parameters) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  const QuietScope quiet(*this);
  PyValue outputs, named;
  Guarded("module outputs", [&] {
    MaybeFail("module outputs");
    if (!module.call.kept) return;
    if (PyTuple_Check(output.ptr())) {
      outputs = reader_.ReadItems(output.ptr());
    } else {
      outputs.items.push_back(reader_.Read(output.ptr()));
    }
    named = reader_.Read(parameters.ptr());
  });
  const py::gil_scoped_release release;
  recorder->Outputs(module.call,
                    [&](CallBuilder& builder, v1::CallPhase* phase) {
                      FillMap(builder, named, phase->mutable_parameters());
                      FillList(builder, outputs.items, phase->mutable_output());
                    });
}

void Capture::AbandonModule(const ModuleCall& module) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  recorder->Abandon(module.call);
}

void Capture::ResetModules() {
  if (recorder_ != nullptr) recorder_->ResetModules();
}
void Capture::PushScope(const std::string& name) {
  if (Active()) recorder_->PushScope(name);
}
void Capture::PopScope(const std::string& name) {
  if (recorder_ != nullptr) recorder_->PopScope(name);
}

bool Capture::WantsBackward(const ModuleCall& module) const {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return false;
  return recorder->WantsBackward(module.call);
}

void Capture::BeginModuleBackward(const ModuleCall& module) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  recorder->BeginModuleBackward(module.call);
}

void Capture::ModuleBackward(const ModuleCall& module,
                             const py::object& grad_inputs,
                             const py::object& grad_outputs) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  const QuietScope quiet(*this);
  Guarded("module backward", [&] {
    MaybeFail("module backward");
    const PyValue inputs = reader_.Read(grad_outputs.ptr()),
                  outputs = reader_.Read(grad_inputs.ptr());
    const py::gil_scoped_release release;
    recorder->Backward(
        module.call, [&](CallBuilder& builder, v1::CallPhase* phase) {
          FillList(builder, inputs.items, phase->mutable_input());
          FillList(builder, outputs.items, phase->mutable_output());
        });
  });
}

void Capture::ParameterGradient(const std::string& module,
                                const std::string& name,
                                const py::object& gradient) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  const QuietScope quiet(*this);
  Guarded("parameter gradient", [&] {
    MaybeFail("parameter gradient");
    // Collectives write gradients without telling the version counter.
    const PyValue value = reader_.Read(gradient.ptr(), nullptr, 0, false);
    if (value.kind != PyValue::Kind::kTensor) return;
    const py::gil_scoped_release release;
    recorder->ParameterGradient(
        module, name, [&](CallBuilder& builder, v1::Value* out) {
          Fill(builder, value, out);
          out->mutable_tensor()->set_requires_grad(false);
        });
  });
}

std::optional<Recorder::SavedValue> Capture::Save(const std::string& name,
                                                  const py::object& value,
                                                  const py::object& skeleton) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return std::nullopt;
  const QuietScope quiet(*this);
  std::optional<Recorder::SavedValue> saved;
  Guarded("save", [&] {
    MaybeFail("save");
    const PyValue read = reader_.Read(value.ptr()),
                  nulls = reader_.Read(skeleton.ptr());
    const bool with_gradient = !skeleton.is(py::ellipsis());
    const py::gil_scoped_release release;
    const auto fill = [](const PyValue& v) {
      return
          [&v](CallBuilder& builder, v1::Value* out) { Fill(builder, v, out); };
    };
    saved = recorder->SaveValue(
        name, fill(read),
        with_gradient ? Recorder::BuildValueFn(fill(nulls)) : nullptr);
  });
  return saved;
}

void Capture::SaveGradient(const Recorder::SavedValue& value,
                           const std::string& path,
                           const py::object& gradient) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  const QuietScope quiet(*this);
  Guarded("save gradient", [&] {
    MaybeFail("save gradient");
    const PyValue read = reader_.Read(gradient.ptr());
    const py::gil_scoped_release release;
    recorder->SaveGradient(value, path,
                           [&](CallBuilder& builder, v1::Value* out) {
                             Fill(builder, read, out);
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
    PyValue outputs = reader_.Read(pending.args.get(), nullptr, 0, false);
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

void Capture::BeginStep() {
  tokens_.Clear();
  stacks_.Clear();
  pending_.clear();
}

}  // namespace rankprobe
