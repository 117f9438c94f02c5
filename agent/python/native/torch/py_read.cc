// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/py_read.h"

#include <string_view>

#include "agent/python/native/torch/program_error.h"

namespace rankprobe {
namespace {

// Returns null with an error set on failure.
PyRef Text(PyObject* object) {
  if (PyUnicode_CheckExact(object)) return PyRef::Share(object);
  if (PyUnicode_Check(object))
    return PyRef::Steal(PyUnicode_FromObject(object));
  if (PyLong_Check(object) && !PyBool_Check(object))
    return PyRef::Steal(PyLong_Type.tp_repr(object));
  if (PyFloat_Check(object)) return PyRef::Steal(PyFloat_Type.tp_repr(object));
  return PyRef::Steal(PyObject_Str(object));
}

}  // namespace

bool ReadInts(PyObject* tuple, absl::InlinedVector<int64_t, 6>* out) {
  if (tuple == nullptr || !PyTuple_Check(tuple)) return false;
  const Py_ssize_t count = PyTuple_GET_SIZE(tuple);
  out->resize(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    (*out)[static_cast<size_t>(i)] =
        PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
  }
  return PyErr_Occurred() == nullptr;
}

std::string PyText(PyObject* object) {
  const PyRef text = Text(object);
  Py_ssize_t size = 0;
  const char* data =
      text ? PyUnicode_AsUTF8AndSize(text.get(), &size) : nullptr;
  if (data != nullptr) return std::string(data, static_cast<size_t>(size));
  ClearOwnError();
  // Not UTF-8 (a lone surrogate): as Python would print it.
  const PyRef ascii = PyRef::Steal(text ? PyObject_ASCII(text.get()) : nullptr);
  data = ascii ? PyUnicode_AsUTF8AndSize(ascii.get(), &size) : nullptr;
  ClearOwnError();
  return data == nullptr ? "" : std::string(data, static_cast<size_t>(size));
}

PyRef Referent(PyObject* weak) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* alive = nullptr;
  if (PyWeakref_GetRef(weak, &alive) < 0) ClearOwnError();
  return PyRef::Steal(alive);
#else
  PyObject* alive = PyWeakref_GetObject(weak);
  return alive == nullptr || alive == Py_None ? PyRef() : PyRef::Share(alive);
#endif
}

std::string TypeName(PyTypeObject* type) {
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0)
    return PyText(reinterpret_cast<PyHeapTypeObject*>(type)->ht_name);
  const std::string_view name = type->tp_name;
  return std::string(name.substr(name.rfind('.') + 1));
}

int LookUpAttribute(PyObject* object, PyObject* name, PyObject** out) {
#if PY_VERSION_HEX >= 0x030D0000
  return PyObject_GetOptionalAttr(object, name, out);
#else
  return _PyObject_LookupAttr(object, name, out);
#endif
}

}  // namespace rankprobe
