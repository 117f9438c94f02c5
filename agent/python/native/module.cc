// SPDX-License-Identifier: Apache-2.0
// rankprobe._native: the recorder for Python front ends. No PyTorch ABI: a
// tensor comes as address, shape, strides and dtype name, so one build serves
// every PyTorch. The GIL is released while memory is read and while waiting.
#include <grpc/support/log.h>
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "agent/python/native/session/idle_calls.h"
#include "agent/python/native/session/plan_dict.h"
#include "agent/python/native/session/step_exporter.h"
#include "agent/python/native/torch/capture.h"
#include "agent/python/native/torch/capture_bindings.h"
#include "agent/python/native/torch/device_bindings.h"
#include "agent/runtime/recorder/recorder.h"
#include "agent/runtime/recorder/step_requests.h"
#include "agent/runtime/session/config_file.h"
#include "agent/runtime/session/options.h"
#include "common/base/little_endian.h"
#include "common/base/version.h"
#include "common/io/content_hash.h"
#include "common/rpc/grpc_channel.h"
#include "common/tensor/dtype.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

[[noreturn]] void Raise(const absl::Status& status) {
  const std::string message(status.message());
  if (absl::IsInvalidArgument(status)) throw py::value_error(message);
  PyErr_SetString(absl::IsDeadlineExceeded(status) ? PyExc_TimeoutError
                                                   : PyExc_RuntimeError,
                  message.c_str());
  throw py::error_already_set();
}

absl::InlinedVector<int64_t, 6> Extents(const py::tuple& numbers) {
  absl::InlinedVector<int64_t, 6> out;
  for (const py::handle number : numbers) out.push_back(number.cast<int64_t>());
  return out;
}

// Reads a NumPy array or a CPU tensor through attributes that both have.
PyTensorView ReadTensor(const py::object& object) {
  PyTensorView out;
  out.keep = PyRef::Share(object.ptr());
  if (py::hasattr(object, "data_ptr")) {
    if (py::str(object.attr("device").attr("type")).cast<std::string>() !=
        "cpu") {
      throw py::value_error("only CPU tensors can be pushed");
    }
    out.address = object.attr("data_ptr")().cast<uintptr_t>();
    out.shape = Extents(object.attr("shape"));
    out.strides = Extents(object.attr("stride")());
    out.dtype = ParseDtype(py::str(object.attr("dtype")).cast<std::string>());
    out.requires_grad = object.attr("requires_grad").cast<bool>();
  } else if (py::hasattr(object, "__array_interface__")) {
    const py::dict interface = object.attr("__array_interface__");
    out.address = py::tuple(interface["data"])[0].cast<uintptr_t>();
    out.shape = Extents(interface["shape"]);
    out.dtype = ParseDtype(py::str(object.attr("dtype")).cast<std::string>());
    const auto size = static_cast<int64_t>(ElementSize(out.dtype));
    for (const py::handle stride : py::tuple(object.attr("strides"))) {
      if (size == 0 || stride.cast<int64_t>() % size != 0) {
        throw py::value_error(
            "array strides are not multiples of the element size");
      }
      out.strides.push_back(stride.cast<int64_t>() / size);
    }
  } else {
    throw py::type_error("expected a NumPy array or a torch CPU tensor");
  }
  if (out.dtype == v1::DTYPE_UNSPECIFIED) {
    throw py::value_error("unknown dtype " +
                          py::str(object.attr("dtype")).cast<std::string>());
  }
  return out;
}

std::vector<PyTensorView> ReadTensors(const py::sequence& objects) {
  std::vector<PyTensorView> out;
  for (const py::handle object : objects)
    out.push_back(ReadTensor(py::reinterpret_borrow<py::object>(object)));
  return out;
}

void AddTensors(CallBuilder& builder, const std::vector<PyTensorView>& tensors,
                v1::ValueList* out) {
  for (const PyTensorView& tensor : tensors)
    builder.Tensor(tensor.Info(), out->add_items());
}

