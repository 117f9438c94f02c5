// SPDX-License-Identifier: Apache-2.0
// Recorder of the Python front end: API calls (ApiObject), modules, gradients
// and saved values become calls of the Recorder.
//
// Ownership: shared by PrecisionDebugger and every ApiObject; owns a share of
// the Recorder. Threads: the GIL is held on entry and released while memory is
// read; nothing that needs the GIL happens under the Recorder's lock.
// Failure: an error of rankprobe is cleared, counted and reported to the
// Recorder; it never reaches the model. Errors of the model pass through
// unchanged.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_CAPTURE_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_CAPTURE_H_

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/python/native/torch/api_spec.h"
#include "agent/python/native/torch/graph_index.h"
#include "agent/python/native/torch/py_value.h"
#include "agent/python/native/torch/stack_reader.h"
#include "agent/python/native/torch/torch_bindings.h"
#include "agent/runtime/recorder/recorder.h"

namespace rankprobe {

// One module call, between its hooks.
struct ModuleCall {
  RecordedCall call;
  // Compiled code ran it, which writes into memory without telling the version
  // counter: no summary of the same memory is used again.
  bool compiled = false;
  // Set while a compiler traces: nothing is recorded, and this is called, with
  // nothing when the backward begins and with its (inputs, outputs) when it ends.
  PyRef traced;
};

class QuietScope;
class BegunBackwards;
class ModuleGradients;

class Capture : public std::enable_shared_from_this<Capture> {
 public:
  Capture(std::shared_ptr<Recorder> recorder, const pybind11::dict& torch,
          std::string skipped_directory);
  ~Capture();

  bool Active() const {
    return enabled_.load(std::memory_order_relaxed) && recorder_ != nullptr &&
           recorder_->recording();
  }
  // A second gate besides the step state machine (token_range).
  void SetEnabled(bool enabled) { enabled_ = enabled; }
  bool enabled() const { return enabled_; }
  // APIs alone are silent: module_dump.
  void SetApisEnabled(bool enabled) { apis_enabled_ = enabled; }
  // Modules are recorded whatever the level: module_dump.
  void SetModulesForced(bool forced) {
    if (recorder_ != nullptr) recorder_->calls().SetModulesForced(forced);
  }
  bool ApisActive() const { return apis_enabled_ && Active(); }

  // --- APIs, called by ApiObject.
  RecordedCall BeginApi(const ApiSpec& spec, PyObject* const* args,
                        Py_ssize_t count, PyObject* keywords) noexcept;
  void EndApi(const ApiSpec& spec, RecordedCall call, PyObject* const* args,
              Py_ssize_t count, PyObject* keywords, PyObject* result,
              ModuleGradients* gradients) noexcept;
  // The error is still set, so that the end of a recomputation can be
  // distinguished from other errors.
  void AbandonApi(const RecordedCall& call) noexcept;
  // Where the gradients of a call are taken as a module's are: before it runs,
  // null where it has none; then handed to EndApi.
  std::unique_ptr<ModuleGradients> BeginGradients(const RecordedCall& call,
                                                  PyObject* const* args,
                                                  Py_ssize_t count) noexcept;
  // order: when the call was made.
  void Backward(const RecordedCall& call, uint64_t order, PyObject* grad_inputs,
                PyObject* grad_outputs) noexcept;

  // --- Modules and gradients, called by Python hooks. None: not recording.
  // args: a tuple; kwargs: a dict or None.
  std::optional<ModuleCall> BeginModule(
      const std::string& name, PyObject* args, PyObject* kwargs,
      const std::vector<std::string>* frames = nullptr);
  // The same of a call that compiled code makes. frames: where the compiler
  // found it, innermost first; the caller of the compiled code follows them.
  std::optional<ModuleCall> BeginCompiledModule(
      const std::string& name, const pybind11::tuple& args,
      const pybind11::object& kwargs, const std::vector<std::string>& frames);
  // parameters: a dict or null.
  void EndModule(const ModuleCall& module, PyObject* output,
                 const PyRef& parameters);
  void AbandonModule(const ModuleCall& module);
  // Checkpointing has what it needs and ends the recomputation in the middle of
  // this forward: the entry says so in place of its outputs.
  void StopModule(const ModuleCall& module);
  bool WantsBackward(const ModuleCall& module) const;
  void BeginModuleBackward(const ModuleCall& module);
  void ModuleBackward(const ModuleCall& module,
                      const pybind11::object& grad_inputs,
                      const pybind11::object& grad_outputs);
  // Backwards that have begun. Whatever runs in one says when it was made.
  BegunBackwards& begun() { return *begun_; }
  // Numbers what is made: module calls' begins and ends, API calls' ends.
  uint64_t NextOrder() { return ++order_; }
  // Number of the backward pass that runs; 0 where PyTorch has none.
  int64_t BackwardPass() const;
  // Has this thread's backwards ended when the pass that runs has.
  void CallAtEndOfPass();
  // What was begun has ended: before Stop and Step.
  void EndBackwards() noexcept;
  template <typename Fn>
  void GuardedGradients(Fn&& fn) noexcept;
  // Only graphs hold the accumulator of a leaf, and the graph that needs it may
  // not exist yet.
  void KeepForStep(PyRef node) { kept_.push_back(std::move(node)); }
  void ResetModules();
  void PushScope(const std::string& name);
  void PopScope(const std::string& name);
  void ParameterGradient(const std::string& module, const std::string& name,
                         PyObject* gradient);

