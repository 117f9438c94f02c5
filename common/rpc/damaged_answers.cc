// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/damaged_answers.h"

#include <grpcpp/client_context.h>

#include "absl/strings/match.h"
#include "common/rpc/checked_message.h"

namespace rankprobe {
namespace {

using grpc::experimental::InterceptionHookPoints;

constexpr char kDamagedAnswer[] =
    "an answer of the collector was damaged in transit: its checksum does not "
    "match";

class Watch final : public grpc::experimental::Interceptor {
 public:
  explicit Watch(grpc::ClientContext* context) : context_(context) {}

  void Intercept(
      grpc::experimental::InterceptorBatchMethods* methods) override {
    // gRPC deserializes the message on this thread, before this hook.
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::POST_RECV_MESSAGE) &&
        TakeDamageOfThread()) {
      damaged_ = true;
      // Without the cancellation gRPC would not end the call.
      context_->TryCancel();
    }
    if (damaged_ && methods->QueryInterceptionHookPoint(
                        InterceptionHookPoints::POST_RECV_STATUS)) {
      *methods->GetRecvStatus() = DamagedAnswer();
    }
    methods->Proceed();
  }

 private:
  grpc::ClientContext* const context_;
  bool damaged_ = false;
};

class Factory final
    : public grpc::experimental::ClientInterceptorFactoryInterface {
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo* info) override {
    return new Watch(info->client_context());
  }
};

}  // namespace

std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>
WatchForDamage() {
  return std::make_unique<Factory>();
}

grpc::Status DamagedAnswer() {
  return grpc::Status(grpc::StatusCode::DATA_LOSS, kDamagedAnswer);
}

bool AnswerWasDamaged(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::DATA_LOSS &&
         status.error_message() == kDamagedAnswer;
}

bool RequestMayBeDamaged(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
         status.error_message().empty();
}

bool ConnectionEnded(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
         (absl::StrContains(status.error_message(), "ocket closed") ||
          absl::StrContains(status.error_message(), "onnection reset")) &&
         !absl::StartsWith(status.error_message(), "failed to connect");
}

bool OtherSideIsSilent(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
         absl::StrContains(status.error_message(), "keepalive watchdog");
}

}  // namespace rankprobe
