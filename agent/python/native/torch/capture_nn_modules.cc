// SPDX-License-Identifier: Apache-2.0
// Capture's modules, gradients, saved values and reports; APIs are in
// capture.cc.
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "agent/python/native/torch/capture.h"
#include "agent/python/native/torch/module_gradients.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

// The frames of a trace, and those that called what was compiled of it: outside
// of the compiler's own wrapper.
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

std::optional<ModuleCall> Capture::BeginCompiledModule(
    const std::string& name, const py::tuple& args, const py::object& kwargs,
    const std::vector<std::string>& frames) {
  return BeginModule(name, args.ptr(), kwargs.ptr(), &frames);
}

std::optional<ModuleCall> Capture::BeginModule(
    const std::string& name, PyObject* args, PyObject* kwargs,
    const std::vector<std::string>* frames) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return std::nullopt;
  if (!Active()) return std::nullopt;
  const QuietScope quiet(*this);
  if (!begun_->empty()) begun_->EndComplete();
  ModuleCall module;
  module.compiled = frames != nullptr;
  Guarded("module inputs", [&] {
    module.call = recorder->calls().BeginModule(name);
    Count(module.call);
    MaybeFail("module inputs");
    if (module.call.kept) {
      ReadBudget budget;
      const ReadMode mode{!module.compiled, module.call.needs, &budget};
      const PyValue inputs = reader_.ReadSection(args, mode),
                    named = reader_.ReadSection(kwargs, mode);
      const py::gil_scoped_release release;
      recorder->calls().Inputs(
          module.call, [&](CallBuilder& builder, v1::CallPhase* phase) {
            FillList(builder, inputs.items, phase->mutable_input_args());
            FillMap(builder, named, phase->mutable_input_kwargs());
          });
    }
    if (!module.call.stack_wanted || !recorder->calls().WantsStacks()) return;
    const StackReader::Stack& stack = stacks_.Read();
    if (frames == nullptr) {
      recorder->calls().UseStack(module.call, stack.frames, stack.number);
    } else {
      recorder->calls().UseStack(module.call,
                                 WithCaller(*frames, stack.frames));
    }
  });
  if (module.call.forward_entry.empty()) return std::nullopt;
  return module;
}

void Capture::EndModule(const ModuleCall& module, PyObject* output,
                        const PyRef& parameters) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  const QuietScope quiet(*this);
  PyValue outputs, named;
  Guarded("module outputs", [&] {
    MaybeFail("module outputs");
    if (!module.call.kept) return;
    ReadBudget budget;
    const ReadMode mode{!module.compiled, module.call.needs, &budget};
    if (PyTuple_Check(output)) {
      outputs = reader_.ReadItems(output, mode);
    } else {
      outputs.items.push_back(reader_.Read(output, mode));
    }
    if (parameters) named = reader_.ReadSection(parameters.get(), mode);
    // Also a computed tensor in the place of one.
    for (const PyValue& item : named.items) {
      if (item.tensor != nullptr) item.tensor->is_parameter = true;
    }
  });
  const py::gil_scoped_release release;
  recorder->calls().Outputs(
      module.call, [&](CallBuilder& builder, v1::CallPhase* phase) {
        FillMap(builder, named, phase->mutable_parameters());
        FillList(builder, outputs.items, phase->mutable_output());
      });
}

void Capture::AbandonModule(const ModuleCall& module) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  recorder->calls().Abandon(module.call);
}

void Capture::StopModule(const ModuleCall& module) {
  if (recorder_ == nullptr) return;
  const QuietScope quiet(*this);
  Guarded("module stopped", [&] { RecordStopped(module.call); });
}

void Capture::ResetModules() {
  if (recorder_ != nullptr) recorder_->calls().ResetModules();
}
void Capture::PushScope(const std::string& name) {
  if (Active()) recorder_->calls().PushScope(name);
}
void Capture::PopScope(const std::string& name) {
  if (recorder_ != nullptr) recorder_->calls().PopScope(name);
}

bool Capture::WantsBackward(const ModuleCall& module) const {
  if (module.traced) return true;
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return false;
  return recorder->calls().WantsBackward(module.call);
}

