// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/hooked_modules.h"

#include <unordered_set>
#include <utility>
#include <vector>

#include "agent/python/native/session/py_ref.h"
#include "agent/python/native/torch/py_read.h"

namespace rankprobe {
namespace {

// Returns 1 or 0, or -1 with an error set.
int IsHooked(PyObject* module, PyObject* hooked) {
  const PyRef id = PyRef::Steal(PyLong_FromVoidPtr(module));
  if (!id) return -1;
  PyObject* const known = PyDict_GetItemWithError(hooked, id.get());
  if (known == nullptr) return PyErr_Occurred() == nullptr ? 0 : -1;
  return Referent(known).get() == module ? 1 : 0;
}

}  // namespace

int AllHooked(PyObject* roots, PyObject* hooked, PyObject* skipped) {
  static PyObject* const name = PyUnicode_InternFromString("_modules");
  std::vector<PyRef> left;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(roots); ++i)
    left.push_back(PyRef::Share(PyList_GET_ITEM(roots, i)));
  std::unordered_set<PyObject*> seen;
  while (!left.empty()) {
    const PyRef module = std::move(left.back());
    left.pop_back();
    const PyRef below = PyRef::Steal(PyObject_GetAttr(module.get(), name));
    if (!below) return -1;
    if (!PyDict_Check(below.get())) return 0;
    const size_t first = left.size();
    PyObject* child = nullptr;
    for (Py_ssize_t at = 0;
         PyDict_Next(below.get(), &at, nullptr, &child) != 0;) {
      if (child != Py_None && seen.insert(child).second)
        left.push_back(PyRef::Share(child));
    }
    // Not inside the loop over the dict, because this may run code of the
    // program.
    for (size_t i = first; i < left.size(); ++i) {
      int found = IsHooked(left[i].get(), hooked);
      if (found == 0) {
        const PyRef answer =
            PyRef::Steal(PyObject_CallOneArg(skipped, left[i].get()));
        found = answer ? PyObject_IsTrue(answer.get()) : -1;
      }
      if (found != 1) return found;
    }
  }
  return 1;
}

}  // namespace rankprobe