  // --- Level debug.
  std::optional<SavedValue> Save(const std::string& name,
                                 const pybind11::object& value,
                                 const pybind11::object& skeleton);
  void SaveGradient(const SavedValue& value, const std::string& path,
                    const pybind11::object& gradient);

  // --- Task monitor: values by name, as one record. With the norms of "update"
  // and "param", of which the second is not 0, their "ratio" is one more. What
  // comes back is the norm of "grad" where it is known: there is one, and it
  // does not lie on a device.
  std::optional<double> SaveMonitored(const std::string& name,
                                      const pybind11::dict& values);

  // --- For triggers. Tensors on devices are waited for.
  bool WantsLoss() const;
  void ReportLoss(double loss);
  bool WantsReplica() const;
  void ReportReplica(const pybind11::list& tensors);
  bool WantsFacts() const;
  // ValueReader::Digest; the GIL is held over `limit_bytes` of reading.
  std::string Digest(const pybind11::object& tensor, uint64_t limit_bytes);
  // (section, name, value), UTF-8.
  void RecordFacts(
      const std::vector<std::tuple<std::string, std::string, std::string>>&
          facts);

  void BeginStep();
  // Waits for what devices were asked, and fills it in. Before Stop and Step.
  void FinishDevices() noexcept;
  // Makes the next `count` of our own events fail, for tests.
  void InjectFaults(int count) { faults_to_inject_ = count; }
  uint64_t faults() const { return faults_; }
  // Forwards since BeginStep, and those of them that the filters let pass.
  uint64_t seen() const { return seen_; }
  uint64_t matched() const { return matched_; }
  // Reports an error of rankprobe that Python code has caught.
  void ReportFault(const std::string& what);

  // Releases the recorder; a caller that is using it keeps it until it has
  // finished.
  std::shared_ptr<Recorder> Close() { return std::move(recorder_); }
  const TorchBindings& torch() const { return torch_; }
  // An idle one, to be given back; null where the framework has none. See
  // TorchBindings::disable_torch_function.
  PyRef TakeGuard() const;
  void GiveGuard(PyRef guard) const { guards_.push_back(std::move(guard)); }
  // A QuietScope around Python code; they nest.
  void EnterQuiet();
  void LeaveQuiet();
  // A Work whose wait() completes `call`.
  void WorkDone(const pybind11::object& work);

 private:
  struct Pending {
    PyRef work;
    RecordedCall call;
    PyRef args;
    std::vector<int> ignored_outputs;
  };

  // The arguments after the call, all or those that it writes.
  PyValue ReadArguments(const RecordedCall& call, PyObject* const* args,
                        Py_ssize_t count, PyObject* keywords,
                        const ArgumentSet* only) const;
  void HookBackward(RecordedCall call, PyObject* result);
  GraphTensors TensorsOf(PyObject* const* values, Py_ssize_t count) const;
  void Count(const RecordedCall& call) {
    ++seen_;
    if (call.stack_wanted || call.kept) ++matched_;
  }
  void RecordStopped(const RecordedCall& call);
  void ForgetWritten(PyObject* const* args, Py_ssize_t count);
  void MaybeFail(const char* where);
  void Fault(const char* where) noexcept;
  template <typename Fn>
  void Guarded(const char* where, Fn&& fn) noexcept;

  // Null once closed. Changes under the GIL.
  std::shared_ptr<Recorder> recorder_;
  const TorchBindings torch_;
  StorageTokens tokens_;
  const ValueReader reader_;
  StackReader stacks_;
  // Used by one scope at a time.
  mutable std::vector<PyRef> guards_;
  std::vector<Pending> pending_;
  const std::unique_ptr<BegunBackwards> begun_;
  std::vector<PyRef> kept_;
  uint64_t order_ = 0;
  // The last pass that was asked to call at its end.
  int64_t asked_pass_ = -1;
  // By thread; a scope is left on the thread that entered it.
  std::vector<std::pair<std::thread::id, std::unique_ptr<QuietScope>>> quiet_;
  std::atomic<bool> enabled_{true};
  std::atomic<bool> apis_enabled_{true};
  int faults_to_inject_ = 0;
  uint64_t faults_ = 0;
  uint64_t seen_ = 0, matched_ = 0;
};

// While one lives on a thread no API call on that thread is recorded.
class CallScope {
 public:
  CallScope();
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  static bool Active();
};

// A CallScope around code of rankprobe only. Its calls on tensors are not calls
// of the program, so no __torch_function__ of a class or a mode sees them.
class QuietScope {
 public:
  explicit QuietScope(const Capture& capture);
  ~QuietScope();
  QuietScope(const QuietScope&) = delete;
  QuietScope& operator=(const QuietScope&) = delete;

 private:
  const CallScope scope_;
  const Capture& capture_;
  // Empty within another one.
  PyRef guard_, modes_;
};

template <typename Fn>
void Capture::Guarded(const char* where, Fn&& fn) noexcept {
  const SavedError saved;
  try {
    fn();
    if (PyErr_Occurred() != nullptr) Fault(where);
  } catch (pybind11::error_already_set& e) {
    e.restore();
    Fault(where);
  } catch (const std::exception& e) {
    Fault(absl::StrCat(where, ": ", e.what()).c_str());
  }
  // Now that this call's tensors are recorded.
  if (tokens_.TakeWantFinish()) FinishDevices();
}

template <typename Fn>
void Capture::GuardedGradients(Fn&& fn) noexcept {
  if (recorder_ == nullptr) return;
  const QuietScope quiet(*this);
  Guarded("module backward", std::forward<Fn>(fn));
}

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_CAPTURE_H_
