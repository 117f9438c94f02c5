// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/call_redirect.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <unordered_map>
#include <utility>

#include "agent/python/native/torch/program_error.h"

namespace rankprobe {
namespace {

constexpr int kCallFlags = METH_VARARGS | METH_KEYWORDS | METH_NOARGS | METH_O |
                           METH_FASTCALL | METH_METHOD;

// CPython does not pass the PyMethodDef to a C function, so each function of
// the table below needs static data.
std::array<CallRedirect*, CallRedirect::kMaxMethods> methods{};
size_t method_count = 0;

PyObject* CallBoundTo(const CallRedirect& redirect, PyObject* self,
                      PyObject* args, PyObject* keywords) {
  const PyRef target = redirect.Current();
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  const PyRef all = PyRef::Steal(PyTuple_New(count + 1));
  if (!all) return nullptr;
  Py_INCREF(self);
  PyTuple_SET_ITEM(all.get(), 0, self);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PyTuple_GET_ITEM(args, i);
    Py_INCREF(item);
    PyTuple_SET_ITEM(all.get(), i + 1, item);
  }
  return PyObject_Call(target.get(), all.get(), keywords);
}

template <size_t kIndex>
PyObject* CallBound(PyObject* self, PyObject* args, PyObject* keywords) {
  return CallBoundTo(*methods[kIndex], self, args, keywords);
}

template <size_t... kIndices>
constexpr std::array<PyCFunctionWithKeywords, sizeof...(kIndices)> BoundTable(
    std::index_sequence<kIndices...> /*unused*/) {
  return {CallBound<kIndices>...};
}

constexpr auto kBound =
    BoundTable(std::make_index_sequence<CallRedirect::kMaxMethods>());

PyMethodDef** DefOf(PyObject* function) {
  if (Py_TYPE(function) == &PyCFunction_Type)
    return &reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  return &reinterpret_cast<PyMethodDescrObject*>(function)->d_method;
}

static_assert(offsetof(PyCFunctionObject, vectorcall) ==
              offsetof(PyMethodDescrObject, vectorcall));

vectorcallfunc* CallOf(PyObject* function) {
  return &reinterpret_cast<PyCFunctionObject*>(function)->vectorcall;
}

}  // namespace

CallRedirect* CallRedirect::Of(PyObject* function) {
  const bool is_method = Py_TYPE(function) == &PyMethodDescr_Type;
  if (!is_method && Py_TYPE(function) != &PyCFunction_Type) return nullptr;
  static auto* const known = new std::unordered_map<PyObject*, CallRedirect*>();
  if (const auto it = known->find(function); it != known->end())
    return it->second;
  if (is_method && method_count == kMaxMethods) return nullptr;
  PyMethodDef* const def = *DefOf(function);
  if ((def->ml_flags & METH_METHOD) != 0) return nullptr;
  PyRef original;
  if (is_method) {
    original = PyRef::Steal(PyDescr_NewMethod(
        reinterpret_cast<PyMethodDescrObject*>(function)->d_common.d_type,
        def));
  } else {
    auto* const builtin = reinterpret_cast<PyCFunctionObject*>(function);
    original = PyRef::Steal(
        PyCFunction_NewEx(def, builtin->m_self, builtin->m_module));
  }
  if (!original) {
    ClearOwnError();
    return nullptr;
  }
  auto* const redirect = new CallRedirect(function, std::move(original), def);
  if (is_method) {
    methods[method_count] = redirect;
    redirect->definition_.def.ml_meth = reinterpret_cast<PyCFunction>(
        reinterpret_cast<void*>(kBound[method_count]));
    ++method_count;
  }
  known->emplace(function, redirect);
  return redirect;
}

