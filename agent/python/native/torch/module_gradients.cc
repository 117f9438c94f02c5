// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/module_gradients.h"

#include <algorithm>
#include <utility>

#include "agent/python/native/torch/node_hook.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

constexpr char kInPlace[] =
    "not recorded: the module changed its input in place";
constexpr char kSameTensor[] =
    "not recorded: the same tensor as an input before it";
constexpr char kHandedOn[] =
    "not recorded: the module hands this input on as an output";

PyRef GradientValue(const char* mark, const PyRef& gradient) {
  if (mark != nullptr) return PyRef::Steal(PyUnicode_FromString(mark));
  return gradient ? gradient : PyRef::Share(Py_None);
}

}  // namespace

GraphTensors TensorsOfTuple(PyObject* tuple) {
  if (!PyTuple_Check(tuple)) throw py::type_error("no tuple of tensors");
  GraphTensors tensors;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
    tensors.push_back(PyRef::Share(PyTuple_GET_ITEM(tuple, i)));
  return tensors;
}

void CallGradients::Enter() {
  const int64_t now = capture->backwards().Pass();
  if (pass == now) return;
  pass = now;
  begun = false;
  waiting = nodes;
  for (auto* tensors : {&inputs, &outputs}) {
    for (Tensor& tensor : *tensors) tensor.gradient = tensor.inside = PyRef();
  }
}

void CallGradients::Record() {
  py::tuple of_inputs(outputs_only ? 0 : inputs.size());
  py::tuple of_outputs(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    Tensor& output = outputs[i];
    if (output.inside && output.gradient) {
      output.gradient = PyRef::Steal(PyObject_CallFunctionObjArgs(
          capture->torch().gradient_outside.get(), output.gradient.get(),
          output.inside.get(), nullptr));
      if (!output.gradient) throw py::error_already_set();
    }
    of_outputs[i] = py::reinterpret_steal<py::object>(
        GradientValue(output.mark, output.gradient).release());
  }
  for (size_t i = 0; i < of_inputs.size(); ++i) {
    const Tensor& input = inputs[i];
    of_inputs[i] = py::reinterpret_steal<py::object>(
        GradientValue(
            input.mark,
            input.output < 0
                ? input.gradient
                : PyRef::Share(
                      of_outputs[static_cast<size_t>(input.output)].ptr()))
            .release());
  }
  pass = -1;
  begun = false;
  for (auto* tensors : {&inputs, &outputs}) {
    for (Tensor& tensor : *tensors) tensor.gradient = tensor.inside = PyRef();
  }
  capture->modules().Backward(call, of_inputs, of_outputs);
}

struct ModuleGradients::Hooks {
  struct OfNode {
    PyRef node;
    NodeArrivals arrivals;
  };
  std::vector<OfNode> before, after;

  NodeArrivals* Of(std::vector<OfNode>* list, PyObject* node) {
    for (OfNode& known : *list) {
      if (known.node.get() == node) return &known.arrivals;
    }
    list->push_back({PyRef::Share(node), {}});
    return &list->back().arrivals;
  }
};

ModuleGradients::ModuleGradients(std::shared_ptr<Capture> capture,
                                 const ModuleCall& call,
                                 const GraphTensors& inputs)
    : gradients_(std::make_shared<CallGradients>(std::move(capture), call)) {
  const TorchBindings& torch = gradients_->capture->torch();
  graph_ = GraphIndex::OfThread(&torch);
  for (const PyRef& tensor : inputs) {
    Input& input = inputs_.emplace_back();
    input.tensor = tensor;
    input.edge = graph_->EdgeOf(tensor.get());
    if (!torch.version ||
        !TorchBindings::GetInt(torch.version, tensor.get(), &input.version))
      input.version = 0;
    if (input.edge.node) bound_.inputs.insert(input.edge.node.get());
  }
  gradients_->inputs.resize(inputs_.size());
  gradients_->outputs_only = inputs_.empty();
  gradients_->entered = gradients_->capture->backwards().NextOrder();
  // Last, because reading the inputs may have made nodes.
  std::vector<GraphEdge> edges;
  for (const Input& input : inputs_) edges.push_back(input.edge);
  bound_.first = graph_->Now(edges);
}

bool ModuleGradients::AddConsumers(const GraphEdge& edge, bool is_input,
                                   int index, Hooks* hooks) {
  const GraphIndex::Consumers* consumers = graph_->ConsumersOf(edge);
  bool any = false;
  if (consumers == nullptr) return any;
  for (const GraphIndex::Consumer& consumer : *consumers) {
    if (consumer.stamp < bound_.first) continue;
    any = true;
    hooks->Of(&hooks->after, consumer.node)
        ->push_back({consumer.slot, index, is_input});
  }
  return any;
}

