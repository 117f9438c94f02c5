// SPDX-License-Identifier: Apache-2.0
// Calls of a session to one collector: over gRPC, or over the replacement for
// it in a simulation. Thread-safe. Failure: that of the calls.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_COLLECTOR_CHANNEL_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_COLLECTOR_CHANNEL_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/sync_stream.h>

#include <functional>
#include <memory>

#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/leaf.pb.h"

namespace rankprobe {

class CollectorChannel {
 public:
  using SessionReactor = grpc::ClientBidiReactor<v1::AgentEvent, v1::Directive>;
  // Frames are sent in their encoded form, so that payload bytes are not
  // copied.
  using UploadReactor =
      grpc::ClientBidiReactor<grpc::ByteBuffer, v1::UploadAck>;

  virtual ~CollectorChannel() = default;

  // Both bind the reactor to a new call, which the caller starts.
  virtual void Session(grpc::ClientContext* context,
                       SessionReactor* reactor) = 0;
  virtual void Upload(grpc::ClientContext* context, UploadReactor* reactor) = 0;
  // All arguments must live until `done` is called, from another thread.
  virtual void FindCollector(grpc::ClientContext* context,
                             const v1::FindCollectorRequest* request,
                             v1::FoundCollector* answer,
                             std::function<void(const grpc::Status&)> done) = 0;
  virtual std::unique_ptr<grpc::ClientReaderInterface<v1::ReferenceChunk>>
  GetReference(grpc::ClientContext* context,
               const v1::ReferenceRequest& request) = 0;
};

std::shared_ptr<CollectorChannel> MakeCollectorChannel(
    const std::shared_ptr<grpc::Channel>& channel);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_COLLECTOR_CHANNEL_H_
