#include "collector/control_service.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "collector/ingest/server_stream.h"

namespace rankprobe {
namespace {

// A unary call whose answer comes later, and whose caller may leave before.
class SwitchReactor : public grpc::ServerUnaryReactor {
 public:
  // Shared with the pending switch: whoever comes second finds it closed.
  struct Slot {
    absl::Mutex mutex;
    SwitchReactor* reactor ABSL_GUARDED_BY(mutex) = nullptr;
  };

  explicit SwitchReactor(v1::SwitchResult* response)
      : response_(response), slot_(std::make_shared<Slot>()) {
    absl::MutexLock lock(&slot_->mutex);
    slot_->reactor = this;
  }

  SwitchOperation::Done Done() {
    return [slot = slot_](absl::StatusOr<v1::SwitchResult> result) {
      absl::MutexLock lock(&slot->mutex);
      SwitchReactor* const reactor = std::exchange(slot->reactor, nullptr);
      if (reactor == nullptr) return;
      if (result.ok()) {
        *reactor->response_ = *std::move(result);
        reactor->Finish(grpc::Status::OK);
      } else {
        reactor->Finish(ToGrpc(result.status()));
      }
    };
  }

 private:
  void OnCancel() override {
    absl::MutexLock lock(&slot_->mutex);
    if (std::exchange(slot_->reactor, nullptr) != nullptr)
      Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

  v1::SwitchResult* const response_;
  const std::shared_ptr<Slot> slot_;
};

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                 const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* ControlService::SetConfig(
    grpc::CallbackServerContext* context, const v1::SetConfigRequest* request,
    v1::SwitchResult* response) {
  logger_->Info("set_config",
                {{"run", request->run()}, {"peer", context->peer()}});
  auto* const reactor = new SwitchReactor(response);
  control_->SetConfig(*request, reactor->Done());
  return reactor;
}

grpc::ServerUnaryReactor* ControlService::SetDumpEnable(
    grpc::CallbackServerContext* context,
    const v1::SetDumpEnableRequest* request, v1::SwitchResult* response) {
  logger_->Info("set_dump_enable",
                {{"run", request->run()},
                 {"enable", request->enable() ? "true" : "false"},
                 {"peer", context->peer()}});
  auto* const reactor = new SwitchReactor(response);
  control_->SetDumpEnable(*request, reactor->Done());
  return reactor;
}

grpc::ServerUnaryReactor* ControlService::GetConfig(
    grpc::CallbackServerContext* context, const v1::GetConfigRequest* request,
    v1::GetConfigResponse* response) {
  absl::StatusOr<v1::GetConfigResponse> config =
      control_->GetConfig(request->run());
  if (!config.ok()) return Answer(context, config.status());
  *response = *std::move(config);
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ControlService::ListAgents(
    grpc::CallbackServerContext* context, const v1::ListAgentsRequest* request,
    v1::ListAgentsResponse* response) {
  *response = control_->ListAgents(request->run());
  return Answer(context, absl::OkStatus());
}

}  // namespace rankprobe
