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

PyObject* CodeName() {
  static PyObject* const name = PyUnicode_InternFromString("__code__");
  return name;
}

// Returns whether the attributes contain a `__wrapped__` of the program.
bool HasWrapped(PyObject* dict) {
  const int found = dict == nullptr ? 0 : PyDict_Contains(dict, WrappedName());
  if (found < 0) ClearOwnError();
  return found > 0;
}

// The two codes have as many free variables.
bool ExchangeCode(PyFunctionObject* function, PyObject* code) {
#if PY_VERSION_HEX >= 0x030C0000  // another tool may watch functions
  if (PyObject_SetAttr(reinterpret_cast<PyObject*>(function), CodeName(),
                       code) == 0)
    return true;
  ClearOwnError();
  return false;
#else
  Py_INCREF(code);
  PyObject* const before = std::exchange(function->func_code, code);
#if PY_VERSION_HEX >= 0x030B0000
  // The interpreter's caches for calls of this function refer to the other
  // code.
  function->func_version = 0;
#endif
  Py_DECREF(before);
  return true;
#endif
}

}  // namespace

bool CopyDefaults(PyObject* from, PyObject* to) {
  const auto* const now = reinterpret_cast<PyFunctionObject*>(from);
  const auto* const twin = reinterpret_cast<PyFunctionObject*>(to);
  const auto or_none = [](PyObject* value) {
    return value == nullptr ? Py_None : value;
  };
  return (twin->func_defaults == now->func_defaults ||
          PyFunction_SetDefaults(to, or_none(now->func_defaults)) == 0) &&
         (twin->func_kwdefaults == now->func_kwdefaults ||
          PyFunction_SetKwDefaults(to, or_none(now->func_kwdefaults)) == 0);
}

bool FunctionRedirect::IsOurs(PyObject* code) const {
  PyObject* const file =
      reinterpret_cast<const PyCodeObject*>(code)->co_filename;
  return file == file_.get() || PyUnicode_Compare(file, file_.get()) == 0;
}

bool FunctionRedirect::SetCode(PyObject* code) const {
  return PyObject_SetAttr(function_.get(), CodeName(), code) == 0;
}

// Updates the original: the program may have changed the code or the defaults.
bool FunctionRedirect::RefreshOriginal(PyObject* own) {
  auto* const twin = reinterpret_cast<PyFunctionObject*>(original_.get());
  return (twin->func_code == own ||
          PyObject_SetAttr(original_.get(), CodeName(), own) == 0) &&
         CopyDefaults(function_.get(), original_.get());
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
  if (!HasWrapped(Function()->func_dict) &&
      PyObject_GenericSetAttr(function_.get(), WrappedName(),
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
  if (PyDict_GetItemWithError(attributes, WrappedName()) != original_.get() ||
      PyDict_DelItem(attributes, WrappedName()) != 0)
    return ClearOwnError();
  // Removes the dict if the redirect created it and nothing else refers to it.
  if (PyDict_GET_SIZE(attributes) == 0 && Py_REFCNT(attributes) == 1)
    Py_CLEAR(Function()->func_dict);
}

bool FunctionRedirects::PutSeen(Call* call) {
  PyFunctionObject* const function = call->function;
  Seen& seen = call->seen;
  PyObject* const dict = function->func_dict;
  if (!seen.code || seen.is_put || function->func_code != seen.own.get() ||
      function->func_defaults != seen.defaults.get() ||
      function->func_kwdefaults != seen.keyword_defaults.get() ||
      (seen.attributes ? dict != nullptr : !HasWrapped(dict)))
    return false;
  if (!ExchangeCode(function, seen.code.get())) return false;
  if (seen.attributes) function->func_dict = PyRef(seen.attributes).release();
  seen.is_put = true;
  return true;
}

bool FunctionRedirects::TakeSeen(Call* call) {
  PyFunctionObject* const function = call->function;
  Seen& seen = call->seen;
  PyObject* const attributes = seen.attributes.get();
  if (!seen.is_put || function->func_code != seen.code.get()) return false;
  // Another object refers to the attributes, or the program has added one.
  if (attributes != nullptr &&
      (function->func_dict != attributes || Py_REFCNT(attributes) != 2 ||
       PyDict_GET_SIZE(attributes) != 1))
    return false;
  if (!ExchangeCode(function, seen.own.get())) return false;
  seen.is_put = false;
  if (attributes != nullptr) Py_CLEAR(function->func_dict);
  return true;
}

// Hands the redirection over to FunctionRedirect, as if Put of that had made
// it.
void FunctionRedirects::Forget(Call* call) {
  Seen& seen = call->seen;
  if (!seen.is_put) return;
  auto& put = call->redirect->put_;
  put.insert(put.begin(), {call->target, seen.code, seen.own});
  seen = Seen();
}

// Remembers the state after FunctionRedirect::Put, which the next Put may find.
void FunctionRedirects::See(Call* call) {
  const FunctionRedirect& redirect = *call->redirect;
  PyFunctionObject* const function = call->function;
  if (call->seen.is_put || redirect.put_.size() != 1 ||
      redirect.put_.back().target.get() != call->target.get())
    return;
  PyRef attributes;
  PyObject* const dict = function->func_dict;
  if (dict != nullptr &&
      PyDict_GetItemWithError(dict, WrappedName()) == redirect.original()) {
    attributes = PyRef::Steal(PyDict_Copy(dict));
    // A function with other attributes takes the way of FunctionRedirect.
    if (!attributes || PyDict_GET_SIZE(attributes.get()) != 1)
      return ClearOwnError();
  }
  call->seen = {redirect.put_.back().own, redirect.put_.back().code,
                PyRef::Share(function->func_defaults),
                PyRef::Share(function->func_kwdefaults), std::move(attributes)};
}

void FunctionRedirects::Put() {
  constexpr size_t kAhead = 6;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (i + kAhead < calls_.size()) calls_[i + kAhead].Prefetch();
    if (PutSeen(&calls_[i])) continue;
    Forget(&calls_[i]);
    calls_[i].redirect->Put(calls_[i].target.get());
    See(&calls_[i]);
  }
}

void FunctionRedirects::Take() {
  constexpr size_t kAhead = 6;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (i + kAhead < calls_.size()) calls_[i + kAhead].Prefetch();
    if (TakeSeen(&calls_[i])) continue;
    Forget(&calls_[i]);
    calls_[i].redirect->Take(calls_[i].target.get());
  }
}

}  // namespace rankprobe
