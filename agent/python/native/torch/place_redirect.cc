// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/place_redirect.h"

#include "agent/python/native/torch/program_error.h"

namespace rankprobe {
namespace {

// The host's own attributes; null, without an error set, if it has none.
PyRef AttributesOf(PyObject* host) {
  static PyObject* const name = PyUnicode_InternFromString("__dict__");
  if (PyModule_Check(host)) return PyRef::Share(PyModule_GetDict(host));
  PyRef attributes = PyRef::Steal(PyObject_GetAttr(host, name));
  if (!attributes) ClearOwnError();
  return attributes;
}

}  // namespace

PyRef PlaceRedirect::Now() const {
  const PyRef attributes = AttributesOf(host_.get());
  if (!attributes) return PyRef();
  // The attributes of a class are a mapping and not a dict.
  PyRef now =
      PyDict_Check(attributes.get())
          ? PyRef::Share(PyDict_GetItemWithError(attributes.get(), name_.get()))
          : PyRef::Steal(PyObject_GetItem(attributes.get(), name_.get()));
  if (!now) ClearOwnError();
  return now;
}

void PlaceRedirect::Set(PyObject* value) const {
  if (PyObject_SetAttr(host_.get(), name_.get(), value) != 0) ClearOwnError();
}

void PlaceRedirect::Put(PyObject* target) {
  if (Now().get() == own_.get()) Set(target);
}

void PlaceRedirect::Take(PyObject* target) {
  if (Now().get() == target) Set(own_.get());
}

}  // namespace rankprobe
