// SPDX-License-Identifier: Apache-2.0
// Statistics that Python has computed of objects that are not tensors (NumPy
// arrays). The GIL is held.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PY_STATISTICS_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PY_STATISTICS_H_

#include <pybind11/pybind11.h>

#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// `four`: the tuple (Max, Min, Mean, Norm) of bools, ints, floats and Nones; a
// None, or a value that is not a number, stays null. Leaves no error set.
void ReadPyStatistics(PyObject* four, v1::TensorStats* out);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PY_STATISTICS_H_