void ModuleGradients::MatchOutputs(const std::vector<GraphEdge>& edges,
                                   Hooks* hooks) {
  const auto made = [&](const GraphEdge& edge) {
    return edge.node && graph_->IsInside(edge.node.get(), bound_);
  };
  const bool any = std::any_of(edges.begin(), edges.end(), made);
  gradients_->hands_on = !any;
  for (size_t i = 0; i < edges.size(); ++i) {
    const GraphEdge& edge = edges[i];
    const int index = static_cast<int>(i);
    if (!edge.node) continue;
    if (gradients_->capture->torch().IsLeaf(edge.node.get()))
      gradients_->capture->backwards().KeepForStep(edge.node);
    if (any && !made(edge)) {
      // The complete gradient is known only long after this module has ended.
      gradients_->outputs[i].mark = kHandedOn;
      continue;
    }
    hooks->Of(&hooks->before, edge.node.get())
        ->push_back({edge.number, index, false});
    if (any) AddConsumers(edge, false, index, hooks);
  }
}

// An API call with the same tensor several times, x * x, sends a gradient for
// each, in order.
bool ModuleGradients::MatchTwins(size_t input, Hooks* hooks) {
  if (gradients_->call.call.is_module) return false;
  const GraphEdge& edge = inputs_[input].edge;
  size_t twins = 0, before = 0;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!(inputs_[i].edge == edge)) continue;
    ++twins;
    before += i < input ? 1 : 0;
  }
  const GraphIndex::Consumers* all = graph_->ConsumersOf(edge);
  if (twins < 2 || all == nullptr) return false;
  GraphIndex::Consumers consumers;
  for (const GraphIndex::Consumer& consumer : *all) {
    if (consumer.stamp >= bound_.first) consumers.push_back(consumer);
  }
  if (consumers.size() != twins) return false;
  hooks->Of(&hooks->after, consumers[before].node)
      ->push_back({consumers[before].slot, static_cast<int>(input), true});
  return true;
}

bool ModuleGradients::MatchInputs(const std::vector<GraphEdge>& outputs,
                                  Hooks* hooks) {
  const TorchBindings& torch = gradients_->capture->torch();
  bool in_place = false;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Input& input = inputs_[i];
    CallGradients::Tensor& found = gradients_->inputs[i];
    if (!input.edge.node || MatchTwins(i, hooks)) continue;
    const auto same = std::find_if(
        inputs_.begin(), inputs_.begin() + static_cast<int64_t>(i),
        [&](const Input& other) { return other.edge == input.edge; });
    if (same != inputs_.begin() + static_cast<int64_t>(i)) {
      found.mark = kSameTensor;
      continue;
    }
    const auto output = std::find(outputs.begin(), outputs.end(), input.edge);
    if (output != outputs.end()) {
      if (gradients_->hands_on) {
        found.output = static_cast<int>(output - outputs.begin());
      } else {
        found.mark = kHandedOn;
      }
      continue;
    }
    if (AddConsumers(input.edge, true, static_cast<int>(i), hooks)) continue;
    int64_t version = 0;
    if (torch.version &&
        TorchBindings::GetInt(torch.version, input.tensor.get(), &version) &&
        version != input.version) {
      found.mark = kInPlace;
      in_place = true;
    }
  }
  return in_place;
}

bool ModuleGradients::Outputs(const GraphTensors& outputs) {
  std::vector<GraphEdge> edges;
  for (const PyRef& tensor : outputs)
    edges.push_back(graph_->EdgeOf(tensor.get()));
  std::vector<GraphEdge> roots;
  for (const GraphEdge& edge : edges) {
    if (edge.node) roots.push_back(edge);
  }
  bool in_place = false;
  Hooks hooks;
  if (!roots.empty()) {
    graph_->Walk(roots, bound_);
    gradients_->outputs.resize(edges.size());
    MatchOutputs(edges, &hooks);
    in_place = MatchInputs(edges, &hooks);
    gradients_->left = gradients_->capture->backwards().NextOrder();
    gradients_->nodes = gradients_->waiting =
        static_cast<int>(hooks.before.size() + hooks.after.size());
    for (auto& [node, arrivals] : hooks.before)
      HookNode(node.get(), gradients_, std::move(arrivals), true);
    for (auto& [node, arrivals] : hooks.after)
      HookNode(node.get(), gradients_, std::move(arrivals), false);
  }
  graph_.reset();
  inputs_.clear();
  return in_place;
}

}  // namespace rankprobe
