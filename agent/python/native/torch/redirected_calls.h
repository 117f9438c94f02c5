// SPDX-License-Identifier: Apache-2.0
// Redirects that are put and taken together.
// Threads: the GIL is held.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_REDIRECTED_CALLS_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_REDIRECTED_CALLS_H_

#include <Python.h>

#include <memory>
#include <vector>

#include "agent/python/native/session/py_ref.h"
#include "agent/python/native/torch/call_redirect.h"
#include "agent/python/native/torch/function_redirect.h"
#include "agent/python/native/torch/redirect.h"

namespace rankprobe {

// Puts and takes hundreds of redirects at the beginning and at the end of each
// recorded step.
class RedirectedCalls {
 public:
  void Add(std::shared_ptr<Redirect> redirect, PyObject* target);
  void Put();
  void Take();

 private:
  struct Call {
    std::shared_ptr<Redirect> redirect;
    PyRef target;
  };
  CallRedirects c_functions_;
  FunctionRedirects functions_;
  std::vector<Call> calls_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_REDIRECTED_CALLS_H_
