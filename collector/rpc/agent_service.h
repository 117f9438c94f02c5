// SPDX-License-Identifier: Apache-2.0
// AgentService over gRPC's callback API: no thread per rank. Streams check and
// queue; the control plane and the commit queue do the work.
// Ownership: one per server; AgentSessions, IngestGate, CommitQueue and Store
// outlive it.
// Failure: a frame with bad content is refused alone, by its number; any other
// bad message ends its stream with a status and affects nothing else.
#ifndef RANKPROBE_COLLECTOR_RPC_AGENT_SERVICE_H_
#define RANKPROBE_COLLECTOR_RPC_AGENT_SERVICE_H_

#include <functional>
#include <memory>
#include <utility>

#include "collector/auth/authorizer.h"
#include "collector/control/agent_sessions.h"
#include "collector/control/ingest_gate.h"
#include "collector/ingest/commit_queue.h"
#include "collector/rpc/lane_server.h"
#include "common/base/logger.h"
#include "rankprobe/v1/agent.grpc.pb.h"

namespace rankprobe {

// Frames arrive as bytes (frame_decoding.h).
using AgentServiceBase = v1::AgentService::WithCallbackMethod_Session<
    v1::AgentService::WithRawCallbackMethod_Upload<
        v1::AgentService::WithCallbackMethod_GetReference<
            v1::AgentService::Service>>>;

class AgentService : public AgentServiceBase {
 public:
  struct Options {
    // Limit for directives that wait for one slow agent.
    size_t max_queued_directives = 1024;
    // If not OK, every rank that connects here is refused with this status.
    absl::Status refusal;
    // May be null; outlives the service.
    IngestMetrics* metrics = nullptr;
    // Receives refused frames; may be null, outlives the service.
    const Logger* logger = nullptr;
    // Runs a task that waits for the disk on another thread; false if the queue
    // is full. Null: runs in place.
    std::function<bool(std::function<void()>)> run;
    // The same for tasks that a rank waits for, so that no query delays them.
    std::function<bool(std::function<void()>, size_t bytes)> run_session;
    // May be null: all bytes arrive in frames. Outlives the service.
    LaneServer* lanes = nullptr;
  };

  // If `commits` and `registry` are null, this collector takes no frames of
  // ranks.
  AgentService(const Options& options, AgentSessions* sessions,
               IngestGate* gate, CommitQueue* commits, RunRegistry* registry,
               ArchiveReader* archive)
      : options_(options),
        sessions_(sessions),
        gate_(gate),
        commits_(commits),
        registry_(registry),
        archive_(archive) {}

  // Sets who may be which rank. Called before the server starts; without it the
  // port is open.
  void SetAuthorizer(std::shared_ptr<const Authorizer> authorizer) {
    authorizer_ = std::move(authorizer);
  }

  grpc::ServerBidiReactor<v1::AgentEvent, v1::Directive>* Session(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Upload(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::ReferenceChunk>* GetReference(
      grpc::CallbackServerContext* context,
      const v1::ReferenceRequest* request) override;

 private:
  Peer PeerOf(const grpc::CallbackServerContext& context) const;

  const Options options_;
  AgentSessions* const sessions_;
  IngestGate* const gate_;
  CommitQueue* const commits_;
  RunRegistry* const registry_;
  ArchiveReader* const archive_;
  std::shared_ptr<const Authorizer> authorizer_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_AGENT_SERVICE_H_