std::string DigestOf(absl::string_view data) {
  FileHash hash;
  hash.Add(data);
  return absl::StrFormat("%016x", hash.Digest());
}

// Built here, because Python's array would copy each integer first.
std::string WordsDigest(const py::tuple& words, const py::bytes& tail) {
  std::string data(sizeof(uint64_t) * words.size(), '\0');
  char* out = data.data();
  for (const py::handle word : words) {
    const uint64_t value = PyLong_AsUnsignedLongLong(word.ptr());
    if (value == ~uint64_t{0} && PyErr_Occurred() != nullptr)
      throw py::error_already_set();
    PutLittleEndian(value, out);
    out += sizeof(uint64_t);
  }
  data += static_cast<std::string_view>(tail);
  return DigestOf(data);
}

using RequestTokens = std::tuple<std::string, int64_t, std::optional<int64_t>>;

class PySession {
 public:
  PySession(const std::string& collector, const std::string& run,
            std::optional<int64_t> rank, std::optional<int64_t> world_size,
            const std::string& config_json, const std::string& framework,
            const std::string& config_path,
            const std::string& on_collector_missing,
            const std::string& kept_directory) {
    AgentSettings settings{collector, run, rank, world_size};
    settings.on_collector_missing = on_collector_missing;
    settings.kept_directory = kept_directory;
    auto options = MakeSessionOptions(
        settings, [](const char* name) { return std::getenv(name); }, Clock());
    if (!options.ok()) Raise(options.status());
    options->config_json =
        config_json.empty() ? std::string(DefaultConfigJson()) : config_json;
    options->framework_version = framework;
    options->config_path = config_path;
    options->on_undelivered = [lost = lost_](const v1::Undelivered& left) {
      *lost = left;
    };
    RecorderOptions recorder_options;
    recorder_options.stop_deadline = options->block_deadline;
    recorder_options.silence_deadline = options->silence_deadline;
    silence_deadline_ = options->silence_deadline;
    recorder_options.config_json = config_json;
    if (absl::StartsWith(framework, "mindspore"))
      recorder_options.framework = "mindspore";
    if (options->identity.has_rank())
      recorder_options.rank = options->identity.rank();
    // A bad config is reported before anything connects.
    const auto checked = ParseConfig(options->config_json, {});
    if (!checked.ok()) Raise(checked.status());
    auto session = [&] {
      // Create may wait for the collector.
      const py::gil_scoped_release release;
      return Session::Create(*std::move(options), &Clock());
    }();
    if (!session.ok()) Raise(session.status());
    auto recorder = Recorder::Create(std::move(recorder_options),
                                     *std::move(session), &Clock());
    if (!recorder.ok()) Raise(recorder.status());
    recorder_ = *std::move(recorder);
  }

  ~PySession() { Close(); }

  void Close() {
    if (capture_ != nullptr) capture_->Finish();
    std::shared_ptr<Capture> capture = std::move(capture_);
    std::shared_ptr<Recorder> shared =
        capture == nullptr ? nullptr : capture->Close();
    const py::gil_scoped_release release;
    shared.reset();
    recorder_.reset();
  }

  // For a process whose descriptors were closed: nothing is sent or waited for
  // any more, also not at exit. gRPC would abort in a call, and would log its
  // failures ten times a second.
  void Abandon() {
    gpr_set_log_verbosity(
        static_cast<gpr_log_severity>(GPR_LOG_SEVERITY_ERROR + 1));
    std::shared_ptr<Recorder> recorder = std::move(recorder_);
    const std::shared_ptr<Capture> capture = std::move(capture_);
    if (capture != nullptr) recorder = capture->Close();
    static_cast<void>(new std::shared_ptr<Recorder>(std::move(recorder)));
    static_cast<void>(new std::shared_ptr<StepExporter>(exporter_.lock()));
  }

