// SPDX-License-Identifier: Apache-2.0
#include "agent/libtorch/module_gradients.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rankprobe {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Numbers = std::vector<std::pair<size_t, size_t>>;

namespace {

constexpr char kInPlace[] =
    "not recorded: the module changed its input in place";
constexpr char kSameTensor[] =
    "not recorded: the same tensor as an input before it";
constexpr char kHandedOn[] =
    "not recorded: the module hands this input on as an output";

}  // namespace

// A backward pass of a call. It begins with the first arrival, and is recorded
// when all gradients have arrived, or when no more can arrive: the gradient of
// an input is complete, or the pass has ended. A pass that was recorded is not
// begun again.
class CallGradients : public std::enable_shared_from_this<CallGradients> {
 public:
  CallGradients(std::shared_ptr<HookContext> context, const RecordedCall& call)
      : context_(std::move(context)), call_(call) {}

  struct Tensor {
    at::Tensor gradient;
    // Recorded instead of a gradient.
    const char* mark = nullptr;
    // For an input that is returned as this output; -1 if it is not.
    int output = -1;
  };

  // Set before the first hook.
  std::vector<Tensor> inputs, outputs;
  // Number of hooks: of nodes that send to inputs, and of those that made
  // outputs.
  size_t expected = 0;
  bool any_input = false;

  // `to`: index of a gradient, and of the output that it belongs to.
  void OutputsArrived(const Numbers& to, const variable_list& gradients) {
    Guarded([&] {
      Begin();
      for (const auto& [from, output] : to) {
        if (from < gradients.size()) outputs[output].gradient = gradients[from];
      }
      Arrived();
    });
  }
  void Sent(const Numbers& to, const variable_list& gradients) {
    Guarded([&] {
      Begin();
      const at::NoGradGuard no_graph;
      for (const auto& [from, input] : to) {
        if (from >= gradients.size() || !gradients[from].defined()) continue;
        at::Tensor& sum = inputs[input].gradient;
        sum = sum.defined() ? sum + gradients[from] : gradients[from];
      }
      Arrived();
    });
  }
  void NothingMoreComes() {
    Guarded([&] {
      if (begun_) Record();
    });
  }

 private:
  // No error of rankprobe may end the program's backward.
  void Guarded(const std::function<void()>& work) {
    const SuppressObserver suppress;
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      work();
    } catch (const std::exception& e) {
      context_->recorder->ReportFault(
          absl::StrCat("backward of ", call_.forward_entry, ": ", e.what()));
    }
  }
  void Begin() {
    if (std::exchange(begun_, true)) return;
    waiting_ = expected;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = shared_from_this()] { self->EndPass(); });
  }
  void Arrived() {
    if (waiting_ > 0 && --waiting_ == 0) Record();
  }
  void EndPass() {
    Guarded([&] {
      if (begun_) Record();
      begun_ = recorded_ = false;
    });
  }
  void Record() {
    if (std::exchange(recorded_, true)) return;
    const auto add = [this](CallBuilder& builder, const Tensor& tensor,
                            v1::Value* out) {
      if (tensor.mark != nullptr) {
        context_->adapter.Add(builder, c10::IValue(std::string(tensor.mark)),
                              out);
      } else {
        context_->adapter.Add(
            builder,
            tensor.output < 0
                ? tensor.gradient
                : outputs[static_cast<size_t>(tensor.output)].gradient,
            out);
      }
    };
    context_->recorder->calls().Backward(
        call_, [&](CallBuilder& builder, v1::CallPhase* phase) {
          phase->mutable_input();
          for (const Tensor& output : outputs)
            add(builder, output, phase->mutable_input()->add_items());
          phase->mutable_output();
          if (!any_input) return;
          for (const Tensor& input : inputs)
            add(builder, input, phase->mutable_output()->add_items());
        });
    for (auto* tensors : {&inputs, &outputs}) {
      for (Tensor& tensor : *tensors) tensor.gradient.reset();
    }
  }

  const std::shared_ptr<HookContext> context_;
  const RecordedCall call_;
  std::mutex mutex_;
  size_t waiting_ = 0;
  bool begun_ = false, recorded_ = false;
};

