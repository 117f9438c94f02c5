// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/api_object.h"

#include <structmember.h>

#include <memory>
#include <new>
#include <utility>

#include "agent/python/native/torch/function_redirect.h"
#include "agent/python/native/torch/module_gradients.h"
#include "agent/python/native/torch/program_error.h"

namespace rankprobe {
namespace {

struct ApiObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* function;
  // The Python function whose calls are redirected here, or null. `function`
  // has its code.
  PyObject* redirected;
  PyObject* dict;
  PyObject* weak_references;
  std::shared_ptr<Capture>* capture;
  ApiSpec* spec;
};

struct BackwardHook {
  PyObject_HEAD std::shared_ptr<Capture> capture;
  RecordedCall call;
  uint64_t order;
};

PyTypeObject* api_function_type = nullptr;
PyTypeObject* api_method_type = nullptr;
PyTypeObject* backward_hook_type = nullptr;

ApiObject* AsApi(PyObject* object) {
  return reinterpret_cast<ApiObject*>(object);
}

PyObject* Record(ApiObject* api, PyObject* const* args, size_t flagged_count,
                 PyObject* keywords) {
  Capture& capture = **api->capture;
  ApiCapture& apis = capture.apis();
  const Py_ssize_t count = PyVectorcall_NARGS(flagged_count);
  // Nested calls belong to the program: only rankprobe's own reads of tensors
  // are hidden from the program's modes and classes.
  const CallScope outermost;
  RecordedCall call;
  std::unique_ptr<ModuleGradients> gradients;
  {
    const QuietScope quiet(capture.quiet());
    call = apis.Begin(*api->spec, args, count, keywords);
    gradients = apis.BeginGradients(call, args, count);
  }
  PyObject* result =
      PyObject_Vectorcall(api->function, args, flagged_count, keywords);
  const QuietScope quiet(capture.quiet());
  if (result == nullptr) {
    apis.Abandon(call);
    return nullptr;
  }
  apis.End(*api->spec, std::move(call), args, count, keywords, result,
           gradients.get());
  return result;
}

PyObject* CallApi(PyObject* self, PyObject* const* args, size_t flagged_count,
                  PyObject* keywords) {
  ApiObject* api = AsApi(self);
  // The program may change the defaults at any time.
  if (api->redirected != nullptr &&
      !CopyDefaults(api->redirected, api->function))
    ClearOwnError();
  if (!(*api->capture)->ApisActive() || CallScope::Active()) {
    return PyObject_Vectorcall(api->function, args, flagged_count, keywords);
  }
  if (keywords != nullptr && PyVectorcall_NARGS(flagged_count) == 0) {
    // self= given by name is recorded as the first argument.
    const Py_ssize_t named = PyTuple_GET_SIZE(keywords);
    for (Py_ssize_t i = 0; i < named; ++i) {
      if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(keywords, i),
                                           "self") != 0) {
        continue;
      }
      std::vector<PyObject*> moved = {args[i]};
      const PyRef names = PyRef::Steal(PyTuple_New(named - 1));
      if (!names) return nullptr;
      for (Py_ssize_t j = 0, to = 0; j < named; ++j) {
        if (j == i) continue;
        moved.push_back(args[j]);
        PyObject* name = PyTuple_GET_ITEM(keywords, j);
        Py_INCREF(name);
        PyTuple_SET_ITEM(names.get(), to++, name);
      }
      return Record(api, moved.data(), 1, named > 1 ? names.get() : nullptr);
    }
  }
  return Record(api, args, flagged_count, keywords);
}

PyObject* ApiGetAttribute(PyObject* self, PyObject* name) {
  // Attributes that the type itself would return.
  for (const char* own : {"__module__", "__doc__", "__name__", "__class__"}) {
    if (PyUnicode_CompareWithASCIIString(name, own) == 0)
      return PyObject_GetAttr(AsApi(self)->function, name);
  }
  PyObject* value = PyObject_GenericGetAttr(self, name);
  if (value != nullptr || PyErr_ExceptionMatches(PyExc_AttributeError) == 0)
    return value;
  ClearOwnError();
  return PyObject_GetAttr(AsApi(self)->function, name);
}

