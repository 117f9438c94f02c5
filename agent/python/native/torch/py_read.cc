// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/py_read.h"

#include "agent/python/native/torch/program_error.h"

namespace rankprobe {

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
  const PyRef text = PyRef::Steal(PyObject_Str(object));
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

}  // namespace rankprobe
