// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/module_forwards.h"

#include <utility>

namespace py = pybind11;

namespace rankprobe {
namespace {

py::object Asked(const PyRef& function, const py::object& of) {
  PyObject* const answer = PyObject_CallOneArg(function.get(), of.ptr());
  if (answer == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(answer);
}

// Whether each value is there, and no object twice.
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

bool ModuleForwards::Begin(const std::string& name, const py::object& module,
                           const py::tuple& args, const py::object& kwargs,
                           bool with_gradients) {
  Open open;
  open.module = PyRef::Share(module.ptr());
  // What is begun is ended, whatever of ours fails between.
  struct Pusher {
    ModuleForwards* forwards;
    Open* open;
    ~Pusher() {
      forwards->open_[std::this_thread::get_id()].push_back(std::move(*open));
    }
  } const pusher{this, &open};
  if (!capture_->Active()) return false;
  const QuietScope quiet(*capture_);
  const bool has_named =
      PyDict_Check(kwargs.ptr()) && PyDict_GET_SIZE(kwargs.ptr()) > 0;
  open.call =
      capture_->BeginModule(name, args, has_named ? kwargs : py::none());
  if (!open.call.has_value()) return false;
  if (with_gradients && capture_->torch().GradEnabled())
    open.gradients =
        std::make_unique<ModuleGradients>(capture_, *open.call, Wanting(args));
  return true;
}

void ModuleForwards::Push(const py::object& module,
                          std::optional<ModuleCall> call) {
  open_[std::this_thread::get_id()].push_back(
      {PyRef::Share(module.ptr()), std::move(call), nullptr});
}

ModuleForwards::Open ModuleForwards::Take(const py::object& module) {
  const std::thread::id thread = std::this_thread::get_id();
  while (true) {
    const auto found = open_.find(thread);
    if (found == open_.end()) return {};
    Open last = std::move(found->second.back());
    found->second.pop_back();
    if (found->second.empty()) open_.erase(found);
    if (last.module.get() == module.ptr()) return last;
    // Left by an exception that a forward in between has caught.
    if (last.call.has_value()) capture_->AbandonModule(*last.call);
  }
}

py::object ModuleForwards::End(const py::object& module,
                               const py::object& output) {
  const Open open = Take(module);
  if (!open.call.has_value()) return py::none();
  const QuietScope quiet(*capture_);
  capture_->EndModule(*open.call, output,
                      open.call->call.kept ? Parameters(module) : py::dict());
  if (open.gradients == nullptr || !capture_->torch().GradEnabled() ||
      !open.gradients->Outputs(Wanting(output)))
    return py::none();
  return py::str(open.call->call.forward_entry);
}

void ModuleForwards::Abandon(const py::object& module, bool stopped) {
  const Open open = Take(module);
  if (!open.call.has_value()) return;
  stopped ? capture_->StopModule(*open.call)
          : capture_->AbandonModule(*open.call);
}

py::tuple ModuleForwards::Wanting(const py::object& value) const {
  const TorchBindings& torch = capture_->torch();
  PyObject* one = value.ptr();
  if (PyTuple_CheckExact(one) && PyTuple_GET_SIZE(one) == 1)
    one = PyTuple_GET_ITEM(one, 0);
  if (!torch.IsPlainTensor(one)) return Asked(wanting_, value);
  return TorchBindings::IsTrue(torch.requires_grad, one)
             ? py::make_tuple(py::handle(one))
             : py::tuple();
}

py::dict ModuleForwards::Parameters(const py::object& module) const {
  static PyObject* const name = PyUnicode_InternFromString("_parameters");
  const PyRef found = PyRef::Steal(PyObject_GetAttr(module.ptr(), name));
  if (!found) throw py::error_already_set();
  if (PyDict_Check(found.get()) && IsPlain(found.get()))
    return py::reinterpret_borrow<py::dict>(found.get());
  return Asked(parameters_, module);
}

}  // namespace rankprobe