// The function that an object stands in for: programs that compare functions
// see no difference.
PyObject* FunctionOf(PyObject* object) {
  return Py_TYPE(object) == api_function_type ||
                 Py_TYPE(object) == api_method_type
             ? AsApi(object)->function
             : object;
}

PyObject* ApiCompare(PyObject* self, PyObject* other, int operation) {
  if (operation != Py_EQ && operation != Py_NE) Py_RETURN_NOTIMPLEMENTED;
  return PyObject_RichCompare(FunctionOf(self), FunctionOf(other), operation);
}

Py_hash_t ApiHash(PyObject* self) {
  return PyObject_Hash(AsApi(self)->function);
}

PyObject* ApiRepr(PyObject* self) {
  return PyObject_Repr(AsApi(self)->function);
}

PyObject* ApiBind(PyObject* self, PyObject* object, PyObject* /*type*/) {
  if (object == nullptr || object == Py_None) {
    Py_INCREF(self);
    return self;
  }
  return PyMethod_New(self, object);
}

int ApiTraverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(AsApi(self)->function);
  Py_VISIT(AsApi(self)->redirected);
  Py_VISIT(AsApi(self)->dict);
  return 0;
}

int ApiClear(PyObject* self) {
  Py_CLEAR(AsApi(self)->dict);
  return 0;
}

void ApiDealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  ApiObject* api = AsApi(self);
  if (api->weak_references != nullptr) PyObject_ClearWeakRefs(self);
  Py_CLEAR(api->function);
  Py_CLEAR(api->redirected);
  Py_CLEAR(api->dict);
  delete api->capture;
  delete api->spec;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// Pickled as the original function, and loaded without rankprobe. Pickling by
// name would look the name up, find this stand-in, and fail because it is not
// the same object.
PyObject* ApiReduceEx(PyObject* self, PyObject* protocol) {
  PyObject* function = AsApi(self)->function;
  if (!PyFunction_Check(function)) {
    PyRef reduced = PyRef::Steal(
        PyObject_CallMethod(function, "__reduce_ex__", "O", protocol));
    if (!reduced || !PyUnicode_Check(reduced.get())) return reduced.release();
  }
  const PyRef module =
      PyRef::Steal(PyObject_GetAttrString(function, "__module__"));
  const PyRef name = PyRef::Steal(
      module ? PyObject_GetAttrString(function, "__qualname__") : nullptr);
  const PyRef path = PyRef::Steal(
      name ? PyUnicode_FromFormat("%S.%S", module.get(), name.get()) : nullptr);
  const PyRef pydoc =
      PyRef::Steal(path ? PyImport_ImportModule("pydoc") : nullptr);
  const PyRef locate = PyRef::Steal(
      pydoc ? PyObject_GetAttrString(pydoc.get(), "locate") : nullptr);
  return locate ? Py_BuildValue("O(O)", locate.get(), path.get()) : nullptr;
}

PyObject* ApiReduce(PyObject* self, PyObject* /*unused*/) {
  const PyRef protocol = PyRef::Steal(PyLong_FromLong(2));
  return protocol ? ApiReduceEx(self, protocol.get()) : nullptr;
}

// copy.copy and copy.deepcopy of a function return the function.
PyObject* ApiCopy(PyObject* self, PyObject* /*unused*/) {
  Py_INCREF(AsApi(self)->function);
  return AsApi(self)->function;
}

PyMethodDef api_methods[] = {
    {"__reduce__", ApiReduce, METH_NOARGS, nullptr},
    {"__reduce_ex__", ApiReduceEx, METH_O, nullptr},
    {"__copy__", ApiCopy, METH_NOARGS, nullptr},
    {"__deepcopy__", ApiCopy, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef api_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(ApiObject, function), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ApiObject, vectorcall),
     READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(ApiObject, dict), READONLY,
     nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ApiObject, weak_references),
     READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

void* Slot(auto* function) { return reinterpret_cast<void*>(function); }

