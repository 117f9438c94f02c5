// SPDX-License-Identifier: Apache-2.0
// Capture: what the Python front end records of a program. This class has the
// gates, the step, and what its roles share: reader of values, guard around
// code of rankprobe. The roles make calls of the Recorder: ApiCapture of API
// calls, ModuleCapture of modules, ValueCapture of saved values and reports.
//
// Ownership: shared by PrecisionDebugger, every ApiObject and every hook; owns
// a share of the Recorder. Threads: the GIL is held on entry and released while
// memory is read; nothing that needs the GIL happens under the Recorder's lock.
// Failure: an error of rankprobe is cleared, counted and reported to the
// Recorder; it never reaches the model. Errors of the model pass through
// unchanged.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_CAPTURE_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_CAPTURE_H_

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/python/native/torch/api_capture.h"
#include "agent/python/native/torch/begun_backwards.h"
#include "agent/python/native/torch/module_capture.h"
#include "agent/python/native/torch/py_value.h"
#include "agent/python/native/torch/quiet_scope.h"
#include "agent/python/native/torch/stack_reader.h"
#include "agent/python/native/torch/torch_bindings.h"
#include "agent/python/native/torch/value_capture.h"
#include "agent/runtime/recorder/recorder.h"

namespace rankprobe {

class Capture : public std::enable_shared_from_this<Capture> {
 public:
  Capture(std::shared_ptr<Recorder> recorder, const pybind11::dict& torch,
          std::string skipped_directory);

  // --- Gates.
  bool Active() const {
    return enabled_.load(std::memory_order_relaxed) && recorder_ != nullptr &&
           recorder_->recording();
  }
  // A second gate in addition to the step state machine (token_range).
  void SetEnabled(bool enabled) { enabled_ = enabled; }
  bool enabled() const { return enabled_; }
  // Disables only the recording of APIs, for module_dump.
  void SetApisEnabled(bool enabled) { apis_enabled_ = enabled; }
  bool ApisActive() const { return apis_enabled_ && Active(); }

  // --- Roles.
  ApiCapture& apis() { return apis_; }
  ModuleCapture& modules() { return modules_; }
  ValueCapture& values() { return values_; }

  // --- The step.
  void BeginStep();
  // Called before Stop and Step: ends backwards that have begun, and fills in
  // the results that were requested from devices.
  void Finish() noexcept;
  // Releases the recorder; a caller that is using it keeps it alive until it
  // has finished.
  std::shared_ptr<Recorder> Close() { return std::move(recorder_); }

  // --- What the roles share. Null: closed.
  const std::shared_ptr<Recorder>& recorder() const { return recorder_; }
  const TorchBindings& torch() const { return torch_; }
  QuietGuards& quiet() { return quiet_; }
  StorageTokens& tokens() { return tokens_; }
  const ValueReader& reader() const { return reader_; }
  StackReader& stacks() { return stacks_; }
  // Code that runs in a backward reports there when it was made.
  BegunBackwards& backwards() { return backwards_; }
  // Runs fn(recorder) unless closed; `where` names it in the report of a fault.
  template <typename Fn>
  void Guarded(const char* where, Fn&& fn) noexcept;
  // Guarded, in a QuietScope.
  template <typename Fn>
  void Quietly(const char* where, Fn&& fn) noexcept;
  // Counts a new forward.
  void Count(const RecordedCall& call) {
    ++seen_;
    if (call.stack_wanted || call.kept) ++matched_;
  }
  // Forwards since BeginStep, and those of them that passed the filters.
  uint64_t seen() const { return seen_; }
  uint64_t matched() const { return matched_; }

  // --- Faults.
  // Throws if one was injected.
  void MaybeFail(const char* where);
  // Makes the next `count` events of rankprobe fail, for tests.
  void InjectFaults(int count) { faults_to_inject_ = count; }
  uint64_t faults() const { return faults_; }
  // Reports an error of rankprobe that Python code has caught.
  void ReportFault(const std::string& what);

 private:
  // Reports a fault, with the current Python error if one is set.
  void Fault(const char* where) noexcept;
  void FinishDevices() noexcept;

  // Null once closed. Changed only with the GIL held.
  std::shared_ptr<Recorder> recorder_;
  const TorchBindings torch_;
  StorageTokens tokens_;
  const ValueReader reader_{&torch_, &tokens_};
  StackReader stacks_;
  QuietGuards quiet_{&torch_};
  BegunBackwards backwards_{&torch_};
  ApiCapture apis_{this};
  ModuleCapture modules_{this};
  ValueCapture values_{this};
  std::atomic<bool> enabled_{true};
  std::atomic<bool> apis_enabled_{true};
  int faults_to_inject_ = 0;
  uint64_t faults_ = 0;
  uint64_t seen_ = 0, matched_ = 0;
};

template <typename Fn>
void Capture::Guarded(const char* where, Fn&& fn) noexcept {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  const SavedError saved;
  try {
    fn(*recorder);
    if (PyErr_Occurred() != nullptr) Fault(where);
  } catch (pybind11::error_already_set& e) {
    e.restore();
    Fault(where);
  } catch (const std::exception& e) {
    Fault(absl::StrCat(where, ": ", e.what()).c_str());
  }
  // The tensors of this call are recorded now, so deferred ones can be
  // resolved.
  if (tokens_.TakeWantFinish()) FinishDevices();
}

template <typename Fn>
void Capture::Quietly(const char* where, Fn&& fn) noexcept {
  if (recorder_ == nullptr) return;
  const QuietScope quiet(quiet_);
  Guarded(where, std::forward<Fn>(fn));
}

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_CAPTURE_H_
