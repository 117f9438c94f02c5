// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/collector_channel.h"

#include <grpcpp/generic/generic_stub.h>

#include <utility>

#include "common/rpc/grpc_reference.h"
#include "rankprobe/v1/agent.grpc.pb.h"
#include "rankprobe/v1/leaf.grpc.pb.h"

namespace rankprobe {
namespace {

constexpr char kUploadMethod[] = "/rankprobe.v1.AgentService/Upload";

class GrpcCollectorChannel final : public CollectorChannel {
 public:
  explicit GrpcCollectorChannel(const std::shared_ptr<grpc::Channel>& channel)
      : agents_(v1::AgentService::NewStub(channel)),
        root_(v1::RootService::NewStub(channel)),
        uploads_(channel) {}

  void Session(grpc::ClientContext* context, SessionReactor* reactor) override {
    agents_->async()->Session(context, reactor);
  }
  void Upload(grpc::ClientContext* context, UploadReactor* reactor) override {
    uploads_.PrepareBidiStreamingCall(context, kUploadMethod, {}, reactor);
  }
  void FindCollector(grpc::ClientContext* context,
                     const v1::FindCollectorRequest* request,
                     v1::FoundCollector* answer,
                     std::function<void(const grpc::Status&)> done) override {
    root_->async()->FindCollector(
        context, request, answer,
        [done = std::move(done)](const grpc::Status& status) { done(status); });
  }
  std::unique_ptr<grpc::ClientReaderInterface<v1::ReferenceChunk>> GetReference(
      grpc::ClientContext* context,
      const v1::ReferenceRequest& request) override {
    return agents_->GetReference(context, request);
  }

 private:
  const GrpcReference grpc_;
  const std::unique_ptr<v1::AgentService::Stub> agents_;
  const std::unique_ptr<v1::RootService::Stub> root_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::UploadAck> uploads_;
};

}  // namespace

std::shared_ptr<CollectorChannel> MakeCollectorChannel(
    const std::shared_ptr<grpc::Channel>& channel) {
  return std::make_shared<GrpcCollectorChannel>(channel);
}

}  // namespace rankprobe
