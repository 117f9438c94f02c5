// SPDX-License-Identifier: Apache-2.0
// The gradients of one module call's inputs and outputs, taken by hooks on the
// nodes that PyTorch made: rankprobe adds no node to the graph, so gradients
// are summed in the same order as without rankprobe.
//
// The gradient of an input is the sum of what the nodes made inside the forward
// send to the source of the input; the gradient of an output is what arrives at
// the node that made it, less what nodes inside the forward sent there.
//
// Ownership: the graph's nodes hold the hooks, and the hooks share the call's
// gradients, which hold no node, so the graph is freed as without rankprobe.
// Threads: the GIL is held. Failure: thrown while a forward runs (the caller
// reports it); in a backward reported to the Capture. Never reaches the model.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_GRADIENTS_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_GRADIENTS_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "agent/python/native/torch/capture.h"
#include "agent/python/native/torch/graph_index.h"

namespace rankprobe {

GraphTensors TensorsOfTuple(PyObject* tuple);

// Gradients that have arrived for one call in this backward pass.
struct CallGradients {
  struct Tensor {
    // For an output the gradient that arrived at its node; for an input the
    // sum.
    PyRef gradient;
    // For an output: what nodes inside the forward sent there.
    PyRef inside;
    // Recorded instead of a gradient.
    const char* mark = nullptr;
    // For an input that is returned as this output; -1 if it is not.
    int output = -1;
  };

  CallGradients(std::shared_ptr<Capture> c, ModuleCall m)
      : capture(std::move(c)), call(std::move(m)) {}

  // Forgets arrivals of a pass other than the running one.
  void Enter();
  // Records all of them, and resets them for another pass.
  void Record();
  bool Complete() const { return waiting == 0; }

  const std::shared_ptr<Capture> capture;
  const ModuleCall call;
  // BegunBackwards::NextOrder() at the begin and at the end of its forward.
  uint64_t entered = 0, left = 0;
  std::vector<Tensor> inputs, outputs;
  // Number of nodes with a hook of this call, and of those that have not run.
  int nodes = 0, waiting = 0;
  // No input requires a gradient: recorded as soon as those of the outputs
  // arrived.
  bool outputs_only = false;
  // All outputs are tensors from before the call.
  bool hands_on = false;
  bool begun = false;
  int64_t pass = -1;
};

// One module call, from the begin of its forward to the end.
class ModuleGradients {
 public:
  // `inputs`: the tensors among its inputs that require a gradient.
  ModuleGradients(std::shared_ptr<Capture> capture, const ModuleCall& call,
                  const GraphTensors& inputs);
  // `outputs`: the tensors among its outputs that require a gradient. Hooks the
  // nodes. Returns whether an input was changed in place so that autograd
  // bypasses its node.
  bool Outputs(const GraphTensors& outputs);

 private:
  struct Input {
    PyRef tensor;
    GraphEdge edge;
    int64_t version = 0;
  };
  struct Hooks;

  void MatchOutputs(const std::vector<GraphEdge>& edges, Hooks* hooks);
  bool MatchInputs(const std::vector<GraphEdge>& outputs, Hooks* hooks);
  bool MatchTwins(size_t input, Hooks* hooks);
  // Adds nodes inside the forward that send gradients to `edge`; returns
  // whether there are any.
  bool AddConsumers(const GraphEdge& edge, bool is_input, int index,
                    Hooks* hooks);

  std::shared_ptr<CallGradients> gradients_;
  std::shared_ptr<GraphIndex> graph_;
  GraphBound bound_;
  std::vector<Input> inputs_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_GRADIENTS_H_
