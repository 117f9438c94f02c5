// SPDX-License-Identifier: Apache-2.0
// An owned reference to a Python object, for code that uses the C API directly.
// The GIL must be held wherever one is made, copied or destroyed.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_SESSION_PY_REF_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_SESSION_PY_REF_H_

#include <Python.h>

#include <utility>

namespace rankprobe {

class PyRef {
 public:
  PyRef() = default;
  // Takes over a new reference; null is allowed.
  static PyRef Steal(PyObject* object) {
    PyRef ref;
    ref.object_ = object;
    return ref;
  }
  static PyRef Share(PyObject* object) {
    Py_XINCREF(object);
    return Steal(object);
  }
  PyRef(const PyRef& other) : object_(other.object_) { Py_XINCREF(object_); }
  PyRef(PyRef&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)) {}
  PyRef& operator=(PyRef other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~PyRef() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Preserves the current exception, if any, across code that may set its own.
class SavedError {
 public:
  SavedError() {
    if (PyErr_Occurred() != nullptr) PyErr_Fetch(&type_, &value_, &trace_);
  }
  ~SavedError() {
    if (type_ != nullptr || PyErr_Occurred() != nullptr)
      PyErr_Restore(type_, value_, trace_);
  }
  SavedError(const SavedError&) = delete;
  SavedError& operator=(const SavedError&) = delete;

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_SESSION_PY_REF_H_
