// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/module_hooks.h"

#include <pybind11/pybind11.h>
#include <structmember.h>

#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "agent/python/native/torch/py_read.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

struct KnownParameter {
  // Only compared: later another object may have this address. It has no hook
  // of rankprobe, or requires no gradient either.
  const PyObject* parameter = nullptr;
  // A weak reference to its hook; null if the parameter requires no gradient.
  PyRef hook;
};

struct ModuleBegin {
  PyObject_HEAD vectorcallfunc vectorcall;
  std::shared_ptr<ModuleForwards>* forwards;
  std::string* name;
  bool full;
  // Valid for the generation.
  std::vector<KnownParameter>* known;
  uint64_t generation;
};

struct ModuleEnd {
  PyObject_HEAD vectorcallfunc vectorcall;
  std::shared_ptr<ModuleForwards>* forwards;
};

struct ParameterHook {
  PyObject_HEAD vectorcallfunc vectorcall;
  std::shared_ptr<ModuleForwards>* forwards;
  std::string* module;
  std::string* name;
  // If `weak` is null, compared with the argument that PyTorch passes.
  const PyObject* parameter;
  PyObject* weak;
  PyObject* report;
  PyObject* weak_references;
};

PyTypeObject* module_begin_type = nullptr;
PyTypeObject* module_end_type = nullptr;
PyTypeObject* parameter_hook_type = nullptr;

template <typename T>
T* As(PyObject* object) {
  return reinterpret_cast<T*>(object);
}

void* Slot(auto* function) { return reinterpret_cast<void*>(function); }

