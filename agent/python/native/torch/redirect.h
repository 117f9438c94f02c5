// SPDX-License-Identifier: Apache-2.0
// Redirects the calls of a function to a target. The function object stays the
// same for C functions (CallRedirect) and Python functions (FunctionRedirect);
// PlaceRedirect sets an attribute where neither is possible.
// Threads: the GIL is held.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_REDIRECT_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_REDIRECT_H_

#include <Python.h>

#include <memory>
#include <utility>
#include <vector>

#include "agent/python/native/session/py_ref.h"

namespace rankprobe {

class Redirect {
 public:
  virtual ~Redirect() = default;

  // A function that does the same and is never redirected. Borrowed.
  virtual PyObject* original() const = 0;
  // Directs calls to `target` from now on. Of several targets the last one is
  // called.
  virtual void Put(PyObject* target) = 0;
  // Removes `target` from the targets.
  virtual void Take(PyObject* target) = 0;
  // Prefetches the memory that Put and Take access.
  virtual void Prefetch() const = 0;
};

// Redirections that are put and taken together: hundreds at the begin and at
// the end of each recorded step.
class RedirectedCalls {
 public:
  void Add(std::shared_ptr<Redirect> redirect, PyObject* target) {
    calls_.push_back({std::move(redirect), PyRef::Share(target)});
  }
  void Put() const;
  void Take() const;

 private:
  struct Call {
    std::shared_ptr<Redirect> redirect;
    PyRef target;
  };
  template <typename Fn>
  void ForEach(const Fn& fn) const;

  std::vector<Call> calls_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_REDIRECT_H_
