// SPDX-License-Identifier: Apache-2.0
// Index of the autograd nodes that a module's forward has made, and of the
// targets of their gradients: found by walking the existing graph. Nothing is
// added to it.
//
// Ownership: shared by the module calls that are open on one thread, and freed
// with the outermost; it holds the nodes that it has seen. Each node is visited
// once, at the end of the innermost call that made it.
// Threads: one, with the GIL held. Failure: throws pybind11::error_already_set.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_GRAPH_INDEX_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_GRAPH_INDEX_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "agent/python/native/torch/torch_bindings.h"

namespace rankprobe {

// Tensors that require a gradient.
using GraphTensors = absl::InlinedVector<PyRef, 2>;

// Output `number` of `node`: the source of a tensor.
struct GraphEdge {
  PyRef node;
  int64_t number = 0;

  bool operator==(const GraphEdge& other) const {
    return node.get() == other.node.get() && number == other.number;
  }
};

// Separates a module call from earlier nodes. PyTorch numbers the nodes of a
// thread. If it does not expose the numbers (below 2.1), or if a framework
// numbers nodes without exposing the next number, a walk ends at the call's
// inputs.
struct GraphBound {
  uint64_t first = 0;
  absl::flat_hash_set<PyObject*> inputs;
};

class GraphIndex {
 public:
  // A node that sends a gradient along its edge `slot`.
  struct Consumer {
    PyObject* node = nullptr;
    int64_t slot = 0;
    uint64_t stamp = 0;
  };
  using Consumers = absl::InlinedVector<Consumer, 2>;

  explicit GraphIndex(const TorchBindings* torch) : torch_(torch) {}

  // Returns the index of the calls that are open on this thread, or a new one.
  static std::shared_ptr<GraphIndex> OfThread(const TorchBindings* torch);

  // GraphBound::first of a call that begins now with these inputs.
  uint64_t Now(const std::vector<GraphEdge>& inputs) const;
  // Visits every node within `bound` that is reachable from `roots`, or that an
  // earlier walk reached and left for later.
  void Walk(const std::vector<GraphEdge>& roots, const GraphBound& bound);
  // Whether a walk has visited the node, and it is within `bound`.
  bool IsInside(PyObject* node, const GraphBound& bound) const;
  // Consumers found in all walks; null if there are none.
  const Consumers* ConsumersOf(const GraphEdge& edge) const;

  // The source of a tensor; without a node if it is not known.
  GraphEdge EdgeOf(PyObject* tensor);

 private:
  struct Node {
    PyRef keep;
    bool looked_at = false, left = false;
    uint64_t stamp = 0;
  };
  // Nodes left for an outer call, by number.
  using Left = std::multimap<uint64_t, PyObject*>;

  // The object that represents a node in this index.
  PyRef TheNode(PyRef node);
  bool LiesWithin(PyObject* node, const GraphBound& bound, uint64_t* number);
  void LookAt(PyObject* node, std::vector<PyObject*>* next);

  const TorchBindings* const torch_;
  absl::flat_hash_map<PyObject*, Node> nodes_;
  absl::flat_hash_map<std::pair<PyObject*, int64_t>, Consumers> consumers_;
  Left left_;
  // Objects by number of the node, for a framework that creates several objects
  // for a node.
  absl::flat_hash_map<uint64_t, PyRef> objects_;
  // Higher than the numbers of all visited nodes.
  uint64_t next_ = 0;
  // Number of visited nodes; serves as stamp if PyTorch has no numbers.
  uint64_t looked_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_GRAPH_INDEX_H_
