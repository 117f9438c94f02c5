// SPDX-License-Identifier: Apache-2.0
// Options of the server's parts, from its configuration. Thread-safe: pure
// functions, except that the process's limit of descriptors is raised.
#ifndef RANKPROBE_COLLECTOR_SERVER_PART_OPTIONS_H_
#define RANKPROBE_COLLECTOR_SERVER_PART_OPTIONS_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "collector/control/control_plane.h"
#include "collector/control/event_log.h"
#include "collector/ingest/commit_queue.h"
#include "collector/ingest/disk_pressure.h"
#include "collector/rpc/agent_service.h"
#include "collector/rpc/worker_pool.h"
#include "collector/server/connection_gate.h"
#include "collector/server/root_link.h"
#include "collector/server/server_config.h"
#include "collector/store/retention.h"
#include "common/base/logger.h"

namespace rankprobe {

// Logs a warning if the limit of descriptors is too low for all sessions.
ConnectionGate::Options GateOptions(const ServerConfig& config,
                                    const Logger* logger);
// Limits of messages, calls and connections.
void LimitCalls(const ServerConfig& config, grpc::ServerBuilder* builder);

// `agents`: the identities that may register as an agent.
ControlPlane::Options ControlOptions(const ServerConfig& config,
                                     std::optional<v1::TriggerSpec> triggers,
                                     uint64_t agents, EventLog* events,
                                     RelayQueue* relay);
// `pool` runs what waits for the archive, `sessions` messages of ranks.
AgentService::Options AgentOptions(const ServerConfig& config,
                                   IngestMetrics* metrics, WorkerPool* pool,
                                   WorkerPool* sessions, LaneServer* lanes,
                                   const Logger* logger);
// Returns null if payloads of this host are sent in frames like those of
// others.
std::unique_ptr<LaneServer> StartLanes(const ServerConfig& config,
                                       const Logger* logger);
// Returns null if no limit is configured.
std::unique_ptr<DiskPressure> MakePressure(const ServerConfig& config,
                                           FileSystem* file_system,
                                           const Clock* clock);
CommitQueue::Options CommitOptions(const ServerConfig& config,
                                   IngestMetrics* metrics,
                                   DiskPressure* pressure);
RetentionOptions RetentionOf(const ServerConfig& config);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_PART_OPTIONS_H_