CallRedirect::CallRedirect(PyObject* function, PyRef original,
                           PyMethodDef* own_def)
    : function_(PyRef::Share(function)),
      original_(std::move(original)),
      own_def_(own_def),
      own_call_(*CallOf(function)),
      definition_{*own_def, this, PyRef()} {
  // A builtin keeps its ml_meth, by which CPython hashes and compares it. If
  // that takes arguments in another form, it must not be called by these flags;
  // CPython does not do so while the object has a vectorcall.
  const int flags = own_def->ml_flags & kCallFlags;
  if (Py_TYPE(function) == &PyCFunction_Type && flags == METH_VARARGS) return;
  definition_.def.ml_flags =
      (own_def->ml_flags & ~kCallFlags) | METH_VARARGS | METH_KEYWORDS;
}

CallRedirect::Definition* CallRedirect::NewDefinition(PyObject* target) {
  auto at = std::find_if(definitions_.begin(), definitions_.end(),
                         [](const Definition& one) { return !one.target; });
  if (at == definitions_.end())
    at = definitions_.insert(at, {definition_.def, this, PyRef()});
  at->target = PyRef::Share(target);
  return &*at;
}

void CallRedirect::Put(PyObject* target) {
  PyMethodDef* const def = *DefOf(function_.get());
  // CallRedirects has put a target, which is now one of several.
  if (targets_.empty() && def != own_def_)
    targets_.push_back(reinterpret_cast<Definition*>(def)->target);
  targets_.push_back(PyRef::Share(target));
  Apply();
}

void CallRedirect::Take(PyObject* target) {
  const auto at =
      std::find_if(targets_.rbegin(), targets_.rend(),
                   [&](const PyRef& known) { return known.get() == target; });
  if (at == targets_.rend()) return;
  // Its destructor may run Python code, which must not see the list while it
  // changes.
  const PyRef taken = std::move(*at);
  targets_.erase(std::next(at).base());
  Apply();
}

void CallRedirect::Apply() {
  PyMethodDef** const def = DefOf(function_.get());
  vectorcallfunc* const call = CallOf(function_.get());
  if (!targets_.empty()) {
    *def = &definition_.def;
    *call = &CallRedirect::Call;
  } else if (*def == &definition_.def) {
    *def = own_def_;
    *call = own_call_;
  }
}

PyRef CallRedirect::Current() const {
  PyMethodDef* const def = *DefOf(function_.get());
  if (def == own_def_) return original_;
  if (def == &definition_.def) return targets_.back();
  return reinterpret_cast<Definition*>(def)->target;
}

PyObject* CallRedirect::Call(PyObject* function, PyObject* const* args,
                             size_t flagged_count, PyObject* keywords) {
  const auto* const now = reinterpret_cast<Definition*>(*DefOf(function));
  const PyRef target = now->target ? now->target : now->redirect->Current();
  return PyObject_Vectorcall(target.get(), args, flagged_count, keywords);
}

CallRedirects::~CallRedirects() {
  for (const Call& call : calls_) {
    // A definition that a function still points to keeps its target.
    if (*DefOf(call.function) != &call.definition->def)
      call.definition->target = PyRef();
  }
}

void CallRedirects::Add(CallRedirect* redirect, PyObject* target) {
  calls_.push_back({redirect->function_.get(), redirect->own_def_,
                    redirect->own_call_, redirect->NewDefinition(target)});
}

template <typename Fn>
void CallRedirects::ForEach(const Fn& fn) const {
  constexpr size_t kAhead = 16;
  const size_t count = calls_.size();
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      PyObject* const ahead = calls_[i + kAhead].function;
      __builtin_prefetch(ahead, /*rw=*/1);
      __builtin_prefetch(CallOf(ahead), /*rw=*/1);
    }
    fn(calls_[i]);
  }
}

void CallRedirects::Put() const {
  ForEach([](const Call& call) {
    PyMethodDef** const def = DefOf(call.function);
    if (*def != call.own_def)
      return call.definition->redirect->Put(call.definition->target.get());
    *def = &call.definition->def;
    *CallOf(call.function) = &CallRedirect::Call;
  });
}

void CallRedirects::Take() const {
  ForEach([](const Call& call) {
    PyMethodDef** const def = DefOf(call.function);
    if (*def != &call.definition->def)
      return call.definition->redirect->Take(call.definition->target.get());
    *def = call.own_def;
    *CallOf(call.function) = call.own_call;
  });
}

}  // namespace rankprobe
