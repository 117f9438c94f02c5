// SPDX-License-Identifier: Apache-2.0
// Hooks of rankprobe on nodes of PyTorch's graph. All module calls that take
// gradients at a node share one hook. No hook changes a gradient.
//
// Ownership: the node's metadata and its list of hooks hold it.
// Threads: the GIL is held. Failure: functions that put hooks on nodes throw; a
// running hook reports errors.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_NODE_HOOK_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_NODE_HOOK_H_

#include <Python.h>

#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"

namespace rankprobe {

struct CallGradients;
class TorchBindings;

// Gradient `number` of a node belongs to input or output `index` of a call.
struct NodeArrival {
  int64_t number = 0;
  int index = 0;
  bool is_input = false;
};
using NodeArrivals = absl::InlinedVector<NodeArrival, 2>;

// `before`: for gradients that arrive at the node; otherwise for those that it
// sends. Throws pybind11::error_already_set.
void HookNode(PyObject* node, std::shared_ptr<CallGradients> gradients,
              NodeArrivals arrivals, bool before);

// Registers `hook` to run before `node` (`before`) or after it. There is no
// handle, so the hook cannot be removed. Throws pybind11::error_already_set.
void RegisterHook(const TorchBindings& torch, PyObject* node, PyObject* hook,
                  bool before);

// Returns false with a Python error set.
bool InitNodeHook();

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_NODE_HOOK_H_
