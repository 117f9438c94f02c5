// SPDX-License-Identifier: Apache-2.0
// CallRedirect alone, without PyTorch: tests/python/test_call_redirect.py builds it
// for each Python that is installed.
#include "agent/python/native/torch/call_redirect.h"
#include "agent/python/native/torch/program_error.h"

namespace rankprobe {
void ClearOwnError() { PyErr_Clear(); }
}  // namespace rankprobe

namespace {

rankprobe::CallRedirect* RedirectOf(PyObject* function) {
  auto* const redirect = rankprobe::CallRedirect::Of(function);
  if (redirect == nullptr)
    PyErr_SetString(PyExc_TypeError, "its calls cannot be redirected");
  return redirect;
}

template <void (rankprobe::CallRedirect::*kMethod)(PyObject*)>
PyObject* Change(PyObject*, PyObject* args) {
  PyObject *function = nullptr, *target = nullptr;
  if (!PyArg_ParseTuple(args, "OO", &function, &target)) return nullptr;
  auto* const redirect = RedirectOf(function);
  if (redirect == nullptr) return nullptr;
  (redirect->*kMethod)(target);
  Py_RETURN_NONE;
}

PyObject* Original(PyObject*, PyObject* function) {
  auto* const redirect = RedirectOf(function);
  if (redirect == nullptr) return nullptr;
  Py_INCREF(redirect->original());
  return redirect->original();
}

rankprobe::CallRedirects* Group() {
  static auto* const group = new rankprobe::CallRedirects();
  return group;
}

PyObject* Add(PyObject*, PyObject* args) {
  PyObject *function = nullptr, *target = nullptr;
  if (!PyArg_ParseTuple(args, "OO", &function, &target)) return nullptr;
  auto* const redirect = RedirectOf(function);
  if (redirect == nullptr) return nullptr;
  Group()->Add(redirect, target);
  Py_RETURN_NONE;
}

template <void (rankprobe::CallRedirects::*kMethod)() const>
PyObject* ChangeAll(PyObject*, PyObject*) {
  (Group()->*kMethod)();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"add", Add, METH_VARARGS, nullptr},
    {"put_all", ChangeAll<&rankprobe::CallRedirects::Put>, METH_NOARGS,
     nullptr},
    {"take_all", ChangeAll<&rankprobe::CallRedirects::Take>, METH_NOARGS,
     nullptr},
    {"put", Change<&rankprobe::CallRedirect::Put>, METH_VARARGS, nullptr},
    {"take", Change<&rankprobe::CallRedirect::Take>, METH_VARARGS, nullptr},
    {"original", Original, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "redirect_module",
                      nullptr,
                      -1,
                      methods,
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_redirect_module() { return PyModule_Create(&module); }
