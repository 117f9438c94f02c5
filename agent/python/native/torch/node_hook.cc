// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/node_hook.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "agent/python/native/torch/module_gradients.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

struct NodeEntry {
  std::shared_ptr<CallGradients> gradients;
  NodeArrivals arrivals;
};

struct NodeHook {
  PyObject_HEAD std::vector<NodeEntry>* before;
  std::vector<NodeEntry>* after;
  // Id of the node if it has no metadata, else 0.
  uint64_t node_id;
};

// Hooks by node_id, as long as their nodes hold them. Guarded by the GIL.
absl::flat_hash_map<uint64_t, PyObject*>& HooksById() {
  static auto* const hooks = new absl::flat_hash_map<uint64_t, PyObject*>;
  return *hooks;
}

PyTypeObject* node_hook_type = nullptr;

PyObject* HookName(const char* text) {
  PyObject* name = PyUnicode_InternFromString(text);
  if (name == nullptr) throw py::error_already_set();
  return name;
}

void NodeHookDealloc(PyObject* self) {
  auto* hook = reinterpret_cast<NodeHook*>(self);
  if (hook->node_id != 0) HooksById().erase(hook->node_id);
  delete hook->before;
  delete hook->after;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* GradientOf(PyObject* gradients, int64_t number) {
  if (!PyTuple_Check(gradients) || number >= PyTuple_GET_SIZE(gradients))
    return nullptr;
  PyObject* gradient = PyTuple_GET_ITEM(gradients, number);
  return gradient == Py_None ? nullptr : gradient;
}

void AddTo(PyRef* sum, PyObject* gradient, const TorchBindings& torch) {
  if (gradient == nullptr) return;
  if (!*sum) {
    *sum = PyRef::Share(gradient);
    return;
  }
  PyRef added = PyRef::Steal(PyObject_CallFunctionObjArgs(
      torch.gradient_sum.get(), sum->get(), gradient, nullptr));
  if (!added) throw py::error_already_set();
  *sum = std::move(added);
}

void ArriveAtOutputs(const NodeEntry& entry, PyObject* gradients) {
  CallGradients& call = *entry.gradients;
  ModuleCapture& modules = call.capture->modules();
  BegunBackwards& backwards = call.capture->backwards();
  if (!modules.WantsBackward(call.call)) return;
  call.Enter();
  backwards.EndAfter(call.left);
  // The node is older than the call, and all users of its gradient have run.
  if (call.hands_on) backwards.EndComplete();
  if (!std::exchange(call.begun, true)) {
    backwards.Begin(entry.gradients);
    modules.BeginBackward(call.call);
  }
  for (const NodeArrival& arrival : entry.arrivals) {
    call.outputs[static_cast<size_t>(arrival.index)].gradient =
        PyRef::Share(GradientOf(gradients, arrival.number));
  }
  if (--call.waiting == 0 && call.outputs_only) backwards.Ended(&call);
}

void SendOn(const NodeEntry& entry, PyObject* gradients) {
  CallGradients& call = *entry.gradients;
  if (!call.capture->modules().WantsBackward(call.call)) return;
  call.Enter();
  --call.waiting;
  for (const NodeArrival& arrival : entry.arrivals) {
    const auto index = static_cast<size_t>(arrival.index);
    PyRef& sum = arrival.is_input ? call.inputs[index].gradient
                                  : call.outputs[index].inside;
    AddTo(&sum, GradientOf(gradients, arrival.number), call.capture->torch());
  }
  // A module ends when something older than it begins. An API call has no calls
  // inside, and ends at once.
  if (call.waiting == 0 && !call.call.call.is_module)
    call.capture->backwards().Ended(&call);
}

// Called with one argument before the node runs, with two after it.
PyObject* CallNodeHook(PyObject* self, PyObject* args, PyObject*) {
  auto* hook = reinterpret_cast<NodeHook*>(self);
  const bool before = PyTuple_GET_SIZE(args) == 1;
  // Copied, because recording may run code that hooks this node again.
  std::vector<NodeEntry> entries = before ? *hook->before : *hook->after;
  PyObject* gradients = PyTuple_GET_ITEM(args, 0);
  if (before && !entries.empty()) {
    // The node is as old as the first call that it is an output of. Outer calls
    // were added later, and begin first.
    const NodeEntry& first = entries.front();
    first.gradients->capture->backwards().EndAfter(first.gradients->left);
    std::reverse(entries.begin(), entries.end());
  }
  for (const NodeEntry& entry : entries) {
    entry.gradients->capture->Quietly("module backward", [&](Recorder&) {
      before ? ArriveAtOutputs(entry, gradients) : SendOn(entry, gradients);
    });
  }
  Py_RETURN_NONE;
}

PyRef NewHook() {
  PyRef made = PyRef::Steal(node_hook_type->tp_alloc(node_hook_type, 0));
  if (!made) throw py::error_already_set();
  auto* hook = reinterpret_cast<NodeHook*>(made.get());
  hook->before = new std::vector<NodeEntry>;
  hook->after = new std::vector<NodeEntry>;
  hook->node_id = 0;
  return made;
}

// Returns the hook that this node has, or a new one.
PyRef HookOf(PyObject* node, const TorchBindings& torch) {
  if (torch.node_id) {
    const PyRef id =
        PyRef::Steal(PyObject_CallOneArg(torch.node_id.get(), node));
    const uint64_t number = id ? PyLong_AsUnsignedLongLong(id.get()) : 0;
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    const auto [it, is_new] = HooksById().try_emplace(number, nullptr);
    if (!is_new) return PyRef::Share(it->second);
    PyRef made = NewHook();
    reinterpret_cast<NodeHook*>(made.get())->node_id = number;
    it->second = made.get();
    return made;
  }
  static PyObject* const name = HookName("metadata");
  static PyObject* const key = HookName("rankprobe");
  const PyRef metadata = PyRef::Steal(PyObject_GetAttr(node, name));
  if (!metadata) throw py::error_already_set();
  PyObject* known = PyDict_GetItemWithError(metadata.get(), key);
  if (known != nullptr && Py_TYPE(known) == node_hook_type)
    return PyRef::Share(known);
  PyRef made = NewHook();
  if (PyDict_SetItem(metadata.get(), key, made.get()) != 0)
    throw py::error_already_set();
  return made;
}

// Makes the next registration of a hook create no RemovableHandle. PyTorch
// calls a Python function that adds the hook to the node's dict of hooks and
// creates a handle, which takes most of the time of a registration and changes
// a counter of the class of handles. This replaces the vectorcall pointer of
// that function for one call, which adds the hook under a key of its own. No
// Python code runs before that call, and the pointer is restored when the call
// begins.
class WithoutHandle {
 public:
  // If null or not a Python function, nothing is changed.
  explicit WithoutHandle(PyObject* function) {
    if (function == nullptr || !PyFunction_Check(function)) return;
    changed_ = reinterpret_cast<PyFunctionObject*>(function);
    own_ = std::exchange(changed_->vectorcall, &WithoutHandle::Add);
  }
  ~WithoutHandle() { Restore(); }
  WithoutHandle(const WithoutHandle&) = delete;
  WithoutHandle& operator=(const WithoutHandle&) = delete;

 private:
  static void Restore() {
    if (changed_ != nullptr) changed_->vectorcall = own_;
    changed_ = nullptr;
  }

  // (hooks or None, hook) -> (hooks, handle)
  static PyObject* Add(PyObject* function, PyObject* const* args,
                       size_t flagged_count, PyObject* keywords) {
    Restore();
    if (PyVectorcall_NARGS(flagged_count) != 2 || keywords != nullptr)
      return PyObject_Vectorcall(function, args, flagged_count, keywords);
    PyObject* const hook = args[1];
    const PyRef hooks = args[0] == Py_None ? PyRef::Steal(PyODict_New())
                                           : PyRef::Share(args[0]);
    if (!hooks || PyObject_SetItem(hooks.get(), hook, hook) != 0)
      return nullptr;
    return PyTuple_Pack(2, hooks.get(), Py_None);
  }

  // Guarded by the GIL.
  static PyFunctionObject* changed_;
  static vectorcallfunc own_;
};

PyFunctionObject* WithoutHandle::changed_ = nullptr;
vectorcallfunc WithoutHandle::own_ = nullptr;

}  // namespace

