// SPDX-License-Identifier: Apache-2.0
// Small Python objects as plain data. The GIL is held.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PY_READ_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PY_READ_H_

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "agent/python/native/session/py_ref.h"

namespace rankprobe {

// False for what is not a tuple of integers of 64 bits: then a Python error may be
// set, which is the caller's to clear.
bool ReadInts(PyObject* tuple, absl::InlinedVector<int64_t, 6>* out);

// str() of it in UTF-8, what has none as ascii() writes it; "" where that fails.
// Of an instance of a subclass of str, int or float: as that type writes it; no
// method of the subclass is called. Leaves no Python error.
std::string PyText(PyObject* object);

// `__name__` of the type; its metaclass is not asked.
std::string TypeName(PyTypeObject* type);

// The object that a weak reference refers to; empty if it no longer exists.
PyRef Referent(PyObject* weak);

// 1: *out has it; 0: there is no such attribute, and no error; -1: an error is
// set.
int LookUpAttribute(PyObject* object, PyObject* name, PyObject** out);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PY_READ_H_
