// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/torch_bindings.h"

#include "agent/python/native/torch/program_error.h"
#include "common/tensor/dtype.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

// The function of a method that takes its arguments in this form; null if the
// method is another one, or if its calls are redirected now.
PyCFunction DirectFunction(const PyRef& method, PyObject* object, int flags) {
  if (Py_TYPE(method.get()) != &PyMethodDescr_Type) return nullptr;
  const auto* descriptor = reinterpret_cast<PyMethodDescrObject*>(method.get());
  const PyMethodDef* const def = descriptor->d_method;
  return def->ml_flags == flags &&
                 PyObject_TypeCheck(object, descriptor->d_common.d_type) != 0
             ? def->ml_meth
             : nullptr;
}

}  // namespace

TorchBindings::TorchBindings(const py::dict& names)
    : names_(PyRef::Share(names.ptr())) {
  const auto take = [&](const char* name, bool optional = false) {
    if (!names.contains(name) || names[name].is_none()) {
      if (optional) return PyRef();
      throw py::key_error(name);
    }
    return PyRef::Share(py::object(names[name]).ptr());
  };
  tensor_type = reinterpret_cast<PyTypeObject*>(take("Tensor").get());
  parameter_type =
      reinterpret_cast<PyTypeObject*>(take("Parameter", true).get());
  shape = take("shape");
  dtype = take("dtype");
  requires_grad = take("requires_grad");
  version = take("version", true);
  is_cpu = take("is_cpu", true);
  layout = take("layout", true);
  accumulator_type =
      reinterpret_cast<PyTypeObject*>(take("accumulator_type", true).get());
  grad_fn = take("grad_fn");
  output_nr = take("output_nr");
  sequence_number = take("sequence_number", true);
  graph_task = take("graph_task", true);
  accumulator = take("accumulator", true);
  queue_callback = take("queue_callback");
  add_hook = take("add_hook", true);
  gradient_sum = take("gradient_sum");
  gradient_outside = take("gradient_outside");
  data_ptr = take("data_ptr", true);
  stride = take("stride", true);
  storage_offset = take("storage_offset", true);
  is_neg = take("is_neg", true);
  is_conj = take("is_conj", true);
  strided = take("strided", true);
  size_type = take("Size", true);
  dtype_type = take("dtype_type");
  device_type = take("device_type", true);
  memory_format_type = take("memory_format_type", true);
  ndarray_type = take("ndarray", true);
  number_type = take("numpy_number", true);
  process_group_type = take("ProcessGroup", true);
  reduce_op_type = take("ReduceOp", true);
  p2p_type = take("P2POp", true);
  work_type = take("Work", true);
  is_grad_enabled = take("is_grad_enabled");
  disable_torch_function = take("disable_torch_function", true);
  if (disable_torch_function) {
    guard_enter = PyRef::Steal(
        PyObject_GetAttrString(disable_torch_function.get(), "__enter__"));
    guard_exit = PyRef::Steal(
        PyObject_GetAttrString(disable_torch_function.get(), "__exit__"));
    if (!guard_enter || !guard_exit) throw py::error_already_set();
  }
  modes_aside = take("modes_aside", true);
  modes_back = take("modes_back", true);
  node_id = take("node_id", true);
  calls_like_modules = static_cast<bool>(take("calls_like_modules", true));
  describe = take("describe");
  finish_devices = take("finish_devices");
  convert = take("convert");
  source_line = take("source_line");
  if (const PyRef slots = take("device_slots", true); slots)
    device_slots = py::handle(slots.get()).cast<const DeviceStatistics*>();
  if (const PyRef statistics = take("device_statistics", true); statistics) {
    device_statistics = py::handle(statistics.get()).cast<DeviceStatistics*>();
    is_cuda = take("is_cuda");
    get_device = take("get_device");
    raw_stream = take("raw_stream");
  }
  dlpack = DlpackView(take("dlpack_table", true).get());
  for (const auto& [key, value] : py::dict(names["dtypes"])) {
    const v1::DType type = ParseDtype(py::str(value).cast<std::string>());
    if (type != v1::DTYPE_UNSPECIFIED) dtypes[key.ptr()] = type;
  }
}

// Get, Call and Exit are called several times for each recorded tensor or call.
// They call the C function of a descriptor themselves, which saves a part of
// the interpreter's way to it.
PyRef TorchBindings::Get(const PyRef& property, PyObject* object) {
  if (Py_TYPE(property.get()) == &PyGetSetDescr_Type) {
    const auto* descriptor =
        reinterpret_cast<PyGetSetDescrObject*>(property.get());
    const PyGetSetDef* const def = descriptor->d_getset;
    if (def->get != nullptr &&
        PyObject_TypeCheck(object, descriptor->d_common.d_type) != 0)
      return PyRef::Steal(def->get(object, def->closure));
  }
  const descrgetfunc get = Py_TYPE(property.get())->tp_descr_get;
  return PyRef::Steal(get(property.get(), object,
                          reinterpret_cast<PyObject*>(Py_TYPE(object))));
}

PyRef TorchBindings::Call(const PyRef& method, PyObject* object) {
  const PyCFunction function = DirectFunction(method, object, METH_NOARGS);
  return PyRef::Steal(function != nullptr
                          ? function(object, nullptr)
                          : PyObject_CallOneArg(method.get(), object));
}

PyRef TorchBindings::Exit(const PyRef& method, PyObject* object) {
  static PyObject* const nones = PyTuple_Pack(3, Py_None, Py_None, Py_None);
  const PyCFunction function = DirectFunction(method, object, METH_VARARGS);
  if (function != nullptr && nones != nullptr)
    return PyRef::Steal(function(object, nones));
  PyObject* const args[] = {object, Py_None, Py_None, Py_None};
  return PyRef::Steal(PyObject_Vectorcall(method.get(), args, 4, nullptr));
}

bool TorchBindings::GetInt(const PyRef& property, PyObject* object,
                           int64_t* out) {
  const PyRef value = Get(property, object);
  *out = value ? PyLong_AsLongLong(value.get()) : -1;
  if (PyErr_Occurred() == nullptr) return true;
  ClearOwnError();
  return false;
}

bool TorchBindings::CallInt(const PyRef& method, PyObject* object,
                            uint64_t* out) {
  const PyRef value = Call(method, object);
  *out = value ? PyLong_AsUnsignedLongLong(value.get()) : 0;
  if (PyErr_Occurred() == nullptr) return true;
  ClearOwnError();
  return false;
}

bool TorchBindings::IsTrue(const PyRef& property, PyObject* object) {
  const PyRef value = Get(property, object);
  if (!value) ClearOwnError();
  return value && value.get() == Py_True;
}

bool TorchBindings::IsLeaf(PyObject* node) const {
  if (accumulator_type != nullptr) return Py_TYPE(node) == accumulator_type;
  const PyRef leaf =
      PyRef::Steal(PyObject_CallMethod(node, "is_leaf", nullptr));
  if (!leaf) ClearOwnError();
  return leaf && leaf.get() == Py_True;
}

bool TorchBindings::GradEnabled() const {
  const PyRef value = PyRef::Steal(PyObject_CallNoArgs(is_grad_enabled.get()));
  if (!value) ClearOwnError();
  return value && value.get() == Py_True;
}

}  // namespace rankprobe