// Calls fn() for Python: returns null with the error set if it throws.
template <typename Fn>
PyObject* Raising(Fn&& fn) {
  try {
    return fn();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const std::length_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

bool TakesArguments(size_t flagged_count, PyObject* keywords,
                    Py_ssize_t count) {
  if (PyVectorcall_NARGS(flagged_count) == count && keywords == nullptr)
    return true;
  PyErr_Format(PyExc_TypeError, "%zd positional arguments are expected", count);
  return false;
}

PyRef ParametersOf(PyObject* module) {
  static PyObject* const name = PyUnicode_InternFromString("_parameters");
  return PyRef::Steal(PyObject_GetAttr(module, name));
}

bool AreKnown(const ModuleBegin& begin, PyObject* parameters) {
  const PyRef& requires_grad =
      (*begin.forwards)->capture().torch().requires_grad;
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t at = 0;
  size_t count = 0;
  while (PyDict_Next(parameters, &at, &name, &value)) {
    if (value == Py_None) continue;
    if (count == begin.known->size()) return false;
    const KnownParameter& known = (*begin.known)[count++];
    if (known.parameter != value) return false;
    if (known.hook ? !Referent(known.hook.get())
                   : TorchBindings::IsTrue(requires_grad, value))
      return false;
  }
  return count == begin.known->size();
}

PyObject* CallBegin(PyObject* self, PyObject* const* args, size_t flagged_count,
                    PyObject* keywords) {
  if (!TakesArguments(flagged_count, keywords, 3)) return nullptr;
  ModuleBegin* const begin = As<ModuleBegin>(self);
  return Raising([&] {
    ModuleForwards& forwards = **begin->forwards;
    const bool recorded =
        forwards.Begin(*begin->name, args[0], args[1], args[2], begin->full);
    if (!recorded || !forwards.parameters_grad()) return Py_NewRef(Py_False);
    const PyRef parameters = ParametersOf(args[0]);
    if (!parameters) throw py::error_already_set();
    const bool known = begin->generation == forwards.generation() &&
                       PyDict_Check(parameters.get()) &&
                       AreKnown(*begin, parameters.get());
    return Py_NewRef(known ? Py_False : Py_True);
  });
}

PyObject* SetKnown(PyObject* self, PyObject* args) {
  PyObject *module = nullptr, *watched = nullptr;
  if (!PyArg_ParseTuple(args, "OO!", &module, &PyDict_Type, &watched))
    return nullptr;
  ModuleBegin* const begin = As<ModuleBegin>(self);
  const PyRef parameters = ParametersOf(module);
  if (!parameters) return nullptr;
  std::vector<KnownParameter> known;
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t at = 0;
  while (PyDict_Check(parameters.get()) &&
         PyDict_Next(parameters.get(), &at, &name, &value)) {
    if (value == Py_None) continue;
    PyObject* const hook = PyDict_GetItemWithError(watched, name);
    if (hook == nullptr && PyErr_Occurred() != nullptr) return nullptr;
    known.push_back({value, PyRef::Share(hook)});
  }
  begin->known->swap(known);
  begin->generation = (*begin->forwards)->generation();
  Py_RETURN_NONE;
}

PyObject* CallEnd(PyObject* self, PyObject* const* args, size_t flagged_count,
                  PyObject* keywords) {
  if (!TakesArguments(flagged_count, keywords, 2)) return nullptr;
  return Raising([&] {
    return PyBool_FromLong(
        (*As<ModuleEnd>(self)->forwards)->End(args[0], args[1]) ? 1 : 0);
  });
}

// The gradient that a fused kernel has accumulated, else PyTorch's. Null with
// an error set; None if there is none.
PyRef GradientOf(PyObject* parameter) {
  static PyObject* const main_grad = PyUnicode_InternFromString("main_grad");
  static PyObject* const grad = PyUnicode_InternFromString("grad");
  PyObject* found = nullptr;
  if (LookUpAttribute(parameter, main_grad, &found) < 0) return PyRef();
  PyRef gradient = PyRef::Steal(found);
  if (gradient && gradient.get() != Py_None) return gradient;
  return PyRef::Steal(PyObject_GetAttr(parameter, grad));
}

// Returns true if an error of rankprobe was reported; an error that is not an
// Exception stays set.
bool Reported(PyObject* report) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  if (!PyErr_GivenExceptionMatches(value, PyExc_Exception)) {
    PyErr_Restore(type, value, trace);
    return false;
  }
  Py_XDECREF(type);
  Py_XDECREF(trace);
  const PyRef error = PyRef::Steal(value);
  return static_cast<bool>(
      PyRef::Steal(PyObject_CallOneArg(report, error.get())));
}

// Null if it no longer exists, or was exchanged with another one.
PyRef ParameterOf(const ParameterHook& hook, PyObject* const* args,
                  size_t count) {
  if (hook.weak != nullptr) return Referent(hook.weak);
  return count > 0 && args[0] == hook.parameter ? PyRef::Share(args[0])
                                                : PyRef();
}

PyObject* CallParameterHook(PyObject* self, PyObject* const* args,
                            size_t flagged_count, PyObject*) {
  ParameterHook* const hook = As<ParameterHook>(self);
  ModuleForwards& forwards = **hook->forwards;
  Capture& capture = forwards.capture();
  if (!capture.enabled() || !forwards.parameters_grad()) Py_RETURN_NONE;
  const PyRef alive =
      ParameterOf(*hook, args, PyVectorcall_NARGS(flagged_count));
  if (!alive) Py_RETURN_NONE;
  const QuietScope quiet(capture.quiet());
  PyObject* const done = Raising([&]() -> PyObject* {
    const PyRef gradient = GradientOf(alive.get());
    if (!gradient) return nullptr;
    if (gradient.get() != Py_None)
      capture.modules().ParameterGradient(*hook->module, *hook->name,
                                          gradient.get());
    return Py_NewRef(Py_None);
  });
  if (done != nullptr || !Reported(hook->report)) return done;
  Py_RETURN_NONE;
}

void Free(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

void BeginDealloc(PyObject* self) {
  ModuleBegin* const begin = As<ModuleBegin>(self);
  delete begin->forwards;
  delete begin->name;
  delete begin->known;
  Free(self);
}

void EndDealloc(PyObject* self) {
  delete As<ModuleEnd>(self)->forwards;
  Free(self);
}

void ParameterHookDealloc(PyObject* self) {
  ParameterHook* const hook = As<ParameterHook>(self);
  if (hook->weak_references != nullptr) PyObject_ClearWeakRefs(self);
  delete hook->forwards;
  delete hook->module;
  delete hook->name;
  Py_CLEAR(hook->weak);
  Py_CLEAR(hook->report);
  Free(self);
}

template <typename T>
T* NewObject(PyTypeObject* type, vectorcallfunc call,
             std::shared_ptr<ModuleForwards> forwards) {
  PyObject* const made = type->tp_alloc(type, 0);
  if (made == nullptr) throw py::error_already_set();
  T* const object = As<T>(made);
  object->vectorcall = call;
  object->forwards = new std::shared_ptr<ModuleForwards>(std::move(forwards));
  return object;
}

// `weak_references`: offset of the weak references, 0 if there can be none.
template <typename T>
PyTypeObject* NewType(const char* name, destructor dealloc,
                      PyMethodDef* methods, Py_ssize_t weak_references = 0) {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(T, vectorcall), READONLY,
       nullptr},
      {weak_references == 0 ? nullptr : "__weaklistoffset__", T_PYSSIZET,
       weak_references, READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr},
  };
  PyType_Slot slots[] = {
      {Py_tp_call, Slot(PyVectorcall_Call)},
      {Py_tp_dealloc, Slot(dealloc)},
      {Py_tp_members, members},
      {methods == nullptr ? 0 : Py_tp_methods, methods},
      {0, nullptr},
  };
  PyType_Spec spec = {
      name, sizeof(T), 0,
      static_cast<unsigned>(Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL),
      slots};
  return As<PyTypeObject>(PyType_FromSpec(&spec));
}

