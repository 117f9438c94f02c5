// SPDX-License-Identifier: Apache-2.0
#include "collector/server/part_options.h"

#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/server/descriptor_limit.h"

namespace rankprobe {
namespace {

// A frame has at most 1 MiB of payload or records, plus its other fields.
constexpr int kMaxReceiveBytes = (1 << 20) + (64 << 10);
// Limit for concurrent calls of one connection. A rank has three; many ranks of
// a process may share one connection.
constexpr int kMaxStreams = 256;
constexpr int kMaxMetadataBytes = 8 << 10;
constexpr int kIdleMs = 10 * 60 * 1000;
constexpr int kHandshakeMs = 10000;

}  // namespace

ConnectionGate::Options GateOptions(const ServerConfig& config,
                                    const Logger* logger) {
  ConnectionGate::Options options;
  options.listen = config.listen;
  options.memory_bytes = config.memory_bytes;
  if (options.memory_bytes == 0) {
    options.memory_bytes = config.pending_bytes + config.index_cache_bytes +
                           config.grpc_memory_bytes + (uint64_t{1} << 30);
  }
  const uint64_t descriptors = RaiseDescriptorLimit();
  // Files have priority; a connection takes two descriptors.
  const uint64_t files = std::min<uint64_t>(descriptors / 2, 2048);
  options.max_connections = (descriptors - files) / 2;
  options.max_unproven =
      std::min(options.max_unproven, options.max_connections / 2);
  if (options.max_connections < config.max_sessions) {
    logger->Log(Logger::Severity::kWarning, "few_descriptors",
                {{"limit", absl::StrCat(descriptors)},
                 {"connections", absl::StrCat(options.max_connections)},
                 {"max_sessions", absl::StrCat(config.max_sessions)},
                 {"what_to_do", "raise the limit of open files (ulimit -n)"}});
  }
  return options;
}

void LimitCalls(const ServerConfig& config, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(kMaxReceiveBytes);
  grpc::ResourceQuota quota("rankprobed");
  quota.Resize(config.grpc_memory_bytes);
  builder->SetResourceQuota(quota);
  // Disables compression, which no client uses: gRPC would inflate a message
  // before it checks the size.
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder->AddChannelArgument(
      GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET,
      1 << GRPC_COMPRESS_NONE);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                              kHandshakeMs);
  // Detects vanished peers within half a minute.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder->AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
}

ControlPlane::Options ControlOptions(const ServerConfig& config,
                                     std::optional<v1::TriggerSpec> triggers,
                                     uint64_t agents, EventLog* events,
                                     RelayQueue* relay) {
  ControlPlane::Options options;
  options.events = events;
  options.own_thread = true;
  options.one_of_several = !config.root.empty();
  if (!config.root.empty()) {
    options.relay = [relay](v1::RelayedEvent event) {
      relay->Push(std::move(event));
    };
  }
  options.default_triggers = std::move(triggers);
  options.max_sessions = config.max_sessions;
  options.agents = agents;
  options.credit_bytes = config.credit_bytes;
  return options;
}

AgentService::Options AgentOptions(const ServerConfig& config,
                                   IngestMetrics* metrics, WorkerPool* pool,
                                   WorkerPool* sessions, LaneServer* lanes,
                                   const Logger* logger) {
  AgentService::Options options;
  options.metrics = metrics;
  options.lanes = lanes;
  options.logger = logger;
  if (config.role == "root") {
    options.refusal = absl::FailedPreconditionError(
        "this is a root, which sends ranks to its leaves and takes none "
        "itself; this agent is older than that");
  }
  options.run = [pool](std::function<void()> task) {
    return pool->Run(std::move(task));
  };
  options.run_session = [sessions](std::function<void()> task, size_t bytes) {
    return sessions->Run(std::move(task), bytes);
  };
  return options;
}

std::unique_ptr<LaneServer> StartLanes(const ServerConfig& config,
                                       const Logger* logger) {
  // Other roles take no data from ranks.
  if (config.no_lane || (config.role != "all" && config.role != "leaf"))
    return nullptr;
  LaneServer::Options options;
  // Files and connections have priority.
  options.max_lanes =
      std::min<uint64_t>(options.max_lanes, RaiseDescriptorLimit() / 16);
  absl::StatusOr<std::unique_ptr<LaneServer>> lanes =
      LaneServer::Start(options);
  if (lanes.ok()) return *std::move(lanes);
  logger->Info("no_lane", {{"status", lanes.status().ToString()}});
  return nullptr;
}

std::unique_ptr<DiskPressure> MakePressure(const ServerConfig& config,
                                           FileSystem* file_system,
                                           const Clock* clock) {
  DiskPressure::Options options;
  options.directory = config.data_dir;
  options.high_percent = config.disk_high_percent;
  options.full_percent = config.disk_full_percent;
  options.min_free_bytes = config.min_free_bytes;
  if (options.high_percent == 0 && options.full_percent == 0) return nullptr;
  return std::make_unique<DiskPressure>(options, file_system, clock);
}

CommitQueue::Options CommitOptions(const ServerConfig& config,
                                   IngestMetrics* metrics,
                                   DiskPressure* pressure) {
  CommitQueue::Options options;
  options.pressure = pressure;
  options.metrics = metrics;
  options.batch_bytes = config.commit_batch_bytes;
  options.max_uploads = 2 * config.max_sessions;
  options.pending_bytes = config.pending_bytes;
  options.credit_bytes = config.credit_bytes;
  options.sync_interval =
      absl::Milliseconds(static_cast<int64_t>(config.sync_interval_ms));
  return options;
}

RetentionOptions RetentionOf(const ServerConfig& config) {
  RetentionOptions options;
  if (config.retention_hours > 0)
    options.max_age = absl::Hours(static_cast<int64_t>(config.retention_hours));
  options.max_bytes = config.retention_bytes;
  return options;
}

}  // namespace rankprobe
