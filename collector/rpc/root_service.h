// SPDX-License-Identifier: Apache-2.0
// RootService: leaves' streams, and the question of ranks, which the registry
// answers from memory on gRPC's threads. What ranks say to their leaves comes along
// and goes to the control plane, as if they were connected here; what that says to
// them goes back the same way.
// Answers of leaves to what they were asked go to whoever asked.
// Ownership: one per root; registry, questions, sessions and Logger outlive
// it.
// Failure: a report that cannot be used ends its stream with a status; the leaf
// begins anew. A rank that is refused is told goodbye.
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
  // As AgentService's: what waits for the store runs there. Null: in place.
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
