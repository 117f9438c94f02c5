// SPDX-License-Identifier: Apache-2.0
// The callable that stands in for one API of PyTorch: records the outermost
// call of a thread, passes everything else through. Written against the C API
// for the cost of a call that is not recorded: tens of nanoseconds.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_API_OBJECT_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_API_OBJECT_H_

#include <Python.h>

#include <memory>

#include "agent/python/native/torch/capture.h"

namespace rankprobe {

// Returns a new reference, or null with an error set. A stand-in for an object
// that binds to an instance (a method) binds as well. `redirected`: the Python
// function whose calls are redirected to the new object and whose defaults
// `function` takes over in each of them, or null.
PyObject* NewApiObject(PyObject* function, std::shared_ptr<Capture> capture,
                       ApiSpec spec, PyObject* redirected);

// Returns the callable that receives (grad_inputs, grad_outputs) of a graph
// node.
PyObject* NewBackwardHook(std::shared_ptr<Capture> capture, RecordedCall call,
                          uint64_t order);

// Creates the types; returns false with an error set.
bool InitApiTypes(PyObject* module);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_API_OBJECT_H_