  // What close() could not deliver: records, payloads, first and last step (-1
  // without records); None if nothing is lost.
  py::object Lost() const {
    if (lost_->records() + lost_->payloads() == 0) return py::none();
    return py::make_tuple(lost_->records(), lost_->payloads(),
                          lost_->has_first_step() ? lost_->first_step() : -1,
                          lost_->has_last_step() ? lost_->last_step() : -1);
  }

  // The recorder that hooks of PyTorch use. One per session.
  std::shared_ptr<Capture> MakeCapture(const py::dict& torch,
                                       const std::string& skipped_directory) {
    capture_ = std::make_shared<Capture>(Share(), torch, skipped_directory);
    return capture_;
  }

  // Makes a private collector write the trees of finished steps.
  std::shared_ptr<StepExporter> MakeStepExporter(const std::string& collector,
                                                 const std::string& run,
                                                 const std::string& root,
                                                 const std::string& directory,
                                                 const std::string& manifests) {
    Get();
    auto exporter = std::make_shared<StepExporter>(
        StepExporter::Options{collector, run, root, directory, manifests},
        recorder_);
    exporter_ = exporter;
    return exporter;
  }

  // Submits an edit of the config file, or the reason why it cannot be read.
  // Returns the fault that keeps dumping off (empty if none), and warnings.
  std::pair<std::string, std::vector<std::string>> EditConfig(
      const std::string& path, const std::string& config_json,
      const std::string& fault, bool at_once) {
    Session* const session = Get().session();
    const py::gil_scoped_release release;
    EditReport report = SubmitEdit(
        path,
        fault.empty()
            ? absl::StatusOr<std::string>(config_json)
            : absl::StatusOr<std::string>(absl::InvalidArgumentError(fault)),
        at_once, session);
    return {std::move(report.fault), std::move(report.warnings)};
  }
  void ReportError(const std::string& message) {
    v1::AgentEvent event;
    event.mutable_error()->set_step(Get().current_step());
    event.mutable_error()->set_message(message);
    const py::gil_scoped_release release;
    Get().session()->SendEvent(std::move(event));
  }
  void RefuseRecording(const std::string& reason, bool only_apis) {
    Session* const session = Get().session();
    const py::gil_scoped_release release;
    session->RefuseRecording(reason, only_apis);
  }
  // Returns the same dict as long as the plan is the same, because it is read
  // in each step.
  py::dict ActivePlanDict() {
    const std::shared_ptr<const Plan> plan = Get().plan();
    if (plan != plan_of_dict_) {
      plan_dict_ = PlanDict(*plan);
      plan_of_dict_ = plan;
    }
    return plan_dict_;
  }
  // None if nothing is to be recorded.
  py::object AskedPlanDict() {
    const ActivePlan asked = Get().asked();
    if (asked.plan == nullptr || !asked.enabled) return py::none();
    if (asked.plan == plan_of_dict_) return plan_dict_;
    if (asked.plan != asked_of_dict_) {
      asked_dict_ = PlanDict(*asked.plan);
      asked_of_dict_ = asked.plan;
    }
    return asked_dict_;
  }
  void SetRank(int64_t rank, int64_t world_size) {
    Get().session()->SetRank(rank, world_size);
  }

  void WaitConnected(double seconds) {
    const absl::Status status = [&] {
      const py::gil_scoped_release release;
      return Get().session()->WaitConnected(absl::Seconds(seconds));
    }();
    if (!status.ok()) Raise(status);
  }

