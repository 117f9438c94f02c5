// SPDX-License-Identifier: Apache-2.0
// Checks whether all modules of a model have hooks, when a step begins.
//
// Threads: the GIL is held.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_HOOKED_MODULES_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_HOOKED_MODULES_H_

#include <Python.h>

namespace rankprobe {

// Returns 1 if each module below `roots`, a list, is in `hooked`, which maps
// ids to weak references, or if skipped(module) is true; 0 otherwise, also if
// the `_modules` of a module is not a dict; -1 with an error set.
int AllHooked(PyObject* roots, PyObject* hooked, PyObject* skipped);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_HOOKED_MODULES_H_
