// SPDX-License-Identifier: Apache-2.0
// RootService: leaves' streams, and the question of ranks, which the registry
// answers from memory on gRPC's threads. What ranks say to their leaves comes along
// and goes to the control plane, as if they were connected here; what that says to
// them goes back the same way.
// Ownership: one per root; registry, control plane and Logger outlive it.
// Failure: a report that cannot be used ends its stream with a status; the leaf
// begins anew. A rank that is refused is told goodbye.
#ifndef RANKPROBE_COLLECTOR_RPC_ROOT_SERVICE_H_
#define RANKPROBE_COLLECTOR_RPC_ROOT_SERVICE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "collector/auth/authorizer.h"
#include "collector/control/control_plane.h"
#include "collector/control/leaf_registry.h"
#include "common/base/logger.h"
#include "rankprobe/v1/leaf.grpc.pb.h"

namespace rankprobe {

class RootService : public v1::RootService::CallbackService {
 public:
  // As AgentService's: what waits for the store runs there. Null: in place.
  using Runner = std::function<bool(std::function<void()>, size_t bytes)>;
  RootService(LeafRegistry* registry, ControlPlane* control,
              const Logger* logger,
              std::shared_ptr<const Authorizer> authorizer, Runner run)
      : registry_(registry),
        control_(control),
        logger_(logger),
        authorizer_(std::move(authorizer)),
        run_(std::move(run)) {}

  grpc::ServerBidiReactor<v1::LeafReport, v1::RootNote>* Link(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* FindCollector(
      grpc::CallbackServerContext* context,
      const v1::FindCollectorRequest* request,
      v1::FoundCollector* response) override;

 private:
  LeafRegistry* const registry_;
  ControlPlane* const control_;
  const Logger* const logger_;
  const std::shared_ptr<const Authorizer> authorizer_;
  const Runner run_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_ROOT_SERVICE_H_
