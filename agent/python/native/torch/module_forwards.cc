// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/module_forwards.h"

#include <utility>

namespace py = pybind11;

namespace rankprobe {
namespace {

// Number of frames above a forward's frame while a hook of rankprobe runs.
constexpr int kFramesOfHooks = 8;

PyRef Asked(const PyRef& function, PyObject* of) {
  PyRef answer = PyRef::Steal(PyObject_CallOneArg(function.get(), of));
  if (!answer) throw py::error_already_set();
  return answer;
}

// Whether no value is None, and no object occurs twice.
bool IsPlain(PyObject* parameters) {
  PyObject *name = nullptr, *value = nullptr, *first = nullptr;
  Py_ssize_t at = 0;
  int count = 0;
  while (PyDict_Next(parameters, &at, &name, &value)) {
    if (value == Py_None || value == first || ++count > 2) return false;
    first = value;
  }
  return true;
}

}  // namespace

ModuleForwards::ModuleForwards(std::shared_ptr<Capture> capture, PyRef wanting,
                               PyRef parameters)
    : capture_(std::move(capture)),
      wanting_(std::move(wanting)),
      parameters_(std::move(parameters)) {}

bool ModuleForwards::Begin(const std::string& name, PyObject* module,
                           PyObject* args, PyObject* kwargs,
                           bool with_gradients) {
  std::unique_ptr<Recorded> recorded;
  // A forward that has begun is added, even if code of rankprobe fails in
  // between.
  struct Pusher {
    ModuleForwards* forwards;
    PyObject* module;
    std::unique_ptr<Recorded>* recorded;
    ~Pusher() { forwards->Add(PyRef::Share(module), std::move(*recorded)); }
  } const pusher{this, module, &recorded};
  if (!capture_->Active()) return false;
  const QuietScope quiet(capture_->quiet());
  const bool has_named = PyDict_Check(kwargs) && PyDict_GET_SIZE(kwargs) > 0;
  std::optional<ModuleCall> call =
      capture_->modules().Begin(name, args, has_named ? kwargs : Py_None);
  if (!call.has_value()) return false;
  recorded.reset(new Recorded{*std::move(call), nullptr});
  if (with_gradients && backward_ && capture_->torch().GradEnabled())
    recorded->gradients = std::make_unique<ModuleGradients>(
        capture_, recorded->call, Wanting(args));
  return true;
}

void ModuleForwards::Add(PyRef module, std::unique_ptr<Recorded> recorded) {
  std::vector<Open>& open = open_[std::this_thread::get_id()];
  // The outermost forward also provides the frames of the hooks.
  const int frames = open.empty() ? 1 + kFramesOfHooks : 1;
  open.push_back({std::move(module), std::move(recorded), SpareFrames(frames)});
}

void ModuleForwards::Push(const py::object& module,
                          std::optional<ModuleCall> call) {
  std::unique_ptr<Recorded> recorded;
  if (call.has_value()) recorded.reset(new Recorded{*std::move(call), nullptr});
  Add(PyRef::Share(module.ptr()), std::move(recorded));
}

std::unique_ptr<ModuleForwards::Recorded> ModuleForwards::Take(
    PyObject* module) {
  const std::thread::id thread = std::this_thread::get_id();
  while (true) {
    const auto found = open_.find(thread);
    if (found == open_.end()) return nullptr;
    Open last = std::move(found->second.back());
    found->second.pop_back();
    if (found->second.empty()) open_.erase(found);
    if (last.module.get() == module) return std::move(last.recorded);
    // Left open by an exception that a forward in between has caught.
    if (last.recorded != nullptr)
      capture_->modules().Abandon(last.recorded->call);
  }
}

bool ModuleForwards::End(PyObject* module, PyObject* output) {
  const std::unique_ptr<Recorded> recorded = Take(module);
  if (recorded == nullptr) return false;
  const QuietScope quiet(capture_->quiet());
  capture_->modules().End(
      recorded->call, output,
      recorded->call.call.kept ? Parameters(module) : PyRef());
  return recorded->gradients != nullptr && capture_->torch().GradEnabled() &&
         recorded->gradients->Outputs(Wanting(output));
}

void ModuleForwards::Abandon(const py::object& module, bool stopped) {
  const std::unique_ptr<Recorded> recorded = Take(module.ptr());
  if (recorded == nullptr) return;
  stopped ? capture_->modules().Stop(recorded->call)
          : capture_->modules().Abandon(recorded->call);
}

GraphTensors ModuleForwards::Wanting(PyObject* value) const {
  const TorchBindings& torch = capture_->torch();
  PyObject* one = value;
  if (PyTuple_CheckExact(one) && PyTuple_GET_SIZE(one) == 1)
    one = PyTuple_GET_ITEM(one, 0);
  GraphTensors tensors;
  if (torch.IsPlainTensor(one)) {
    if (TorchBindings::IsTrue(torch.requires_grad, one))
      tensors.push_back(PyRef::Share(one));
    return tensors;
  }
  const PyRef found = Asked(wanting_, value);
  return TensorsOfTuple(found.get());
}

PyRef ModuleForwards::Parameters(PyObject* module) const {
  static PyObject* const name = PyUnicode_InternFromString("_parameters");
  PyRef found = PyRef::Steal(PyObject_GetAttr(module, name));
  if (!found) throw py::error_already_set();
  if (PyDict_Check(found.get()) && IsPlain(found.get())) return found;
  return Asked(parameters_, module);
}

}  // namespace rankprobe
