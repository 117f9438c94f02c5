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

#include <vector>

#include "agent/python/native/session/py_ref.h"
#include "agent/python/native/torch/redirect.h"

namespace rankprobe {

// The redirections of one function. Lives as long as the process: a method that
// a program bound while calls were redirected refers to it. Threads: the GIL is
// held.
class CallRedirect : public Redirect {
 public:
  // Returns null, without an error set, if `function` is of another kind, or if
  // there are kMaxMethods methods already.
  static CallRedirect* Of(PyObject* function);

  PyObject* original() const override { return original_.get(); }
  void Put(PyObject* target) override;
  void Take(PyObject* target) override;
  void Prefetch() const override;

  // Returns a new reference to the current target, or to the original.
  PyRef Current() const;

  // A CPython type cannot determine to which redirection a bound method
  // belongs, so each method has its own C function.
  static constexpr size_t kMaxMethods = 2048;

 private:
  // The first member of the object that PyMethodDef pointers of functions refer
  // to.
  struct Definition {
    PyMethodDef def;
    CallRedirect* redirect;
  };

  CallRedirect(PyObject* function, PyRef original, PyMethodDef* own_def);
  static CallRedirect* Find(PyObject* function);
  static PyObject* Call(PyObject* function, PyObject* const* args,
                        size_t flagged_count, PyObject* keywords);
  void Apply();

  const PyRef function_, original_;
  PyMethodDef* const own_def_;
  vectorcallfunc const own_call_;
  Definition definition_;
  std::vector<PyRef> targets_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_CALL_REDIRECT_H_