void HookDealloc(PyObject* self) {
  auto* hook = reinterpret_cast<BackwardHook*>(self);
  hook->capture.~shared_ptr();
  hook->call.~RecordedCall();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* CallHook(PyObject* self, PyObject* args, PyObject* /*keywords*/) {
  auto* hook = reinterpret_cast<BackwardHook*>(self);
  if (PyTuple_GET_SIZE(args) == 2) {
    const QuietScope quiet(hook->capture->quiet());
    hook->capture->apis().Backward(hook->call, hook->order,
                                   PyTuple_GET_ITEM(args, 0),
                                   PyTuple_GET_ITEM(args, 1));
  }
  Py_RETURN_NONE;
}

PyTypeObject* MakeApiType(const char* name, bool binds) {
  PyType_Slot slots[] = {
      {Py_tp_call, Slot(PyVectorcall_Call)},
      {Py_tp_dealloc, Slot(ApiDealloc)},
      {Py_tp_traverse, Slot(ApiTraverse)},
      {Py_tp_clear, Slot(ApiClear)},
      {Py_tp_getattro, Slot(ApiGetAttribute)},
      {Py_tp_setattro, Slot(PyObject_GenericSetAttr)},
      {Py_tp_repr, Slot(ApiRepr)},
      {Py_tp_richcompare, Slot(ApiCompare)},
      {Py_tp_hash, Slot(ApiHash)},
      {Py_tp_members, api_members},
      {Py_tp_methods, api_methods},
      {binds ? Py_tp_descr_get : 0, binds ? Slot(ApiBind) : nullptr},
      {0, nullptr},
  };
  PyType_Spec spec = {
      name, sizeof(ApiObject), 0,
      static_cast<unsigned>(Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                            Py_TPFLAGS_HAVE_VECTORCALL |
                            (binds ? Py_TPFLAGS_METHOD_DESCRIPTOR : 0UL)),
      slots};
  return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

}  // namespace

PyObject* NewApiObject(PyObject* function, std::shared_ptr<Capture> capture,
                       ApiSpec spec, PyObject* redirected) {
  PyTypeObject* type = Py_TYPE(function)->tp_descr_get != nullptr
                           ? api_method_type
                           : api_function_type;
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  ApiObject* api = AsApi(self);
  api->vectorcall = CallApi;
  Py_INCREF(function);
  api->function = function;
  Py_XINCREF(redirected);
  api->redirected = redirected;
  api->capture = new std::shared_ptr<Capture>(std::move(capture));
  api->spec = new ApiSpec(std::move(spec));
  return self;
}

PyObject* NewBackwardHook(std::shared_ptr<Capture> capture, RecordedCall call,
                          uint64_t order) {
  PyObject* self = backward_hook_type->tp_alloc(backward_hook_type, 0);
  if (self == nullptr) return nullptr;
  auto* hook = reinterpret_cast<BackwardHook*>(self);
  new (&hook->capture) std::shared_ptr<Capture>(std::move(capture));
  new (&hook->call) RecordedCall(std::move(call));
  hook->order = order;
  return self;
}

bool InitApiTypes(PyObject* module) {
  api_function_type = MakeApiType("rankprobe._native.ApiFunction", false);
  api_method_type = MakeApiType("rankprobe._native.ApiMethod", true);
  PyType_Slot hook_slots[] = {
      {Py_tp_call, Slot(CallHook)},
      {Py_tp_dealloc, Slot(HookDealloc)},
      {0, nullptr},
  };
  PyType_Spec hook_spec = {"rankprobe._native.BackwardHook",
                           sizeof(BackwardHook), 0, Py_TPFLAGS_DEFAULT,
                           hook_slots};
  backward_hook_type =
      reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&hook_spec));
  if (api_function_type == nullptr || api_method_type == nullptr ||
      backward_hook_type == nullptr) {
    return false;
  }
  return PyModule_AddObjectRef(
             module, "ApiFunction",
             reinterpret_cast<PyObject*>(api_function_type)) == 0 &&
         PyModule_AddObjectRef(module, "ApiMethod",
                               reinterpret_cast<PyObject*>(api_method_type)) ==
             0;
}

}  // namespace rankprobe
