// SPDX-License-Identifier: Apache-2.0
// Records module calls, scopes around optimizers, and the gradients of modules
// and parameters, as Python hooks and compiled code say them.
//
// Ownership: the Capture's. Threads: the GIL is held on entry. Failure: that of
// Capture::Guarded; only a backward that a compiler traces throws, to its
// caller.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_CAPTURE_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_CAPTURE_H_

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <vector>

#include "agent/python/native/session/py_ref.h"
#include "agent/runtime/recorder/recorder.h"

namespace rankprobe {

class Capture;

// One module call, between its hooks.
struct ModuleCall {
  RecordedCall call;
  // Set if compiled code ran the call. It writes into memory without increasing
  // the version counter, so summaries of the same memory are not reused.
  bool compiled = false;
  // Set while a compiler traces: nothing is recorded. This is called without
  // arguments when the backward begins, and with its (inputs, outputs) when it
  // ends.
  PyRef traced;
};

class ModuleCapture {
 public:
  explicit ModuleCapture(Capture* capture) : capture_(capture) {}

  // Returns nullopt if the call is not recorded. `args`: a tuple; `kwargs`: a
  // dict or None. `frames`, for a call that compiled code makes: where the
  // compiler found it, innermost first; the caller of the compiled code follows
  // them.
  std::optional<ModuleCall> Begin(
      const std::string& name, PyObject* args, PyObject* kwargs,
      const std::vector<std::string>* frames = nullptr);
  // `parameters`: a dict or null.
  void End(const ModuleCall& module, PyObject* output, const PyRef& parameters);
  void Abandon(const ModuleCall& module);
  // See RecordStopped.
  void Stop(const ModuleCall& module);
  bool WantsBackward(const ModuleCall& module) const;
  void BeginBackward(const ModuleCall& module);
  void Backward(const ModuleCall& module, const pybind11::object& grad_inputs,
                const pybind11::object& grad_outputs);
  void ParameterGradient(const std::string& module, const std::string& name,
                         PyObject* gradient);

 private:
  Capture* const capture_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_MODULE_CAPTURE_H_