  // `requests`: for each request of a server's step its id, number of tokens,
  // and position of the first token.
  void Start(std::optional<int64_t> rank,
             std::optional<std::vector<RequestTokens>> requests) {
    if (capture_ != nullptr) capture_->BeginStep();
    const py::gil_scoped_release release;
    if (!requests.has_value()) return Get().Start(rank);
    v1::StepRequests step;
    for (auto& [id, tokens, position] : *requests)
      AddRequest(std::move(id), tokens, position, &step);
    Get().Start(rank, &step);
  }
  // `at_most_seconds` is called if there is something to wait for; None: the
  // default.
  bool Stop(const std::function<std::optional<double>()>& at_most_seconds) {
    if (capture_ != nullptr) capture_->Finish();
    const py::gil_scoped_release release;
    return Get().Stop([&at_most_seconds] {
      if (!at_most_seconds) return absl::InfiniteDuration();
      const std::optional<double> seconds = at_most_seconds();
      return seconds.has_value() ? absl::Seconds(*seconds)
                                 : absl::InfiniteDuration();
    });
  }
  void Step() {
    if (capture_ != nullptr) {
      capture_->Finish();
      capture_->BeginStep();
    }
    const py::gil_scoped_release release;
    Get().Step();
  }
  py::tuple IdleCalls() { return MakeIdleCalls(Share()); }
  bool step_is_empty() { return Get().StepIsEmpty(); }
  bool ForgetEmptyStep() { return Get().ForgetEmptyStep(); }
  void SetInitStep(int64_t step) {
    if (const absl::Status status = Get().SetInitStep(step); !status.ok())
      Raise(status);
  }
  bool recording() { return Get().recording(); }
  bool enabled() { return Get().enabled(); }
  bool request_missing() { return Get().request_missing(); }
  int64_t step() { return Get().current_step(); }

  // Records one complete call, its inputs and its outputs. Returns the entry's
  // name.
  std::string Call(const std::string& prefix, const std::string& op,
                   const py::sequence& inputs, const py::sequence& outputs) {
    const std::vector<PyTensorView> in = ReadTensors(inputs),
                                    out = ReadTensors(outputs);
    const py::gil_scoped_release release;
    const RecordedCall call = Get().calls().BeginApi(prefix, op);
    Inputs(call, in);
    Get().calls().Outputs(call,
                          [&](CallBuilder& builder, v1::CallPhase* phase) {
                            AddTensors(builder, out, phase->mutable_output());
                          });
    return call.kept ? call.forward_entry : "";
  }

  // Opens a module; calls until EndModule are inside it.
  size_t BeginModule(const std::string& name, const py::sequence& inputs) {
    const std::vector<PyTensorView> in = ReadTensors(inputs);
    const py::gil_scoped_release release;
    modules_.push_back(Get().calls().BeginModule(name));
    Inputs(modules_.back(), in);
    return modules_.size();
  }
  void EndModule(const py::sequence& outputs, const py::dict& parameters) {
    if (modules_.empty()) throw py::value_error("no module is open");
    const std::vector<PyTensorView> out = ReadTensors(outputs);
    std::vector<std::pair<std::string, PyTensorView>> named;
    for (const auto& [name, value] : parameters) {
      named.emplace_back(py::str(name).cast<std::string>(),
                         ReadTensor(py::reinterpret_borrow<py::object>(value)));
    }
    const py::gil_scoped_release release;
    const RecordedCall call = std::move(modules_.back());
    modules_.pop_back();
    Get().calls().Outputs(
        call, [&](CallBuilder& builder, v1::CallPhase* phase) {
          AddTensors(builder, out, phase->mutable_output());
          phase->mutable_parameters();
          for (const auto& [name, tensor] : named) {
            v1::NamedValue* item = phase->mutable_parameters()->add_items();
            item->set_name(name);
            builder.Tensor(tensor.Info(), item->mutable_value());
          }
        });
  }
  void ParameterGradient(const std::string& module,
                         const std::string& parameter,
                         const py::object& gradient) {
    const PyTensorView tensor = ReadTensor(gradient);
    const py::gil_scoped_release release;
    Get().calls().ParameterGradient(module, parameter, tensor.Info());
  }

  void Flush(double seconds) {
    const absl::Status status = [&] {
      const py::gil_scoped_release release;
      return Get().session()->Flush(v1::DURABILITY_COMMITTED,
                                    absl::Seconds(seconds));
    }();
    if (!status.ok()) Raise(status);
  }

