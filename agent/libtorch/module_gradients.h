// SPDX-License-Identifier: Apache-2.0
// The gradients of one module call's inputs and outputs, taken by hooks on the
// nodes and tensors that the program made: rankprobe adds no node to the graph,
// so gradients are summed in the same order as without rankprobe.
//
// The gradient of an input is the sum of what the nodes made inside the forward
// send to the source of the input; the gradient of an output is what arrives at
// the node that made it.
//
// Ownership: the graph's hooks share the gradients that have arrived, which
// hold no node, so the graph is freed as without rankprobe. Threads: one call
// on one thread; hooks on autograd's. Failure: thrown while the forward runs
// (the caller reports it), reported as a fault in a backward. Never reaches the
// model.
#ifndef RANKPROBE_AGENT_LIBTORCH_MODULE_GRADIENTS_H_
#define RANKPROBE_AGENT_LIBTORCH_MODULE_GRADIENTS_H_

#include <torch/csrc/autograd/edge.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "agent/libtorch/hook_context.h"

namespace rankprobe {

// Gradients that have arrived for one call.
class CallGradients;

// Records one module call, from the begin of its forward to the end.
class ModuleGradients {
 public:
  ModuleGradients(std::shared_ptr<HookContext> context,
                  const RecordedCall& call);

  // Adds a tensor of the inputs, in their order.
  void AddInput(const at::Tensor& input);
  // Called after the last input and before the forward: nodes created from here
  // on belong to the module.
  void EndInputs();
  // Hooks the nodes and tensors that carry the gradients of inputs and outputs.
  void Outputs(const std::vector<at::Tensor>& outputs);

 private:
  using Edge = torch::autograd::Edge;
  // Pairs of an index of one kind and an index of another.
  using Numbers = std::vector<std::pair<size_t, size_t>>;
  struct Input {
    at::Tensor tensor;
    // Invalid if the input requires no gradient.
    Edge edge;
    uint32_t version = 0;
  };
  // A node inside the forward, with the indices of its gradients and of the
  // call's tensors that they belong to: gradients that it sends to inputs, or
  // receives for outputs.
  struct HookedNode {
    torch::autograd::Node* node;
    Numbers to;
  };

  // Whether this thread created the node in the forward. Accumulators of leaves
  // do not count; the nodes that use a leaf do.
  bool IsInside(const torch::autograd::Node& node) const;
  // Searches from `outputs` back to the inputs.
  std::vector<HookedNode> FindSenders(const std::vector<Edge>& outputs) const;
  void MatchInputs(const std::vector<Edge>& outputs, bool hands_on,
                   const std::vector<HookedNode>& senders);
  // Finds the nodes that made the outputs. Returns whether all outputs are
  // tensors from before the call.
  bool MatchOutputs(const std::vector<Edge>& edges,
                    std::vector<HookedNode>* made);
  void HookLeaf(const at::Tensor& leaf, Numbers to);

  const std::shared_ptr<HookContext> context_;
  const std::shared_ptr<CallGradients> gradients_;
  std::vector<Input> inputs_;
  uint64_t first_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_LIBTORCH_MODULE_GRADIENTS_H_
