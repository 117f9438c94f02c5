// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/program_error.h"

#include "agent/python/native/session/py_ref.h"

namespace rankprobe {
namespace {

// Calls rankprobe._program_error; leaves no error set.
bool IsPrograms(PyObject* traceback) {
  const PyRef module =
      PyRef::Steal(PyImport_ImportModule("rankprobe._program_error"));
  const PyRef answer = PyRef::Steal(
      module ? PyObject_CallMethod(module.get(), "is_programs", "O", traceback)
             : nullptr);
  if (!answer) PyErr_Clear();
  return answer.get() == Py_True;
}

bool OnMainThread() {
  const PyRef threading = PyRef::Steal(PyImport_ImportModule("threading"));
  const PyRef main = PyRef::Steal(
      threading ? PyObject_CallMethod(threading.get(), "main_thread", nullptr)
                : nullptr);
  const PyRef ident = PyRef::Steal(
      main ? PyObject_GetAttrString(main.get(), "ident") : nullptr);
  const bool on_main = ident && PyLong_AsUnsignedLong(ident.get()) ==
                                    PyThread_get_thread_ident();
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return on_main;
}

// Called from the main thread's loop. Owns the reference.
int RaiseNow(void* error) {
  const PyRef held = PyRef::Steal(static_cast<PyObject*>(error));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(held.get())), held.get());
  return -1;
}

}  // namespace

bool RaiseLaterIfPrograms(PyObject* error) {
  const bool exception = PyErr_GivenExceptionMatches(error, PyExc_Exception);
  const PyRef traceback = PyRef::Steal(PyException_GetTraceback(error));
  // An error that is not an Exception is never an error of a call, whatever
  // raised it. Errors of C code have no traceback, so clearing most errors
  // costs no more than that check.
  if (exception && (!traceback || !IsPrograms(traceback.get()))) return false;
  if (!OnMainThread()) return false;
  Py_INCREF(error);
  if (Py_AddPendingCall(&RaiseNow, error) != 0) Py_DECREF(error);
  return true;
}

void ClearOwnError() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  if (type == nullptr) return;
  const bool exception = PyErr_GivenExceptionMatches(type, PyExc_Exception);
  if (!exception || traceback != nullptr) {
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != nullptr) PyException_SetTraceback(value, traceback);
    RaiseLaterIfPrograms(value);
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
}

}  // namespace rankprobe