namespace {

class SentHook : public torch::autograd::FunctionPostHook {
 public:
  SentHook(std::shared_ptr<CallGradients> gradients, Numbers to)
      : gradients_(std::move(gradients)), to_(std::move(to)) {}
  variable_list operator()(const variable_list& grad_inputs,
                           const variable_list&) override {
    gradients_->Sent(to_, grad_inputs);
    return grad_inputs;
  }

 private:
  const std::shared_ptr<CallGradients> gradients_;
  const Numbers to_;
};

// Runs before a node that made outputs of the call.
class ArrivedHook : public torch::autograd::FunctionPreHook {
 public:
  ArrivedHook(std::shared_ptr<CallGradients> gradients, Numbers to)
      : gradients_(std::move(gradients)), to_(std::move(to)) {}
  variable_list operator()(const variable_list& gradients) override {
    gradients_->OutputsArrived(to_, gradients);
    return gradients;
  }

 private:
  const std::shared_ptr<CallGradients> gradients_;
  const Numbers to_;
};

// Runs before the node that an input comes from: everything sent to it has
// arrived.
class PassedHook : public torch::autograd::FunctionPreHook {
 public:
  explicit PassedHook(std::shared_ptr<CallGradients> gradients)
      : gradients_(std::move(gradients)) {}
  variable_list operator()(const variable_list& gradients) override {
    gradients_->NothingMoreComes();
    return gradients;
  }

 private:
  const std::shared_ptr<CallGradients> gradients_;
};

Edge EdgeOf(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad()) return Edge();
  return torch::autograd::impl::gradient_edge(tensor);
}

}  // namespace

ModuleGradients::ModuleGradients(std::shared_ptr<HookContext> context,
                                 const RecordedCall& call)
    : context_(std::move(context)),
      gradients_(std::make_shared<CallGradients>(context_, call)) {}

void ModuleGradients::AddInput(const at::Tensor& input) {
  Input& added = inputs_.emplace_back();
  if (!at::GradMode::is_enabled()) return;
  added.edge = EdgeOf(input);
  if (!added.edge.is_valid()) return;
  added.tensor = input;
  added.version =
      torch::autograd::impl::version_counter(input).current_version();
}

void ModuleGradients::EndInputs() {
  // Last, because reading the inputs may have made nodes.
  first_ = at::sequence_number::peek();
}

bool ModuleGradients::IsInside(const Node& node) const {
  return node.sequence_nr() >= first_ && node.sequence_nr() != UINT64_MAX;
}

std::vector<ModuleGradients::HookedNode> ModuleGradients::FindSenders(
    const std::vector<Edge>& outputs) const {
  // If two inputs are one tensor, the first has its gradient.
  std::unordered_map<Edge, size_t, std::hash<Edge>> input_of;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].edge.is_valid()) input_of.emplace(inputs_[i].edge, i);
  }
  std::vector<Node*> to_visit;
  std::unordered_set<Node*> seen;
  const auto visit = [&](const Edge& edge) {
    if (edge.is_valid() && IsInside(*edge.function) &&
        seen.insert(edge.function.get()).second)
      to_visit.push_back(edge.function.get());
  };
  for (const Edge& output : outputs) visit(output);
  std::vector<HookedNode> senders;
  while (!to_visit.empty()) {
    Node* const node = to_visit.back();
    to_visit.pop_back();
    HookedNode sender{node, {}};
    const torch::autograd::edge_list& edges = node->next_edges();
    for (size_t i = 0; i < edges.size(); ++i) {
      const auto input = input_of.find(edges[i]);
      if (input != input_of.end()) {
        sender.to.emplace_back(i, input->second);
      } else {
        visit(edges[i]);
      }
    }
    if (!sender.to.empty()) senders.push_back(std::move(sender));
  }
  return senders;
}