  py::dict Stats() {
    const SessionStats stats = Get().session()->GetStats();
    py::dict out;
    out["connected"] = stats.connected;
    out["silent"] = stats.silence >= silence_deadline_;
    out["queue_bytes"] = stats.queue_bytes;
    out["queue_peak_bytes"] = stats.queue_peak_bytes;
    out["records"] = stats.records;
    out["payloads"] = stats.payloads;
    out["payload_bytes"] = stats.payload_bytes;
    out["lost_records"] = stats.lost_records;
    out["lost_payloads"] = stats.lost_payloads;
    out["reconnects"] = stats.reconnects;
    out["last_error"] = stats.last_error;
    return out;
  }

 private:
  static const SystemClock& Clock() {
    static const SystemClock clock;
    return clock;
  }
  void Inputs(const RecordedCall& call, const std::vector<PyTensorView>& in) {
    Get().calls().Inputs(call, [&](CallBuilder& builder, v1::CallPhase* phase) {
      AddTensors(builder, in, phase->mutable_input_args());
      phase->mutable_input_kwargs();
    });
  }
  const std::shared_ptr<Recorder>& Share() {
    if (recorder_ == nullptr) throw std::runtime_error("the session is closed");
    return recorder_;
  }
  Recorder& Get() { return *Share(); }

  absl::Duration silence_deadline_;
  const std::shared_ptr<v1::Undelivered> lost_ =
      std::make_shared<v1::Undelivered>();
  std::shared_ptr<Recorder> recorder_;
  std::shared_ptr<Capture> capture_;
  std::weak_ptr<StepExporter> exporter_;
  std::vector<RecordedCall> modules_;
  std::shared_ptr<const Plan> plan_of_dict_;
  py::dict plan_dict_;
  std::shared_ptr<const Plan> asked_of_dict_;
  py::dict asked_dict_;
};

}  // namespace
}  // namespace rankprobe

