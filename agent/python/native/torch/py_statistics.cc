// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/py_statistics.h"

#include <cstdint>

#include "agent/python/native/torch/program_error.h"

namespace rankprobe {

void ReadPyStatistics(PyObject* four, v1::TensorStats* out) {
  if (!PyTuple_Check(four) || PyTuple_GET_SIZE(four) != 4) return;
  const auto number = [&](Py_ssize_t i, auto set_float, auto set_int,
                          auto set_bool) {
    PyObject* value = PyTuple_GET_ITEM(four, i);
    if (PyBool_Check(value)) return set_bool(value == Py_True);
    int overflow = 0;
    if (PyLong_Check(value)) {
      const long long exact = PyLong_AsLongLongAndOverflow(value, &overflow);
      if (overflow == 0) return set_int(exact);
    }
    const double wide = value == Py_None ? 0 : PyFloat_AsDouble(value);
    if (value != Py_None && PyErr_Occurred() == nullptr) set_float(wide);
    ClearOwnError();
  };
  number(
      0, [&](double x) { out->set_max_f(x); },
      [&](int64_t x) { out->set_max_i(x); },
      [&](bool x) { out->set_max_b(x); });
  number(
      1, [&](double x) { out->set_min_f(x); },
      [&](int64_t x) { out->set_min_i(x); },
      [&](bool x) { out->set_min_b(x); });
  number(
      2, [&](double x) { out->set_mean_f(x); },
      [&](int64_t x) { out->set_mean_i(x); }, [](bool) {});
  number(
      3, [&](double x) { out->set_norm_f(x); },
      [&](int64_t x) { out->set_norm_i(x); }, [](bool) {});
}

}  // namespace rankprobe
