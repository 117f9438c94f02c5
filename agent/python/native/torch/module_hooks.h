// SPDX-License-Identifier: Apache-2.0
// Native hooks of one module and of its parameters, as C callables: a call by
// vectorcall with no conversion of arguments.
//
// Ownership: held by hooks; each owns a share of the ModuleForwards. Threads:
// the GIL is held. Failure: the two hooks of a module raise, and the hook
// around them reports the error; the hook of a gradient reports its own errors.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_HOOKS_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_HOOKS_H_

#include <Python.h>

#include <memory>
#include <string>

#include "agent/python/native/session/py_ref.h"
#include "agent/python/native/torch/module_forwards.h"

namespace rankprobe {

// begin(module, args, kwargs or None) returns whether its parameters must be
// watched: the call is recorded, and they are not those of begin.set_known(),
// or one that was not watched requires a gradient now. `full`: the backward is
// recorded.
PyObject* NewModuleBegin(std::shared_ptr<ModuleForwards> forwards,
                         std::string name, bool full);

// end(module, output) returns whether an input was changed in place so that its
// gradient is lost.
PyObject* NewModuleEnd(std::shared_ptr<ModuleForwards> forwards);

// Called with the gradient of `parameter` when it has been accumulated; a hook
// of the accumulating node may be called with any arguments. report(error) is
// called with an error of rankprobe. Only a hook of a node has a weak reference
// to the parameter, because torch.utils.swap_tensors rejects tensors with weak
// references.
PyObject* NewParameterHook(std::shared_ptr<ModuleForwards> forwards,
                           std::string module, std::string name,
                           PyObject* parameter, bool of_node, PyRef report);

// Called once per process.
bool InitModuleHooks();

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_HOOKS_H_
