// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/function_redirect.h"

#include <algorithm>

#include "agent/python/native/torch/program_error.h"

namespace rankprobe {
namespace {

PyObject* WrappedName() {
  static PyObject* const name = PyUnicode_InternFromString("__wrapped__");
  return name;
}

}  // namespace

void FunctionRedirect::Prefetch() const {
  const PyFunctionObject* const function = Function();
  __builtin_prefetch(function);
  __builtin_prefetch(reinterpret_cast<const char*>(function) + 64);
  __builtin_prefetch(made_.code.get());
  __builtin_prefetch(made_.own.get());
  __builtin_prefetch(original_.get());
  __builtin_prefetch(put_.data());
}

bool FunctionRedirect::IsOurs(PyObject* code) const {
  PyObject* const file =
      reinterpret_cast<const PyCodeObject*>(code)->co_filename;
  return file == file_.get() || PyUnicode_Compare(file, file_.get()) == 0;
}

bool FunctionRedirect::SetCode(PyObject* code) const {
  static PyObject* const name = PyUnicode_InternFromString("__code__");
  return PyObject_SetAttr(function_.get(), name, code) == 0;
}

// Updates the original: the program may have changed the code or the defaults.
bool FunctionRedirect::RefreshOriginal(PyObject* own) {
  static PyObject* const code = PyUnicode_InternFromString("__code__");
  const PyFunctionObject* const now = Function();
  auto* const twin = reinterpret_cast<PyFunctionObject*>(original_.get());
  if (twin->func_code != own &&
      PyObject_SetAttr(original_.get(), code, own) != 0)
    return false;
  const auto or_none = [](PyObject* value) {
    return value == nullptr ? Py_None : value;
  };
  return (twin->func_defaults == now->func_defaults ||
          PyFunction_SetDefaults(original_.get(),
                                 or_none(now->func_defaults)) == 0) &&
         (twin->func_kwdefaults == now->func_kwdefaults ||
          PyFunction_SetKwDefaults(original_.get(),
                                   or_none(now->func_kwdefaults)) == 0);
}

void FunctionRedirect::Put(PyObject* target) {
  const PyRef own = PyRef::Share(Function()->func_code);
  // If this target replaced `own` before, `own` is code of the program.
  const bool known =
      made_.target.get() == target && made_.own.get() == own.get();
  if (put_.empty() && (known || !IsOurs(own.get())) &&
      !RefreshOriginal(own.get()))
    return ClearOwnError();
  if (!known) {
    PyRef code = PyRef::Steal(PyObject_CallFunctionObjArgs(
        make_code_.get(), target, own.get(), nullptr));
    if (!code) return ClearOwnError();
    made_ = {PyRef::Share(target), std::move(code), own};
  }
  put_.push_back(made_);
  if (!SetCode(made_.code.get())) {
    put_.pop_back();
    return ClearOwnError();
  }
  PyObject* const attributes = Function()->func_dict;
  const int wrapped =
      attributes == nullptr ? 0 : PyDict_Contains(attributes, WrappedName());
  if (wrapped != 0 || PyObject_GenericSetAttr(function_.get(), WrappedName(),
                                              original_.get()) != 0)
    ClearOwnError();
}

void FunctionRedirect::Take(PyObject* target) {
  const auto at = std::find_if(
      put_.begin(), put_.end(),
      [target](const Code& put) { return put.target.get() == target; });
  if (at == put_.end()) return;
  // Its destructor may run Python code, which must not see the list half
  // changed.
  const Code taken = std::move(*at);
  for (auto over = put_.erase(at); over != put_.end(); ++over) {
    if (over->own.get() == taken.code.get()) over->own = taken.own;
  }
  if (Function()->func_code == taken.code.get() && !SetCode(taken.own.get()))
    ClearOwnError();
  PyObject* const attributes = Function()->func_dict;
  if (!put_.empty() || attributes == nullptr) return;
  if (PyDict_GetItemWithError(attributes, WrappedName()) == original_.get() &&
      PyDict_DelItem(attributes, WrappedName()) == 0)
    return;
  ClearOwnError();
}

}  // namespace rankprobe