PyMethodDef begin_methods[] = {
    {"set_known", SetKnown, METH_VARARGS,
     "set_known(module, watched): of the parameters that it has now those "
     "that are named have these hooks, weak references."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyObject* NewModuleBegin(std::shared_ptr<ModuleForwards> forwards,
                         std::string name, bool full) {
  auto* const begin =
      NewObject<ModuleBegin>(module_begin_type, CallBegin, std::move(forwards));
  begin->name = new std::string(std::move(name));
  begin->full = full;
  begin->known = new std::vector<KnownParameter>;
  return reinterpret_cast<PyObject*>(begin);
}

PyObject* NewModuleEnd(std::shared_ptr<ModuleForwards> forwards) {
  return reinterpret_cast<PyObject*>(
      NewObject<ModuleEnd>(module_end_type, CallEnd, std::move(forwards)));
}

PyObject* NewParameterHook(std::shared_ptr<ModuleForwards> forwards,
                           std::string module, std::string name,
                           PyObject* parameter, bool of_node, PyRef report) {
  PyRef weak;
  if (of_node) {
    weak = PyRef::Steal(PyWeakref_NewRef(parameter, nullptr));
    if (!weak) throw py::error_already_set();
  }
  auto* const hook = NewObject<ParameterHook>(
      parameter_hook_type, CallParameterHook, std::move(forwards));
  hook->module = new std::string(std::move(module));
  hook->name = new std::string(std::move(name));
  hook->parameter = parameter;
  hook->weak = weak.release();
  hook->report = report.release();
  return reinterpret_cast<PyObject*>(hook);
}

bool InitModuleHooks() {
  module_begin_type = NewType<ModuleBegin>("rankprobe._native.ModuleBegin",
                                           BeginDealloc, begin_methods);
  module_end_type =
      NewType<ModuleEnd>("rankprobe._native.ModuleEnd", EndDealloc, nullptr);
  parameter_hook_type = NewType<ParameterHook>(
      "rankprobe._native.ParameterHook", ParameterHookDealloc, nullptr,
      offsetof(ParameterHook, weak_references));
  return module_begin_type != nullptr && module_end_type != nullptr &&
         parameter_hook_type != nullptr;
}

}  // namespace rankprobe
