// SPDX-License-Identifier: Apache-2.0
// The native code's view of the framework in this process: type objects and
// attribute descriptors, passed once by rankprobe.pytorch. A framework whose
// tensors are not read by descriptors (rankprobe.mindspore) omits those and
// describes its tensors. Reading a tensor through descriptors needs no ABI of
// PyTorch, so one build serves every version. Threads: used with the GIL held.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_TORCH_BINDINGS_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_TORCH_BINDINGS_H_

#include <pybind11/pybind11.h>

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "agent/python/native/session/py_ref.h"
#include "agent/python/native/torch/dlpack_view.h"
#include "agent/runtime/device/device_statistics.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class TorchBindings {
 public:
  // `names`: see _bindings.py of rankprobe.pytorch and rankprobe.mindspore.
  // Throws if a required one is missing.
  explicit TorchBindings(const pybind11::dict& names);

  bool IsTensor(PyObject* object) const {
    return PyObject_TypeCheck(object, tensor_type) != 0;
  }
  // Whether the object is exactly a torch.Tensor or Parameter, which can be
  // read by descriptors.
  bool IsPlainTensor(PyObject* object) const {
    return Py_TYPE(object) == tensor_type || Py_TYPE(object) == parameter_type;
  }
  bool IsParameter(PyObject* object) const {
    return parameter_type != nullptr &&
           PyObject_TypeCheck(object, parameter_type) != 0;
  }
  bool IsInstance(PyObject* object, const PyRef& type) const {
    return type && PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(
                                                  type.get())) != 0;
  }
  v1::DType Dtype(PyObject* torch_dtype) const {
    const auto it = dtypes.find(torch_dtype);
    return it == dtypes.end() ? v1::DTYPE_UNSPECIFIED : it->second;
  }
  bool GradEnabled() const;
  // Whether the node ends a path of the graph.
  bool IsLeaf(PyObject* node) const;
  // The gradients of a call are those of its own arguments and outputs, as for
  // a module, independent of the graph's nodes.
  bool calls_like_modules = false;

  // Returns the value of a property, or of a method without arguments; null
  // with an error set.
  static PyRef Get(const PyRef& property, PyObject* object);
  static PyRef Call(const PyRef& method, PyObject* object);
  // Calls __exit__(object, None, None, None).
  static PyRef Exit(const PyRef& method, PyObject* object);
  // The same as a number; returns false, without an error set, if that fails.
  static bool GetInt(const PyRef& property, PyObject* object, int64_t* out);
  static bool CallInt(const PyRef& method, PyObject* object, uint64_t* out);
  static bool IsTrue(const PyRef& property, PyObject* object);

  PyTypeObject* tensor_type = nullptr;
  PyTypeObject* parameter_type = nullptr;
  // Type of the node that adds to a leaf's gradient.
  PyTypeObject* accumulator_type = nullptr;
  // Properties.
  PyRef shape, dtype, requires_grad, version, is_cpu, layout, grad_fn,
      output_nr;
  // Methods.
  PyRef data_ptr, stride, storage_offset, is_neg, is_conj;
  PyRef strided;
  // Types; some are absent in some builds.
  PyRef size_type, dtype_type, device_type, memory_format_type, ndarray_type,
      number_type, process_group_type, reduce_op_type, p2p_type, work_type;
  // Functions.
  PyRef is_grad_enabled;
  // torch._C.DisableTorchFunction and its __enter__ and __exit__. If modes
  // still see calls with it (below 2.0): modes_aside() removes the modes, and
  // modes_back(result) restores them.
  PyRef disable_torch_function, guard_enter, guard_exit, modes_aside,
      modes_back;
  // node_id(node), for a framework that creates a new object each time a node
  // is accessed.
  PyRef node_id;
  // describe(tensor, needs, generation) -> dict, for tensors that cannot be
  // read by descriptors; see ValueReader::ReadDescribed.
  PyRef describe;
  // finish_devices() -> (first slot, end slot, address, keep) of the results
  // that describe deferred, four words for each slot; address 0 if there are
  // none. Waits for devices.
  PyRef finish_devices;
  // Has the slots of these results; null if that is unknown.
  const DeviceStatistics* device_slots = nullptr;
  // convert(object, kwarg) -> an object of plain values, or None.
  PyRef convert;
  // For the autograd graph; the first two are absent in older PyTorch. Number
  // of the next node of this thread; number of the running pass;
  // accumulator(leaf) -> its node; queue_callback(function), which is called
  // when the running pass has ended.
  PyRef sequence_number, graph_task, accumulator, queue_callback;
  // torch.autograd.Function._register_hook, with which PyTorch adds a hook to
  // the dict of hooks of a node. May be absent.
  PyRef add_hook;
  // gradient_sum(a, b), which changes neither; gradient_outside(all, inside):
  // the difference, None if there is none.
  PyRef gradient_sum, gradient_outside;
  // For CUDA devices; null or absent if there are none. raw_stream(device) ->
  // the current stream, as a number.
  DeviceStatistics* device_statistics = nullptr;
  PyRef is_cuda, get_device, raw_stream;
  // frame_line(file, line) -> the source line.
  PyRef source_line;

  DlpackView dlpack;
  absl::flat_hash_map<PyObject*, v1::DType> dtypes;

 private:
  // Keeps all of the above alive.
  PyRef names_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_TORCH_BINDINGS_H_
