// SPDX-License-Identifier: Apache-2.0
// DeviceStatistics as a Python class, for DeviceReader (pytorch/_device.py).
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_DEVICE_BINDINGS_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_DEVICE_BINDINGS_H_

#include <pybind11/pybind11.h>

namespace rankprobe {

void RegisterDeviceStatistics(pybind11::module_& m);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_DEVICE_BINDINGS_H_
