// SPDX-License-Identifier: Apache-2.0
// Redirects the calls of a C function and keeps the function object itself: a
// program that compares, stores, pickles or inspects it finds no difference,
// and no attribute needs to be restored.
//
// It supports two kinds of object, builtin_function_or_method and
// method_descriptor. While calls are redirected, the object has rankprobe's
// PyMethodDef and vectorcall pointers. The interpreter reads both at each call:
// its specialized instructions compare the flags in the PyMethodDef, and
// rankprobe's has none of the flags that they require.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_CALL_REDIRECT_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_CALL_REDIRECT_H_

#include <Python.h>

#include <deque>
#include <vector>

#include "agent/python/native/session/py_ref.h"
#include "agent/python/native/torch/redirect.h"

namespace rankprobe {

// The redirections of one function. It is never destroyed, because a method
// that a program bound while calls were redirected refers to it. Threads: the
// GIL is held.
class CallRedirect : public Redirect {
 public:
  // Returns null, without an error set, if `function` is of another kind, or if
  // there are kMaxMethods methods already.
  static CallRedirect* Of(PyObject* function);

  PyObject* original() const override { return original_.get(); }
  void Put(PyObject* target) override;
  void Take(PyObject* target) override;

  // Returns a new reference to the current target, or to the original.
  PyRef Current() const;

  // The PyMethodDef of a function while a target is set. It is never destroyed,
  // because a method that a program bound in the meantime refers to it.
  struct Definition {
    PyMethodDef def;
    CallRedirect* redirect;
    // Null if the target is the last of targets_.
    PyRef target;
  };

  // A CPython type cannot determine to which redirection a bound method
  // belongs, so each method has its own C function.
  static constexpr size_t kMaxMethods = 2048;

 private:
  friend class CallRedirects;

  CallRedirect(PyObject* function, PyRef original, PyMethodDef* own_def);
  Definition* NewDefinition(PyObject* target);
  static PyObject* Call(PyObject* function, PyObject* const* args,
                        size_t flagged_count, PyObject* keywords);
  void Apply();

  const PyRef function_, original_;
  PyMethodDef* const own_def_;
  vectorcallfunc const own_call_;
  Definition definition_;
  std::vector<PyRef> targets_;
  // Definitions of CallRedirects. One without a target is free.
  std::deque<Definition> definitions_;
};

// Redirections of many functions, which are put and taken together. For a
// function without another redirection, Put and Take access only the function
// and the list of calls, in order: a training step evicts both from the
// processor's caches, and there are a thousand functions. Threads: the GIL is
// held.
class CallRedirects {
 public:
  CallRedirects() = default;
  ~CallRedirects();
  CallRedirects(const CallRedirects&) = delete;
  CallRedirects& operator=(const CallRedirects&) = delete;

  void Add(CallRedirect* redirect, PyObject* target);
  void Put() const;
  void Take() const;

 private:
  struct Call {
    PyObject* function;
    PyMethodDef* own_def;
    vectorcallfunc own_call;
    CallRedirect::Definition* definition;
  };
  template <typename Fn>
  void ForEach(const Fn& fn) const;

  std::vector<Call> calls_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_CALL_REDIRECT_H_
