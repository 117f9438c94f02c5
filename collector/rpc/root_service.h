// SPDX-License-Identifier: Apache-2.0
// RootService: leaves' streams and ranks' question, answered by the registry from
// memory, on gRPC's threads.
// Ownership: one per root; the registry and the Logger outlive it.
// Failure: a report that cannot be used ends its stream with a status.
#ifndef RANKPROBE_COLLECTOR_RPC_ROOT_SERVICE_H_
#define RANKPROBE_COLLECTOR_RPC_ROOT_SERVICE_H_

#include <memory>
#include <utility>

#include "collector/auth/authorizer.h"
#include "collector/control/leaf_registry.h"
#include "common/base/logger.h"
#include "rankprobe/v1/leaf.grpc.pb.h"

namespace rankprobe {

class RootService : public v1::RootService::CallbackService {
 public:
  RootService(LeafRegistry* registry, const Logger* logger,
              std::shared_ptr<const Authorizer> authorizer)
      : registry_(registry),
        logger_(logger),
        authorizer_(std::move(authorizer)) {}

  grpc::ServerBidiReactor<v1::LeafReport, v1::RootNote>* Link(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* FindCollector(
      grpc::CallbackServerContext* context,
      const v1::FindCollectorRequest* request,
      v1::FoundCollector* response) override;

 private:
  LeafRegistry* const registry_;
  const Logger* const logger_;
  const std::shared_ptr<const Authorizer> authorizer_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_ROOT_SERVICE_H_
