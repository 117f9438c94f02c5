// SPDX-License-Identifier: Apache-2.0
// ControlService: operators' calls, answered by the control plane.
// Ownership: one per server; the ControlPlane, the queue and the pool outlive
// it. Calls never wait for a disk on gRPC's threads, nor compile there: what is
// audited runs in the queue, where its attempt is written before it is begun and
// its outcome synced before it is answered; what reads a run or compiles a config
// runs in the pool. RESOURCE_EXHAUSTED when too much waits in either. ListAgents
// and ListEvents only look in memory.
#ifndef RANKPROBE_COLLECTOR_RPC_CONTROL_SERVICE_H_
#define RANKPROBE_COLLECTOR_RPC_CONTROL_SERVICE_H_

#include <functional>
#include <string>
#include <utility>

#include "collector/auth/auditor.h"
#include "collector/control/control_plane.h"
#include "collector/rpc/worker_pool.h"
#include "rankprobe/v1/control.grpc.pb.h"

namespace rankprobe {

class ControlService : public v1::ControlService::CallbackService {
 public:
  ControlService(ControlPlane* control, DiskQueue* audited, WorkerPool* pool)
      : control_(control), audited_(audited), pool_(pool) {}

  // Of a root: who its leaves say is connected. Of a leaf: what it answers to all
  // else, which its root alone can do. Null: as any collector. Before the server
  // starts.
  struct Leaves {
    std::function<v1::ListAgentsResponse(const std::string& run)> list_agents;
    std::function<absl::Status(const std::string& run)> elsewhere;
  };
  void SetLeaves(Leaves leaves) { leaves_ = std::move(leaves); }
  // Before the server starts. It outlives the service.
  void SetAuditor(const Auditor* auditor) { auditor_ = auditor; }

  grpc::ServerUnaryReactor* SetConfig(grpc::CallbackServerContext* context,
                                      const v1::SetConfigRequest* request,
                                      v1::SwitchResult* response) override;
  grpc::ServerUnaryReactor* SetDumpEnable(
      grpc::CallbackServerContext* context,
      const v1::SetDumpEnableRequest* request,
      v1::SwitchResult* response) override;
  grpc::ServerUnaryReactor* GetConfig(grpc::CallbackServerContext* context,
                                      const v1::GetConfigRequest* request,
                                      v1::GetConfigResponse* response) override;
  grpc::ServerUnaryReactor* ListAgents(
      grpc::CallbackServerContext* context,
      const v1::ListAgentsRequest* request,
      v1::ListAgentsResponse* response) override;

  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::ExplainRequest* request,
                                    v1::ExplainResponse* response) override;
  grpc::ServerUnaryReactor* SetTriggers(
      grpc::CallbackServerContext* context,
      const v1::SetTriggersRequest* request,
      v1::SetTriggersResponse* response) override;
  grpc::ServerUnaryReactor* GetTriggers(grpc::CallbackServerContext* context,
                                        const v1::GetTriggersRequest* request,
                                        v1::TriggerSpec* response) override;
  grpc::ServerUnaryReactor* ShipFlight(
      grpc::CallbackServerContext* context,
      const v1::ShipFlightRequest* request,
      v1::ShipFlightResponse* response) override;
  grpc::ServerUnaryReactor* ListEvents(
      grpc::CallbackServerContext* context,
      const v1::ListEventsRequest* request,
      v1::ListEventsResponse* response) override;

 private:
  // Does `act` elsewhere, once its line is in the audit log; refuses it while too
  // many wait for that. `bytes` are what it holds meanwhile.
  void ActAudited(const Auditor::Entry& entry, uint64_t bytes,
                  std::function<void()> act,
                  const std::function<void(const absl::Status&)>& refuse);
  // What a switch tells when it is over.
  PlanSwitches::Done WhenDone(
      const Auditor::Entry& entry,
      std::function<void(absl::StatusOr<v1::SwitchResult>)> done);

  ControlPlane* const control_;
  DiskQueue* const audited_;
  WorkerPool* const pool_;
  const Auditor* auditor_ = nullptr;
  Leaves leaves_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_CONTROL_SERVICE_H_
