// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/graph_index.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "agent/python/native/torch/program_error.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

// Limit of nodes in one module call; larger graphs are not walked completely.
constexpr size_t kMaxNodes = size_t{1} << 20;

PyRef Checked(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return PyRef::Steal(object);
}

PyObject* Interned(const char* text) {
  PyObject* name = PyUnicode_InternFromString(text);
  if (name == nullptr) throw py::error_already_set();
  return name;
}

uint64_t NumberOf(PyObject* node) {
  static PyObject* const name = Interned("_sequence_nr");
  const PyRef value = PyRef::Steal(PyObject_CallMethodNoArgs(node, name));
  uint64_t number = value ? PyLong_AsUnsignedLongLong(value.get()) : 0;
  if (PyErr_Occurred() != nullptr) {
    ClearOwnError();  // a foreign node without a number
    number = 0;
  }
  return number;
}

}  // namespace

std::shared_ptr<GraphIndex> GraphIndex::OfThread(const TorchBindings* torch) {
  thread_local std::weak_ptr<GraphIndex> open;
  std::shared_ptr<GraphIndex> index = open.lock();
  if (index == nullptr || index->torch_ != torch) {
    index = std::make_shared<GraphIndex>(torch);
    open = index;
  }
  return index;
}

uint64_t GraphIndex::Now(const std::vector<GraphEdge>& inputs) const {
  if (torch_->node_id) {
    // Nodes made from now on have higher numbers than those, and than all
    // visited ones.
    uint64_t next = next_;
    for (const GraphEdge& input : inputs) {
      if (input.node && !torch_->IsLeaf(input.node.get()))
        next = std::max(next, NumberOf(input.node.get()) + 1);
    }
    return next;
  }
  if (!torch_->sequence_number) return looked_ + 1;
  const PyRef number =
      Checked(PyObject_CallNoArgs(torch_->sequence_number.get()));
  const uint64_t now = PyLong_AsUnsignedLongLong(number.get());
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return now;
}

PyRef GraphIndex::TheNode(PyRef node) {
  if (!torch_->node_id || !node || node.get() == Py_None) return node;
  const PyRef id =
      Checked(PyObject_CallOneArg(torch_->node_id.get(), node.get()));
  const uint64_t number = PyLong_AsUnsignedLongLong(id.get());
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return objects_.try_emplace(number, std::move(node)).first->second;
}

bool GraphIndex::LiesWithin(PyObject* node, const GraphBound& bound,
                            uint64_t* number) {
  *number = 0;
  if (!torch_->sequence_number && !torch_->node_id)
    return !bound.inputs.contains(node);
  *number = NumberOf(node);
  return *number >= bound.first &&
         (!torch_->node_id || !bound.inputs.contains(node));
}

void GraphIndex::LookAt(PyObject* node, std::vector<PyObject*>* next) {
  static PyObject* const name = Interned("next_functions");
  const PyRef edges = Checked(PyObject_GetAttr(node, name));
  if (!PyTuple_Check(edges.get())) return;
  const uint64_t stamp = nodes_[node].stamp;
  for (Py_ssize_t slot = 0; slot < PyTuple_GET_SIZE(edges.get()); ++slot) {
    PyObject* pair = PyTuple_GET_ITEM(edges.get(), slot);
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) continue;
    if (PyTuple_GET_ITEM(pair, 0) == Py_None) continue;
    const PyRef kept = TheNode(PyRef::Share(PyTuple_GET_ITEM(pair, 0)));
    PyObject* const target = kept.get();
    const int64_t number = PyLong_AsLongLong(PyTuple_GET_ITEM(pair, 1));
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    consumers_[{target, number}].push_back({node, slot, stamp});
    Node& known = nodes_[target];
    if (!known.keep) known.keep = PyRef::Share(target);
    if (!known.looked_at && !known.left) next->push_back(target);
  }
}

void GraphIndex::Walk(const std::vector<GraphEdge>& roots,
                      const GraphBound& bound) {
  std::vector<PyObject*> next;
  for (const GraphEdge& root : roots) {
    Node& known = nodes_[root.node.get()];
    if (!known.keep) known.keep = root.node;
    next.push_back(root.node.get());
  }
  const bool numbered = torch_->sequence_number || torch_->node_id;
  for (auto at = left_.lower_bound(numbered ? bound.first : 0);
       at != left_.end();) {
    if (bound.inputs.contains(at->second)) {
      ++at;
      continue;
    }
    nodes_[at->second].left = false;
    next.push_back(at->second);
    at = left_.erase(at);
  }
  while (!next.empty()) {
    PyObject* node = next.back();
    next.pop_back();
    if (nodes_[node].looked_at || nodes_[node].left) continue;
    // The end of every path: the accumulator of a leaf.
    if (torch_->IsLeaf(node)) continue;
    uint64_t number = 0;
    if (!LiesWithin(node, bound, &number)) {
      nodes_[node].left = true;
      left_.emplace(number, node);
      continue;
    }
    if (++looked_ > kMaxNodes)
      throw std::length_error("the graph of a module is too large");
    Node& known = nodes_[node];
    known.looked_at = true;
    known.stamp = numbered ? number : looked_;
    if (torch_->node_id) next_ = std::max(next_, number + 1);
    LookAt(node, &next);
  }
}

bool GraphIndex::IsInside(PyObject* node, const GraphBound& bound) const {
  const auto at = nodes_.find(node);
  return at != nodes_.end() && at->second.looked_at &&
         at->second.stamp >= bound.first;
}

const GraphIndex::Consumers* GraphIndex::ConsumersOf(
    const GraphEdge& edge) const {
  const auto at = consumers_.find({edge.node.get(), edge.number});
  return at == consumers_.end() ? nullptr : &at->second;
}

GraphEdge GraphIndex::EdgeOf(PyObject* tensor) {
  const TorchBindings& torch = *torch_;
  GraphEdge edge;
  edge.node = TorchBindings::Get(torch.grad_fn, tensor);
  if (edge.node && edge.node.get() == Py_None && torch.accumulator) {
    edge.node =
        PyRef::Steal(PyObject_CallOneArg(torch.accumulator.get(), tensor));
  } else if (edge.node &&
             !TorchBindings::GetInt(torch.output_nr, tensor, &edge.number)) {
    edge.node = PyRef();
  }
  if (!edge.node || edge.node.get() == Py_None) {
    ClearOwnError();
    return {};
  }
  edge.node = TheNode(std::move(edge.node));
  return edge;
}

}  // namespace rankprobe