void HookNode(PyObject* node, std::shared_ptr<CallGradients> gradients,
              NodeArrivals arrivals, bool before) {
  const TorchBindings& torch = gradients->capture->torch();
  const PyRef object = HookOf(node, torch);
  auto* hook = reinterpret_cast<NodeHook*>(object.get());
  std::vector<NodeEntry>& entries = before ? *hook->before : *hook->after;
  const bool known = !entries.empty();
  // Entries are removed, because a leaf's accumulator may live as long as the
  // leaf.
  std::erase_if(entries, [](const NodeEntry& entry) {
    return !entry.gradients->capture->modules().WantsBackward(
        entry.gradients->call);
  });
  entries.push_back({std::move(gradients), std::move(arrivals)});
  if (!known) RegisterHook(torch, node, object.get(), before);
}

void RegisterHook(const TorchBindings& torch, PyObject* node, PyObject* hook,
                  bool before) {
  static PyObject* const pre = HookName("register_prehook");
  static PyObject* const post = HookName("register_hook");
  const WithoutHandle without(torch.add_hook.get());
  const PyRef handle =
      PyRef::Steal(PyObject_CallMethodOneArg(node, before ? pre : post, hook));
  if (!handle) throw py::error_already_set();
}

bool InitNodeHook() {
  PyType_Slot slots[] = {
      {Py_tp_call, reinterpret_cast<void*>(CallNodeHook)},
      {Py_tp_dealloc, reinterpret_cast<void*>(NodeHookDealloc)},
      {0, nullptr},
  };
  PyType_Spec spec = {"rankprobe._native.NodeHook", sizeof(NodeHook), 0,
                      Py_TPFLAGS_DEFAULT, slots};
  node_hook_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return node_hook_type != nullptr;
}

}  // namespace rankprobe