void Capture::BeginModuleBackward(const ModuleCall& module) {
  if (module.traced) {
    if (!PyRef::Steal(PyObject_CallNoArgs(module.traced.get())))
      throw py::error_already_set();
    return;
  }
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr || !module.call.is_module) return;
  recorder->calls().BeginModuleBackward(module.call);
}

void Capture::ModuleBackward(const ModuleCall& module,
                             const py::object& grad_inputs,
                             const py::object& grad_outputs) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  const QuietScope quiet(*this);
  Guarded("module backward", [&] {
    if (module.traced) {
      if (!PyRef::Steal(PyObject_CallFunctionObjArgs(
              module.traced.get(), grad_inputs.ptr(), grad_outputs.ptr(),
              nullptr)))
        throw py::error_already_set();
      return;
    }
    MaybeFail("module backward");
    const ReadMode mode{!module.compiled, module.call.needs};
    const PyValue inputs = reader_.Read(grad_outputs.ptr(), mode),
                  outputs = reader_.Read(grad_inputs.ptr(), mode);
    const py::gil_scoped_release release;
    recorder->calls().Backward(
        module.call, [&](CallBuilder& builder, v1::CallPhase* phase) {
          FillList(builder, inputs.items, phase->mutable_input());
          FillList(builder, outputs.items, phase->mutable_output());
        });
  });
}

int64_t Capture::BackwardPass() const {
  if (!torch_.graph_task) return 0;
  const PyRef pass = PyRef::Steal(PyObject_CallNoArgs(torch_.graph_task.get()));
  const int64_t number = pass ? PyLong_AsLongLong(pass.get()) : 0;
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return number;
}

void Capture::CallAtEndOfPass() {
  const int64_t pass = BackwardPass();
  if (torch_.graph_task && pass == std::exchange(asked_pass_, pass)) return;
  const py::cpp_function end(
      [weak = weak_from_this(), thread = std::this_thread::get_id()] {
        const std::shared_ptr<Capture> capture = weak.lock();
        if (capture == nullptr) return;
        const QuietScope quiet(*capture);
        capture->begun_->EndAll(thread);
      });
  const PyRef done =
      PyRef::Steal(PyObject_CallOneArg(torch_.queue_callback.get(), end.ptr()));
  if (!done) throw py::error_already_set();
}

void Capture::EndBackwards() noexcept {
  if (begun_->empty()) return;
  const QuietScope quiet(*this);
  begun_->EndEverywhere();
}

void Capture::ParameterGradient(const std::string& module,
                                const std::string& name, PyObject* gradient) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  const QuietScope quiet(*this);
  Guarded("parameter gradient", [&] {
    MaybeFail("parameter gradient");
    // Collectives write gradients without telling the version counter.
    const PyValue value =
        reader_.Read(gradient, {false, recorder->saved().Needs()});
    if (value.kind != PyValue::Kind::kTensor) return;
    const py::gil_scoped_release release;
    recorder->calls().ParameterGradient(
        module, name, [&](CallBuilder& builder, v1::Value* out) {
          Fill(builder, value, out);
          out->mutable_tensor()->set_requires_grad(false);
        });
  });
}

std::optional<SavedValue> Capture::Save(const std::string& name,
                                        const py::object& value,
                                        const py::object& skeleton) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return std::nullopt;
  const QuietScope quiet(*this);
  std::optional<SavedValue> saved;
  Guarded("save", [&] {
    MaybeFail("save");
    const ReadMode mode{true, recorder->saved().Needs()};
    const PyValue read = reader_.Read(value.ptr(), mode),
                  nulls = reader_.Read(skeleton.ptr(), mode);
    const bool with_gradient = !skeleton.is(py::ellipsis());
    const py::gil_scoped_release release;
    const auto fill = [](const PyValue& v) {
      return
          [&v](CallBuilder& builder, v1::Value* out) { Fill(builder, v, out); };
    };
    saved = recorder->saved().Save(
        name, fill(read), with_gradient ? BuildValue(fill(nulls)) : nullptr);
  });
  return saved;
}

