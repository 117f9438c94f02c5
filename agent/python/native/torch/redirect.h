// SPDX-License-Identifier: Apache-2.0
// Redirects the calls of a function to a target. The function object stays the
// same for C functions (CallRedirect) and Python functions (FunctionRedirect);
// PlaceRedirect sets an attribute where neither is possible.
// Threads: the GIL is held.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_REDIRECT_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_REDIRECT_H_

#include <Python.h>

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
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_REDIRECT_H_
