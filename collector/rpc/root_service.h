// SPDX-License-Identifier: Apache-2.0
// RootService: leaves' streams, and ranks' requests for a collector, which the
// registry answers from memory on gRPC's threads. Messages of ranks arrive over
// their leaves and are passed to the control plane, as if the ranks were
// connected here; its directives return the same way. Answers of leaves are
// passed to the caller that asked.
// Ownership: one per root; registry, questions, sessions and Logger outlive it.
// Failure: an unusable report ends its stream with a status; the leaf connects
// again. A refused rank gets a goodbye.
#ifndef RANKPROBE_COLLECTOR_RPC_ROOT_SERVICE_H_
#define RANKPROBE_COLLECTOR_RPC_ROOT_SERVICE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "collector/auth/authorizer.h"
#include "collector/control/agent_sessions.h"
#include "collector/control/leaf_registry.h"
#include "collector/rpc/leaf_questions.h"
#include "common/base/logger.h"
#include "rankprobe/v1/leaf.grpc.pb.h"

namespace rankprobe {

class RootService : public v1::RootService::CallbackService {
 public:
  // As AgentService's: runs tasks that wait for the store. Null: in place.
  using Runner = std::function<bool(std::function<void()>, size_t bytes)>;
  RootService(LeafRegistry* registry, LeafQuestions* questions,
              AgentSessions* agents, const Logger* logger,
              std::shared_ptr<const Authorizer> authorizer, Runner run)
      : registry_(registry),
        questions_(questions),
        agents_(agents),
        logger_(logger),
        authorizer_(std::move(authorizer)),
        run_(std::move(run)) {}

  grpc::ServerBidiReactor<v1::LeafReport, v1::RootNote>* Link(
      grpc::CallbackServerContext* context) override;
  grpc::ServerReadReactor<v1::LiveAnswer>* Answer(
      grpc::CallbackServerContext* context,
      v1::LiveAnswered* response) override;
  grpc::ServerUnaryReactor* FindCollector(
      grpc::CallbackServerContext* context,
      const v1::FindCollectorRequest* request,
      v1::FoundCollector* response) override;

 private:
  std::string NameOf(const grpc::CallbackServerContext& context) const;

  LeafRegistry* const registry_;
  LeafQuestions* const questions_;
  AgentSessions* const agents_;
  const Logger* const logger_;
  const std::shared_ptr<const Authorizer> authorizer_;
  const Runner run_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_ROOT_SERVICE_H_