void ModuleGradients::MatchInputs(const std::vector<Edge>& outputs,
                                  bool hands_on,
                                  const std::vector<HookedNode>& senders) {
  std::vector<bool> sent(inputs_.size());
  for (const HookedNode& sender : senders) {
    for (const auto& [from, input] : sender.to) sent[input] = true;
  }
  gradients_->inputs.resize(inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Input& input = inputs_[i];
    CallGradients::Tensor& found = gradients_->inputs[i];
    if (!input.edge.is_valid()) continue;
    gradients_->any_input = true;
    if (sent[i]) continue;
    const auto same = std::find_if(
        inputs_.begin(), inputs_.begin() + static_cast<int64_t>(i),
        [&](const Input& other) { return other.edge == input.edge; });
    const auto output = std::find(outputs.begin(), outputs.end(), input.edge);
    if (same != inputs_.begin() + static_cast<int64_t>(i)) {
      found.mark = kSameTensor;
    } else if (output != outputs.end() && hands_on) {
      found.output = static_cast<int>(output - outputs.begin());
    } else if (output != outputs.end()) {
      found.mark = kHandedOn;
    } else if (torch::autograd::impl::version_counter(input.tensor)
                   .current_version() != input.version) {
      found.mark = kInPlace;
    }
  }
}

bool ModuleGradients::MatchOutputs(const std::vector<Edge>& edges,
                                   std::vector<HookedNode>* made) {
  const auto inside = [this](const Edge& edge) {
    return edge.is_valid() && IsInside(*edge.function);
  };
  const bool hands_on = std::none_of(edges.begin(), edges.end(), inside);
  gradients_->outputs.resize(edges.size());
  for (size_t i = 0; i < edges.size(); ++i) {
    const Edge& edge = edges[i];
    if (!edge.is_valid()) continue;
    if (!hands_on && !inside(edge)) {
      // The complete gradient is known only long after this module has ended.
      gradients_->outputs[i].mark = kHandedOn;
      continue;
    }
    Node* const node = edge.function.get();
    auto known = std::find_if(
        made->begin(), made->end(),
        [&](const HookedNode& other) { return other.node == node; });
    if (known == made->end()) known = made->insert(known, {node, {}});
    known->to.emplace_back(edge.input_nr, i);
  }
  return hands_on;
}

void ModuleGradients::HookLeaf(const at::Tensor& leaf, Numbers to) {
  context_->leaf_hooks.Add(
      leaf, leaf.register_hook([gradients = gradients_, to = std::move(to)](
                                   const at::Tensor& gradient) -> void {
        gradients->OutputsArrived(to, {gradient});
      }));
}

void ModuleGradients::Outputs(const std::vector<at::Tensor>& outputs) {
  std::vector<Edge> edges;
  for (const at::Tensor& output : outputs) edges.push_back(EdgeOf(output));
  std::vector<HookedNode> made;
  const bool hands_on = MatchOutputs(edges, &made);
  std::vector<HookedNode> senders = FindSenders(edges);
  MatchInputs(edges, hands_on, senders);
  gradients_->expected = made.size() + senders.size();
  for (HookedNode& sender : made) {
    const at::Tensor& output = outputs[sender.to.front().second];
    if (output.is_leaf()) {
      HookLeaf(output, std::move(sender.to));
    } else {
      sender.node->add_pre_hook(
          std::make_unique<ArrivedHook>(gradients_, std::move(sender.to)));
    }
  }
  for (HookedNode& sender : senders) {
    sender.node->add_post_hook(
        std::make_unique<SentHook>(gradients_, std::move(sender.to)));
  }
  if (gradients_->expected == 0) return;
  std::unordered_set<Node*> passed;
  for (const Input& input : inputs_) {
    // Nodes of leaves may live longer than the graph, and so would a hook.
    Node* const node = input.edge.function.get();
    if (node == nullptr || node->sequence_nr() == UINT64_MAX) continue;
    // After the hooks of inner modules, which end before this one.
    if (passed.insert(node).second)
      node->add_pre_hook(std::make_unique<PassedHook>(gradients_));
  }
}

}  // namespace rankprobe
