// SPDX-License-Identifier: Apache-2.0
// ControlService: operators' calls, answered by the control plane.
// Ownership: one per server; the ControlPlane, the queue and the pool outlive
// it. Calls never wait for a disk or compile on gRPC's threads: audited calls
// run in the queue, where the attempt is written before the action and the
// outcome is synced before the answer; calls that read a run or compile a
// config run in the pool. RESOURCE_EXHAUSTED if too much waits in either.
// ListAgents and ListEvents only read memory.
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

  // On a root: lists the ranks that its leaves report as connected. On a leaf:
  // the answer to calls that only its root can serve. Null: as any collector.
  // Set before the server starts.
  struct Leaves {
    std::function<v1::ListAgentsResponse(const std::string& run)> list_agents;
    std::function<absl::Status(const std::string& run)> elsewhere;
  };
  void SetLeaves(Leaves leaves) { leaves_ = std::move(leaves); }
  // Called before the server starts. It outlives the service.
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
  // Runs `act` in the queue once its line is in the audit log; calls `refuse`
  // if too many tasks wait. `bytes` is the memory that it holds meanwhile.
  void ActAudited(const Auditor::Entry& entry, uint64_t bytes,
                  std::function<void()> act,
                  const std::function<void(const absl::Status&)>& refuse);
  // Returns a callback that audits the result of a switch and calls `done`.
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
