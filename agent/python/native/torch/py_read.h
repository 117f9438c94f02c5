// SPDX-License-Identifier: Apache-2.0
// Small Python objects as plain data. The GIL is held.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PY_READ_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PY_READ_H_

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "agent/python/native/session/py_ref.h"

namespace rankprobe {

// Returns false if `tuple` is not a tuple of 64-bit integers; a Python error
// may then be set, which the caller must clear.
bool ReadInts(PyObject* tuple, absl::InlinedVector<int64_t, 6>* out);

// str() of the object in UTF-8, with characters that UTF-8 lacks as in ascii();
// "" if it fails. For an instance of a subclass of str, int or float, as that
// base type formats it; no method of the subclass is called. Leaves no Python
// error.
std::string PyText(PyObject* object);

// `__name__` of the type; does not call its metaclass.
std::string TypeName(PyTypeObject* type);

// The object that a weak reference refers to; empty if it no longer exists.
PyRef Referent(PyObject* weak);

// Returns 1 with *out set; 0 if there is no such attribute, without an error;
// -1 with an error set.
int LookUpAttribute(PyObject* object, PyObject* name, PyObject** out);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PY_READ_H_
