// SPDX-License-Identifier: Apache-2.0
// Forwards of hooked modules that have begun and not ended, and what the hooks
// around them do.
//
// Ownership: held by the Python hooks of one debugger; owns a share of the
// Capture, and of each module whose forward is open. Threads: the GIL is held;
// open forwards are by thread. Failure: an error of rankprobe is thrown to the
// hook, which reports it, after the forward that has begun is in the list of
// open ones; an error of the model passes through the hooks, which never see
// it.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_FORWARDS_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_FORWARDS_H_

#include <pybind11/pybind11.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/python/native/session/py_ref.h"
#include "agent/python/native/torch/capture.h"
#include "agent/python/native/torch/module_gradients.h"
#include "agent/python/native/torch/spare_frames.h"

namespace rankprobe {

class ModuleForwards {
 public:
  // wanting(value) returns the tensors in nested containers that require a
  // gradient, as a tuple; parameters(module) returns the module's own
  // parameters by name. It is called only if they are not plain, which is rare.
  ModuleForwards(std::shared_ptr<Capture> capture, PyRef wanting,
                 PyRef parameters);

  // Which gradients the plan in force records: of calls, of parameters.
  void SetBackward(bool wanted) { backward_ = wanted; }
  bool backward() const { return backward_; }
  void SetParametersGrad(bool wanted) { parameters_grad_ = wanted; }
  bool parameters_grad() const { return parameters_grad_; }
  // When it changes, no parameter counts as watched any more.
  uint64_t generation() const { return generation_; }
  void ForgetWatched() { ++generation_; }
  Capture& capture() { return *capture_; }

  // Begins a forward. `with_gradients`: record the gradients of the call if
  // plan, filters and autograd mode permit. Returns whether the call is
  // recorded.
  bool Begin(const std::string& name, PyObject* module, PyObject* args,
             PyObject* kwargs, bool with_gradients);
  // Begins a forward of compiled code, which the caller has reported to
  // Capture, and whose gradients are found by other means.
  void Push(const pybind11::object& module, std::optional<ModuleCall> call);

  // Ends the forward of `module`, and forwards inside it that an exception left
  // open. Returns whether it changed an input in place so that the gradient is
  // lost.
  bool End(PyObject* module, PyObject* output);
  // Ends the forward because of an exception; `stopped`: that of a
  // recomputation which has all it needs.
  void Abandon(const pybind11::object& module, bool stopped);

  // Forgets this thread's open forwards.
  void Clear() { open_.erase(std::this_thread::get_id()); }

 private:
  struct Recorded {
    ModuleCall call;
    std::unique_ptr<ModuleGradients> gradients;
  };
  struct Open {
    PyRef module;
    // Null if nothing is recorded of it.
    std::unique_ptr<Recorded> recorded;
    SpareFrames frames;
  };

  void Add(PyRef module, std::unique_ptr<Recorded> recorded);
  std::unique_ptr<Recorded> Take(PyObject* module);
  GraphTensors Wanting(PyObject* value) const;
  PyRef Parameters(PyObject* module) const;

  const std::shared_ptr<Capture> capture_;
  const PyRef wanting_, parameters_;
  bool backward_ = true, parameters_grad_ = true;
  uint64_t generation_ = 1;
  // Only threads with open forwards have an entry.
  std::map<std::thread::id, std::vector<Open>> open_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_FORWARDS_H_
