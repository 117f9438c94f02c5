// SPDX-License-Identifier: Apache-2.0
// Records the API calls that ApiObjects stand in for, and their gradients.
//
// Ownership: the Capture's. Threads: the GIL is held on entry. Failure: that of
// Capture::Guarded.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_API_CAPTURE_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_API_CAPTURE_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "agent/python/native/torch/api_spec.h"
#include "agent/runtime/recorder/recorder.h"

namespace rankprobe {

class Capture;
class ModuleGradients;

class ApiCapture {
 public:
  explicit ApiCapture(Capture* capture) : capture_(capture) {}

  RecordedCall Begin(const ApiSpec& spec, PyObject* const* args,
                     Py_ssize_t count, PyObject* keywords) noexcept;
  void End(const ApiSpec& spec, RecordedCall call, PyObject* const* args,
           Py_ssize_t count, PyObject* keywords, PyObject* result,
           ModuleGradients* gradients) noexcept;
  // Called with the error still set, so that the end of a recomputation can be
  // distinguished from other errors.
  void Abandon(const RecordedCall& call) noexcept;
  // Called before the call runs, if its gradients are recorded like a module's;
  // returns null if it has none. The result is passed to End.
  std::unique_ptr<ModuleGradients> BeginGradients(const RecordedCall& call,
                                                  PyObject* const* args,
                                                  Py_ssize_t count) noexcept;
  // `order`: when the call was made, see BegunBackwards::NextOrder.
  void Backward(const RecordedCall& call, uint64_t order, PyObject* grad_inputs,
                PyObject* grad_outputs) noexcept;
  // Completes the call of a Work whose wait() has returned.
  void WorkDone(const pybind11::object& work);
  void BeginStep() { pending_.clear(); }

 private:
  struct Pending {
    PyRef work;
    RecordedCall call;
    PyRef args;
    std::vector<int> ignored_outputs;
  };

  // The arguments, by position and by name.
  struct Given {
    std::vector<PyValue> args;
    PyValue named;

    void Fill(CallBuilder& builder, v1::CallPhase* phase) const;
  };
  Given ReadGiven(const ApiSpec& spec, const RecordedCall& call,
                  PyObject* const* args, Py_ssize_t count,
                  PyObject* keywords) const;
  // Whether the call may change its arguments.
  static bool Writes(const ApiSpec& spec, Py_ssize_t count, PyObject* keywords);
  // Forgets the known contents of memory that the call may have written.
  void ForgetWritten(const ApiSpec& spec, PyObject* const* args,
                     Py_ssize_t count, PyObject* keywords);
  PyValue ReadOutputs(const ApiSpec& spec, const RecordedCall& call,
                      PyObject* const* args, Py_ssize_t count,
                      PyObject* keywords, PyObject* result) const;
  // Reads the arguments after the call: all, or those that it writes.
  PyValue ReadArguments(const RecordedCall& call, PyObject* const* args,
                        Py_ssize_t count, PyObject* keywords,
                        const ArgumentSet* only) const;
  void HookBackward(Recorder& recorder, RecordedCall call, PyObject* result);

  Capture* const capture_;
  std::vector<Pending> pending_;
};

// Checkpointing has what it needs and ends the recomputation in the middle of
// this forward: the entry records that instead of its outputs.
void RecordStopped(Recorder& recorder, const RecordedCall& call);

// Records the gradients of a backward. The GIL is held, and released while
// memory is read.
void RecordGradients(Recorder& recorder, const RecordedCall& call,
                     const ValueReader& reader, ReadMode mode,
                     PyObject* grad_inputs, PyObject* grad_outputs);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_API_CAPTURE_H_
