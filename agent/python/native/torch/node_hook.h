// SPDX-License-Identifier: Apache-2.0
// The hook of ours on a node of PyTorch's graph: one a node, for all module calls
// that take gradients there. It changes none.
//
// Ownership: the node's metadata and its list of hooks hold it.
// Threads: the GIL is held. Failure: HookNode throws; a running hook reports.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_NODE_HOOK_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_NODE_HOOK_H_

#include <Python.h>

#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"

namespace rankprobe {

struct CallGradients;

// Gradient `number` of a node is one of input or output `index` of a call.
struct NodeArrival {
  int64_t number = 0;
  int index = 0;
  bool is_input = false;
};
using NodeArrivals = absl::InlinedVector<NodeArrival, 2>;

// before: of what arrives at the node; else of what it sends on. Throws
// pybind11::error_already_set.
void HookNode(PyObject* node, std::shared_ptr<CallGradients> gradients,
              NodeArrivals arrivals, bool before);

// False with a Python error set.
bool InitNodeHook();

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_NODE_HOOK_H_
