// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/session/idle_calls.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

using Weak = std::weak_ptr<Recorder>;

template <bool (Recorder::*Method)()>
PyObject* Call(PyObject* owner, PyObject*) {
  const std::shared_ptr<Recorder> recorder =
      static_cast<Weak*>(PyCapsule_GetPointer(owner, nullptr))->lock();
  return PyBool_FromLong(
      static_cast<long>(  // NOLINT(google-runtime-int): Python's
          recorder != nullptr && ((*recorder).*Method)()));
}

PyMethodDef start_idle = {"start_idle", &Call<&Recorder::StartIdle>,
                          METH_NOARGS, nullptr};
PyMethodDef step_idle = {"step_idle", &Call<&Recorder::StepIdle>, METH_NOARGS,
                         nullptr};

}  // namespace

py::tuple MakeIdleCalls(const std::shared_ptr<Recorder>& recorder) {
  auto weak = std::make_unique<Weak>(recorder);
  const py::capsule owner(
      weak.get(), [](void* pointer) { delete static_cast<Weak*>(pointer); });
  // The capsule owns it from here on.
  static_cast<void>(weak.release());
  const auto function = [&owner](PyMethodDef* method) {
    return py::reinterpret_steal<py::object>(
        PyCFunction_New(method, owner.ptr()));
  };
  return py::make_tuple(function(&start_idle), function(&step_idle));
}

}  // namespace rankprobe
