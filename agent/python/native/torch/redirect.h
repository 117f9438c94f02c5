// SPDX-License-Identifier: Apache-2.0
// Calls of a function that go elsewhere, while the function stays the object
// that it is: of a function of C (CallRedirect) or of Python (FunctionRedirect).
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

  // Its twin, whose calls are never redirected. Borrowed.
  virtual PyObject* original() const = 0;
  // Calls go to `target` from now on. The last one that was put is in force.
  virtual void Put(PyObject* target) = 0;
  // `target` is none of the targets any more.
  virtual void Take(PyObject* target) = 0;
  // What Put and Take touch is on its way from memory when this returns.
  virtual void Prefetch() const = 0;
};

// Many of them, which are put and taken together: hundreds at the begin and at
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
