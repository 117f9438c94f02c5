// SPDX-License-Identifier: Apache-2.0
// The classes of this extension that PyTorch's hooks use.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_CAPTURE_BINDINGS_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_CAPTURE_BINDINGS_H_

#include <pybind11/pybind11.h>

namespace rankprobe {

// Capture, ModuleCall, api(), parse_config().
void RegisterCapture(pybind11::module_& m);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_CAPTURE_BINDINGS_H_