PYBIND11_MODULE(_native, m) {
  using rankprobe::PySession;
  // Debian's Abseil searches for lock cycles at each lock, which is slow.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  rankprobe::SilenceGrpcLog();
  m.doc() =
      "The rankprobe recorder: sessions, steps and calls. The typed face of it "
      "is the package rankprobe.";
  m.attr("__version__") = rankprobe::Version();
  using rankprobe::StepExporter;
  using ReleaseGil = py::call_guard<py::gil_scoped_release>;
  py::class_<StepExporter, std::shared_ptr<StepExporter>>(
      m, "StepExporter", "Trees of finished steps, written by the collector.")
      .def("begin", &StepExporter::Begin, py::arg("step"), ReleaseGil())
      .def("wait", &StepExporter::Wait, ReleaseGil())
      .def("stuck", &StepExporter::Stuck)
      .def("take_faults", &StepExporter::TakeFaults)
      .def("close", &StepExporter::Close, ReleaseGil());
  using rankprobe::ConfigFile;
  py::class_<ConfigFile>(m, "ConfigFile",
                         "A config file that is checked for edits.")
      .def(py::init<std::string>(), py::arg("path"))
      .def(
          "look",
          [](ConfigFile& self) -> py::object {
            const auto text = [&] {
              const py::gil_scoped_release release;
              return self.Look();
            }();
            if (!text.has_value()) return py::none();
            return text->ok()
                       ? py::make_tuple(py::bytes(**text), "")
                       : py::make_tuple(py::bytes(),
                                        std::string(text->status().message()));
          },
          "(bytes, fault) of an edit; None: there was none.");
  m.def(
      "content_digest",
      [](const py::buffer& data) {
        const py::buffer_info info = data.request();
        return rankprobe::DigestOf(
            {static_cast<const char*>(info.ptr),
             static_cast<size_t>(info.size * info.itemsize)});
      },
      py::arg("data"), "XXH3-64 of contiguous bytes, 16 hexadecimal digits.");
  m.def(
      "memory_digest",
      [](uintptr_t address, size_t size) {
        return rankprobe::DigestOf(
            {reinterpret_cast<const char*>(address), size});
      },
      py::arg("address"), py::arg("size"),
      "content_digest of `size` bytes at `address`, which are the caller's.");
  m.def("words_digest", &rankprobe::WordsDigest, py::arg("words"),
        py::arg("tail"),
        "content_digest of a tuple of integers below 2**64, eight bytes each, "
        "lowest first, and of `tail` behind them.");
  m.def(
      "fault_line",
      [](const std::string& path, const std::string& fault) {
        return rankprobe::FaultLine(path, fault);
      },
      py::arg("path"), py::arg("fault"));
  py::class_<PySession>(m, "Session")
      .def(py::init<const std::string&, const std::string&,
                    std::optional<int64_t>, std::optional<int64_t>,
                    const std::string&, const std::string&, const std::string&,
                    const std::string&, const std::string&>(),
           py::arg("collector") = "", py::arg("run") = "",
           py::arg("rank") = py::none(), py::arg("world_size") = py::none(),
           py::arg("config_json") = "", py::arg("framework") = "python",
           py::arg("config_path") = "", py::arg("on_collector_missing") = "",
           py::arg("kept_directory") = "")
      .def("wait_connected", &PySession::WaitConnected,
           py::arg("seconds") = 10.0)
      .def("start", &PySession::Start, py::arg("rank") = py::none(),
           py::arg("requests") = py::none())
      .def("stop", &PySession::Stop, py::arg("at_most_seconds") = py::none())
      .def("step", &PySession::Step)
      .def("idle_calls", &PySession::IdleCalls)
      .def("set_init_step", &PySession::SetInitStep, py::arg("step"))
      .def("call", &PySession::Call, py::arg("prefix"), py::arg("op"),
           py::arg("inputs"), py::arg("outputs"))
      .def("begin_module", &PySession::BeginModule, py::arg("name"),
           py::arg("inputs"))
      .def("end_module", &PySession::EndModule, py::arg("outputs"),
           py::arg("parameters") = py::dict())
      .def("parameter_gradient", &PySession::ParameterGradient,
           py::arg("module"), py::arg("parameter"), py::arg("gradient"))
      .def("flush", &PySession::Flush, py::arg("seconds") = 10.0)
      .def("stats", &PySession::Stats)
      .def("close",
           [](PySession& self) {
             self.Close();
             return self.Lost();
           })
      .def("abandon", &PySession::Abandon)
      .def("capture", &PySession::MakeCapture, py::arg("torch"),
           py::arg("skipped_directory"))
      .def("step_exports", &PySession::MakeStepExporter, py::arg("collector"),
           py::arg("run"), py::arg("root"), py::arg("directory"),
           py::arg("manifests"))
      .def("edit_config", &PySession::EditConfig, py::arg("path"),
           py::arg("config_json"), py::arg("fault"), py::arg("at_once"))
      .def("refuse_recording", &PySession::RefuseRecording, py::arg("reason"),
           py::arg("only_apis") = false)
      .def("report_error", &PySession::ReportError, py::arg("message"))
      .def("set_rank", &PySession::SetRank, py::arg("rank"),
           py::arg("world_size"))
      .def("plan", &PySession::ActivePlanDict)
      .def("asked_plan", &PySession::AskedPlanDict)
      .def_property_readonly("recording", &PySession::recording)
      .def_property_readonly("enabled", &PySession::enabled)
      .def_property_readonly("request_missing", &PySession::request_missing)
      .def_property_readonly("step_is_empty", &PySession::step_is_empty)
      .def("forget_empty_step", &PySession::ForgetEmptyStep)
      .def_property_readonly("current_step", &PySession::step);
  rankprobe::RegisterCapture(m);
  rankprobe::RegisterDeviceStatistics(m);
}
