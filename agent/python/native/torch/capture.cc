// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/capture.h"

#include <limits>
#include <stdexcept>

#include "agent/python/native/torch/program_error.h"

namespace py = pybind11;

namespace rankprobe {

Capture::Capture(std::shared_ptr<Recorder> recorder, const py::dict& torch,
                 std::string skipped_directory)
    : recorder_(std::move(recorder)),
      torch_(torch),
      stacks_(&torch_, std::move(skipped_directory)) {}

void Capture::Fault(const char* where) noexcept {
  const std::shared_ptr<Recorder> recorder = recorder_;
  if (recorder == nullptr) return;
  std::string what = where;
  if (PyErr_Occurred() != nullptr) {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    const PyRef own_type = PyRef::Steal(type), own_value = PyRef::Steal(value),
                own_trace = PyRef::Steal(trace);
    if (trace != nullptr) PyException_SetTraceback(value, trace);
    if (value != nullptr && RaiseLaterIfPrograms(value)) return;
    const PyRef text = PyRef::Steal(value ? PyObject_Repr(value) : nullptr);
    const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
    if (utf8 != nullptr) absl::StrAppend(&what, ": ", utf8);
    ClearOwnError();
  }
  ++faults_;
  recorder->ReportFault(what);
}

void Capture::ReportFault(const std::string& what) {
  ++faults_;
  if (recorder_ != nullptr) recorder_->ReportFault(what);
}

void Capture::MaybeFail(const char* where) {
  if (faults_to_inject_ == 0) return;
  --faults_to_inject_;
  throw std::runtime_error(absl::StrCat("injected fault in ", where));
}

void Capture::BeginStep() {
  tokens_.Clear();
  stacks_.Clear();
  apis_.BeginStep();
  backwards_.BeginStep();
  seen_ = matched_ = 0;
}

void Capture::Finish() noexcept {
  if (!backwards_.empty()) {
    const QuietScope quiet(quiet_);
    backwards_.EndEverywhere();
  }
  FinishDevices();
}

void Capture::FinishDevices() noexcept {
  Quietly("numbers of devices", [&](Recorder& recorder) {
    // What describe() left to a device has a slot.
    const DeviceStatistics* const slots = torch_.device_slots;
    if (slots != nullptr && slots->first_slot() == slots->next_slot()) return;
    const PyRef got =
        PyRef::Steal(PyObject_CallNoArgs(torch_.finish_devices.get()));
    if (!got) {
      // An error of the program interrupted it. Pending results may have been
      // dropped, so they count as lost and are not waited for.
      Fault("numbers of devices");
      constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();
      const py::gil_scoped_release release;
      recorder.ResolveDeferred({kAll, kAll, {}});
      return;
    }
    unsigned long long first = 0, end = 0, address = 0;  // NOLINT: Python's
    PyObject* keep = nullptr;
    if (!PyArg_ParseTuple(got.get(), "KKKO", &first, &end, &address, &keep))
      return;
    if (first == end) return;
    DeferredResults results{first, end, {}};
    if (address != 0) {
      results.numbers = {reinterpret_cast<const ReducedNumbers*>(address),
                         static_cast<size_t>(end - first)};
    }
    const py::gil_scoped_release release;
    recorder.ResolveDeferred(results);
  });
}

}  // namespace rankprobe
