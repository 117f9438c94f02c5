#include "agent/python/native/collector_calls.h"

#include <grpcpp/grpcpp.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/grpc_channel.h"
#include "rankprobe/v1/control.grpc.pb.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

std::unique_ptr<v1::ControlService::Stub> Connect(
    const std::string& collector) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return v1::ControlService::NewStub(MakeChannel(collector, {}, arguments));
}

void SetDeadline(grpc::ClientContext* context, double seconds) {
  context->set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds)));
}

void Check(const std::string& collector, const grpc::Status& status) {
  if (status.ok()) return;
  const std::string text =
      absl::StrCat("collector ", collector, ": ", status.error_message());
  if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT)
    throw py::value_error(text);
  throw std::runtime_error(text);
}

}  // namespace

class CollectorCalls {
 public:
  explicit CollectorCalls(const std::string& collector)
      : collector_(collector), control_(Connect(collector)) {}

  // A new config.json for the run, from the earliest step ranks can reach.
  void SetConfig(const std::string& run, const std::string& config_json,
                 std::optional<bool> enable, double seconds) {
    grpc::Status status;
    {
      const py::gil_scoped_release release;
      grpc::ClientContext context;
      SetDeadline(&context, seconds);
      v1::SwitchResult result;
      if (enable.has_value()) {
        v1::SetDumpEnableRequest request;
        request.set_run(run);
        request.set_enable(*enable);
        request.set_config_json(config_json);
        request.mutable_options()->set_no_wait(true);
        status = control_->SetDumpEnable(&context, request, &result);
      } else {
        v1::SetConfigRequest request;
        request.set_run(run);
        request.set_config_json(config_json);
        request.mutable_options()->set_no_wait(true);
        status = control_->SetConfig(&context, request, &result);
      }
    }
    Check(collector_, status);
  }

 private:
  const std::string collector_;
  const std::unique_ptr<v1::ControlService::Stub> control_;
};

void RegisterCollectorCalls(py::module_& m) {
  py::class_<CollectorCalls>(m, "CollectorCalls",
                             "Calls to the collector besides the session.")
      .def(py::init<const std::string&>(), py::arg("collector"))
      .def("set_config", &CollectorCalls::SetConfig, py::arg("run"),
           py::arg("config_json"), py::arg("enable") = py::none(),
           py::arg("seconds") = 30.0);
}

}  // namespace rankprobe