namespace {

std::optional<double> NormOf(const v1::ValueMap& values,
                             absl::string_view name) {
  for (const v1::NamedValue& value : values.items()) {
    if (value.name() == name && value.value().tensor().stats().has_norm_f())
      return value.value().tensor().stats().norm_f();
  }
  return std::nullopt;
}

void AddNumber(absl::string_view name, double number, v1::ValueMap* values) {
  v1::NamedValue* const item = values->add_items();
  item->set_name(std::string(name));
  v1::TensorSummary* const tensor = item->mutable_value()->mutable_tensor();
  tensor->set_dtype(v1::DTYPE_FLOAT64);
  v1::TensorStats* const stats = tensor->mutable_stats();
  stats->set_max_f(number);
  stats->set_min_f(number);
  stats->set_mean_f(number);
  stats->set_norm_f(std::fabs(number));
}

}  // namespace

std::optional<double> Capture::SaveMonitored(const std::string& name,
                                             const py::dict& values) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return std::nullopt;
  const QuietScope quiet(*this);
  std::optional<double> norm;
  Guarded("monitor", [&] {
    MaybeFail("monitor");
    const PyValue read =
        reader_.Read(values.ptr(), ReadMode{true, recorder->saved().Needs()});
    const py::gil_scoped_release release;
    recorder->saved().Save(
        name,
        [&](CallBuilder& builder, v1::Value* out) {
          Fill(builder, read, out);
          v1::ValueMap* const map = out->mutable_map();
          norm = NormOf(*map, "grad");
          const std::optional<double> update = NormOf(*map, "update"),
                                      param = NormOf(*map, "param");
          // Of a parameter that is 0 there is none: a NaN would be an alarm. What
          // Norm says of a tensor without dimensions has a sign.
          if (update.has_value() && param.has_value() && *param != 0)
            AddNumber("ratio", std::fabs(*update / *param), map);
        },
        nullptr);
  });
  return norm;
}

void Capture::SaveGradient(const SavedValue& value, const std::string& path,
                           const py::object& gradient) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  const QuietScope quiet(*this);
  Guarded("save gradient", [&] {
    MaybeFail("save gradient");
    const PyValue read =
        reader_.Read(gradient.ptr(), {true, recorder->saved().Needs()});
    const py::gil_scoped_release release;
    recorder->saved().SaveGradient(value, path,
                                   [&](CallBuilder& builder, v1::Value* out) {
                                     Fill(builder, read, out);
                                   });
  });
}

bool Capture::WantsLoss() const {
  const std::shared_ptr<Recorder> recorder = recorder_;
  return recorder != nullptr && recorder->reports().WantsLoss();
}

void Capture::ReportLoss(double loss) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder != nullptr) recorder->reports().ReportLoss(loss);
}

bool Capture::WantsReplica() const {
  const std::shared_ptr<Recorder> recorder = recorder_;
  return recorder != nullptr && recorder->reports().WantsReplica();
}

void Capture::ReportReplica(const py::list& tensors) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr || !recorder->reports().WantsReplica()) return;
  const QuietScope quiet(*this);
  Guarded("replica", [&] {
    MaybeFail("replica");
    const PyValue read =
        reader_.Read(tensors.ptr(), {false, RecordedCall::Needs::kNow});
    std::vector<TensorInfo> infos;
    for (const PyValue& value : read.items) {
      if (value.kind == PyValue::Kind::kTensor && !value.tensor->no_data)
        infos.push_back(value.tensor->Info());
    }
    const py::gil_scoped_release release;
    recorder->reports().ReportReplica(infos);
  });
}

bool Capture::WantsFacts() const {
  const std::shared_ptr<Recorder> recorder = recorder_;
  return recorder != nullptr && recorder->reports().WantsFacts();
}

std::string Capture::Digest(const py::object& tensor, uint64_t limit_bytes) {
  const QuietScope quiet(*this);
  return reader_.Digest(tensor.ptr(), limit_bytes);
}

void Capture::RecordFacts(
    const std::vector<std::tuple<std::string, std::string, std::string>>&
        facts) {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  Guarded("run card", [&] {
    std::vector<v1::RunFact> given;
    for (const auto& [section, name, value] : facts) {
      v1::RunFact& fact = given.emplace_back();
      fact.set_section(section);
      fact.set_name(name);
      fact.set_value(value);
    }
    const py::gil_scoped_release release;
    recorder->reports().RecordFacts(given);
  });
}

}  // namespace rankprobe
