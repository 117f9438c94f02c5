// SPDX-License-Identifier: Apache-2.0
#include "collector/server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/support/server_interceptor.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collector/auth/audit_log.h"
#include "collector/auth/auditor.h"
#include "collector/auth/server_credentials.h"
#include "collector/control/control_plane.h"
#include "collector/control/disk_queue.h"
#include "collector/control/event_log.h"
#include "collector/control/leaf_registry.h"
#include "collector/ingest/disk_pressure.h"
#include "collector/rpc/agent_service.h"
#include "collector/rpc/archive_service.h"
#include "collector/rpc/control_service.h"
#include "collector/rpc/leaf_questions.h"
#include "collector/rpc/root_service.h"
#include "collector/sealed/sealer.h"
#include "collector/server/agents_audit.h"
#include "collector/server/connection_gate.h"
#include "collector/server/janitor.h"
#include "collector/server/leaf_answers.h"
#include "collector/server/metrics.h"
#include "collector/server/metrics_server.h"
#include "collector/server/own_addresses.h"
#include "collector/server/page_dumps.h"
#include "collector/server/part_options.h"
#include "collector/server/roller.h"
#include "collector/server/root_link.h"
#include "collector/server/storage_log.h"
#include "collector/server/uploader.h"
#include "collector/server/web_page.h"
#include "common/base/collector_address.h"
#include "common/base/monotonic_event.h"
#include "common/base/monotonic_time.h"
#include "common/base/status_macros.h"
#include "common/config/trigger_spec.h"
#include "common/rpc/channel_security.h"

namespace rankprobe {
namespace {

// Threads in addition to --worker-threads, for calls that must not wait for
// exports.
constexpr size_t kQuickThreads = 2;
// Threads for Hellos and other messages of ranks that wait for the store.
constexpr size_t kSessionThreads = 2;
// Limit for messages that wait for them: a Hello may contain a config of 1 MiB.
constexpr size_t kSessionBytes = 128 << 20;
constexpr absl::Duration kLastMoment = absl::Milliseconds(300);
// Limit for operators' actions that wait for the audit log's disk.
constexpr size_t kMaxAuditedTasks = 256;
constexpr uint64_t kMaxAuditedBytes = 64 << 20;
constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr absl::Duration kDiskLook = absl::Milliseconds(100);
constexpr absl::Duration kRollerLook = absl::Milliseconds(200);
// Time limit within a scrape, whose connection is closed after two seconds.
constexpr absl::Duration kMetricsValuesTime = absl::Seconds(1);
constexpr size_t kMetricsMaxValues = 1000;

class ServerImpl final : public Server {
 public:
  // Parts that may fail to open, opened before the server is constructed.
  struct Parts {
    std::unique_ptr<EventLog> events;
    std::optional<v1::TriggerSpec> triggers;
    ServerSecurity security;
  };

  ServerImpl(const ServerConfig& config, Parts parts, ServedArchive archive,
             FileSystem* file_system, const Clock* clock, const Logger* logger,
             LeafQuestions* questions)
      : config_(config),
        file_system_(file_system),
        clock_(clock),
        logger_(logger),
        archive_(archive.reader),
        store_(std::move(archive.local)),
        security_(parts.security),
        events_(std::move(parts.events)),
        control_(ControlOptions(config, std::move(parts.triggers),
                                security_.authorizer->CountAgents(),
                                events_.get(), &relay_),
                 archive.registry, archive_, clock),
        pressure_(MakePressure(config, file_system, clock)),
        pool_(config.worker_threads, /*max_queued=*/1024),
        quick_pool_(kQuickThreads, /*max_queued=*/1024),
        session_pool_(std::make_unique<WorkerPool>(
            kSessionThreads, /*max_queued=*/4 * config.max_sessions,
            kSessionBytes)),
        commits_(MakeCommits(config)),
        lanes_(StartLanes(config, logger)),
        agent_service_(AgentOptions(config, &ingest_metrics_, &quick_pool_,
                                    session_pool_.get(), lanes_.get(), logger),
                       &control_.agents(), &control_.gate(), commits_.get(),
                       archive.registry, archive_),
        control_service_(&control_, &audited_, &quick_pool_),
        archive_service_(
            archive_, archive.upkeep, store_.get(), file_system, &pool_,
            &quick_pool_, config.export_roots, logger,
            [this] { return LiveIncarnations(); }, &export_metrics_),
        questions_(questions) {
    if (store_ == nullptr) return;
    janitor_ = std::make_unique<Janitor>(
        Janitor::Options{
            RetentionOf(config),
            absl::Seconds(static_cast<int64_t>(config.janitor_seconds))},
        store_.get(), clock, logger, [this] { return LiveIncarnations(); });
    roller_ = std::make_unique<Roller>(store_.get(), logger, kRollerLook);
  }

  ~ServerImpl() override { ServerImpl::Shutdown(); }

  absl::Status OpenUploader(ObjectStore* objects) {
    SealerOptions options;
    options.directory = absl::StrCat(config_.data_dir, "/sealing");
    options.quiet_time =
        absl::Seconds(static_cast<int64_t>(config_.seal_quiet_seconds));
    options.free_stored = config_.free_stored;
    options.live = [this] { return LiveIncarnations(); };
    RP_ASSIGN_OR_RETURN(sealer_, Sealer::Open(std::move(options), store_.get(),
                                              objects, file_system_, clock_));
    uploader_ = std::make_unique<Uploader>(
        Uploader::Options{
            absl::Seconds(static_cast<int64_t>(config_.seal_seconds)),
            absl::Seconds(static_cast<int64_t>(config_.drain_seconds))},
        sealer_.get(), clock_, logger_);
    logger_->Info(
        "leaf", {{"object_store", objects->name()}, {"log", sealer_->shard()}});
    return absl::OkStatus();
  }

  // On a leaf with a root, once the server listens.
  absl::Status LinkToRoot() {
    RootLink::Options options;
    options.root = config_.root;
    ChannelSecurityFiles files;
    files.tls_ca = config_.root_ca;
    files.token_file = config_.root_token_file;
    if (!config_.root_ca.empty()) {
      files.tls_cert = config_.tls_cert;
      files.tls_key = config_.tls_key;
    }
    RP_ASSIGN_OR_RETURN(options.security, ReadChannelSecurity(files));
    options.leaf = sealer_->shard();
    options.address = config_.advertise.empty() ? address() : config_.advertise;
    options.max_ranks = static_cast<uint32_t>(
        std::min<uint64_t>(config_.max_sessions, UINT32_MAX));
    options.agents = [this] { return ListAgents(""); };
    options.relay = &relay_;
    options.say = [this](const std::string& session,
                         const v1::Directive& directive) {
      control_.agents().Say(session, directive);
    };
    options.healthy = [this] { return !archive_failed_; };
    options.runs = [this] { return store_->RunNames(); };
    options.answer = [this](v1::LiveQuestion question) {
      answers_->Answer(std::move(question));
    };
    options.waiting = [this] { return answers_->Waiting(); };
    answers_ = std::make_unique<LeafAnswers>(
        LeafAnswers::Options{
            options.root, options.security,
            [this](const std::string& run, const v1::StepInfo& info) {
              return sealer_->IsStored(run, info);
            }},
        archive_);
    root_link_ = std::make_unique<RootLink>(std::move(options), logger_);
    root_link_->Start();
    return absl::OkStatus();
  }

  // On a root.
  void BeRoot(grpc::ServerBuilder* builder) {
    LeafRegistry::Options options;
    options.own_addresses = OwnAddresses(config_.listen, port());
    leaves_ = std::make_unique<LeafRegistry>(options, MonotonicNow());
    root_service_ = std::make_unique<RootService>(
        leaves_.get(), questions_, &control_.agents(), logger_,
        security_.authorizer, [this](std::function<void()> task, size_t bytes) {
          return session_pool_->Run(std::move(task), bytes);
        });
    control_service_.SetLeaves({[this](const std::string& run) {
                                  return leaves_->ListAgents(run,
                                                             MonotonicNow());
                                },
                                nullptr});
    builder->RegisterService(root_service_.get());
  }

  absl::Status Listen() {
    // Before ranks are accepted, because an address in use ends the start.
    if (!config_.web_listen.empty()) {
      RP_ASSIGN_OR_RETURN(
          page_,
          WebPage::Listen({config_.web_listen, config_.web_names,
                           config_.tls_cert, config_.tls_key, config_.web_root},
                          security_.authorizer, logger_));
    }
    RP_ASSIGN_OR_RETURN(
        gate_, ConnectionGate::Listen(GateOptions(config_, logger_), logger_));
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    const ServerSecurity& security = security_;
    RP_ASSIGN_OR_RETURN(
        audit_, AuditLog::Open({.min_free_bytes = config_.min_free_bytes},
                               absl::StrCat(config_.data_dir, "/audit.jsonl"),
                               file_system_, clock_));
    auditor_ =
        std::make_unique<Auditor>(audit_.get(), security.authorizer, logger_);
    agents_audit_ = std::make_unique<AgentsAudit>(&control_, auditor_.get(),
                                                  &audited_, logger_);
    control_service_.SetAuditor(auditor_.get());
    archive_service_.SetAuditor(auditor_.get());
    agent_service_.SetAuthorizer(security.authorizer);
    ForwardGrpcLog(logger_);
    // The gate accepts connections and passes them here.
    std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
        builder.experimental().AddExternalConnectionAcceptor(
            grpc::ServerBuilder::experimental_type::ExternalConnectionType::
                FROM_FD,
            security.credentials);
    std::vector<
        std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
        provers;
    provers.push_back(std::make_unique<Prover>(gate_.get()));
    builder.experimental().SetInterceptorCreators(std::move(provers));
    builder.RegisterService(&agent_service_);
    builder.RegisterService(&control_service_);
    builder.RegisterService(&archive_service_);
    if (config_.role == "root") BeRoot(&builder);
    // The root switches the plans of this leaf's ranks.
    if (config_.role != "root") {
      ControlService::Leaves leaf;
      leaf.list_agents = [this](const std::string& run) {
        return ListAgents(run);
      };
      if (!config_.root.empty()) {
        leaf.elsewhere = [this](const std::string&) {
          return absl::FailedPreconditionError(
              absl::StrCat("this leaf's ranks are controlled "
                           "by its root: ask ",
                           config_.root));
        };
      }
      control_service_.SetLeaves(std::move(leaf));
    }
    LimitCalls(config_, &builder);
    if (config_.metrics_port >= 0) {
      RP_ASSIGN_OR_RETURN(
          metrics_server_,
          StartMetrics(config_.metrics_host,
                       static_cast<uint16_t>(config_.metrics_port),
                       [this] { return Metrics(); }));
      logger_->Info("metrics",
                    {{"port", absl::StrCat(metrics_server_->port())}});
    }
    server_ = builder.BuildAndStart();
    if (server_ == nullptr)
      return absl::UnavailableError("gRPC cannot start a server");
    // Before the first rank connects, because the disk may already be full.
    if (pressure_ != nullptr) LookAtDisk();
    gate_->Start([acceptor](int fd) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters
          connection;
      connection.fd = fd;
      acceptor->HandleNewConnection(&connection);
    });
    if (janitor_ != nullptr) janitor_->Start();
    // A private collector gets no queries over steps, and its job needs the
    // processors.
    if (roller_ != nullptr && config_.job_dir.empty()) roller_->Start();
    if (uploader_ != nullptr) uploader_->Start();
    if (pressure_ != nullptr) {
      disk_thread_ = std::thread([this] {
        while (!stop_ticker_.WaitFor(kDiskLook)) LookAtDisk();
      });
    }
    ticker_ = std::thread([this] {
      while (!stop_ticker_.WaitFor(kTick)) {
        control_.Tick();
        agents_audit_->Write();
        storage_log_.CheckEvents(events_->status());
        storage_log_.CheckRoom(ingest_metrics_.no_space_retries);
        if (leaves_ != nullptr) TellDisksOfLeaves();
      }
    });
    if (page_ != nullptr) {
      WebPage::Services services;
      services.channel = server_->InProcessChannel(WebPage::Arguments());
      services.collector = address();
      services.auditor = auditor_.get();
      services.fetch = [this](const JobDump& dump, uint64_t max_bytes,
                              const std::function<bool()>& cancelled) {
        return FetchDump(archive_, file_system_, &pool_, dump, max_bytes,
                         cancelled);
      };
      services.job_directory = absl::StrCat(config_.data_dir, "/page_jobs");
      services.min_free_bytes = config_.min_free_bytes;
      RP_RETURN_IF_ERROR(page_->Serve(std::move(services)));
      logger_->Info("page", {{"address", page_->address()}});
    }
    if (!config_.root.empty()) RP_RETURN_IF_ERROR(LinkToRoot());
    return absl::OkStatus();
  }

  int port() const override { return gate_->port(); }
  const std::string& address() const override { return gate_->address(); }
  std::string page_address() const override {
    return page_ == nullptr ? "" : page_->address();
  }

  bool Shutdown() override {
    if (server_ == nullptr) return true;
    if (server_->GetHealthCheckService() != nullptr)
      server_->GetHealthCheckService()->SetServingStatus(false);
    // From now on the root assigns no ranks to this leaf.
    if (root_link_ != nullptr) root_link_->Stop();
    if (answers_ != nullptr) answers_->Stop();
    gate_->Stop();
    // Requests of the page are calls too, and must end before EndCalls can.
    if (page_ != nullptr) page_->Stop();
    control_.agents().Shutdown();
    if (!EndCalls()) return false;
    metrics_server_.reset();
    if (janitor_ != nullptr) janitor_->Stop();
    if (roller_ != nullptr) roller_->Stop();
    StopTicker();
    // Tasks of streams on other threads need the commit queue, and are audited
    // like the control plane's saves.
    session_pool_.reset();
    agents_audit_->Drain();
    // Writes and syncs what has been received.
    commits_.reset();
    // After the last commit, so that steps that have ended with it are stored
    // too.
    if (uploader_ != nullptr) uploader_->Stop();
    server_.reset();
    gate_.reset();
    ForwardGrpcLog(nullptr);
    logger_->Info("stopped");
    return true;
  }

 private:
  // Notifies the gate of calls to our services. Authorization happens before:
  // this runs only for authorized calls.
  class Prover final
      : public grpc::experimental::ServerInterceptorFactoryInterface {
   public:
    explicit Prover(ConnectionGate* gate) : gate_(gate) {}
    grpc::experimental::Interceptor* CreateServerInterceptor(
        grpc::experimental::ServerRpcInfo* info) override {
      if (absl::StartsWith(info->method(), "/rankprobe."))
        gate_->Prove(info->server_context()->peer());
      return nullptr;
    }

   private:
    ConnectionGate* const gate_;
  };

  // Gives calls a moment to end, then cancels them. Returns false if one has not
  // ended in time, as a query that does not check for cancellation; what was
  // received is safe then.
  bool EndCalls() {
    const auto ended = std::make_shared<MonotonicEvent>();
    std::thread ending([this, ended] {
      server_->Shutdown(gpr_time_add(
          gpr_now(GPR_CLOCK_MONOTONIC),
          gpr_time_from_millis(absl::ToInt64Milliseconds(kLastMoment),
                               GPR_TIMESPAN)));
      ended->Set();
    });
    if (ended->WaitFor(kLastMoment + absl::Seconds(config_.drain_seconds))) {
      ending.join();
      return true;
    }
    ending.detach();
    if (commits_ != nullptr) commits_->Finish();
    StopTicker();
    agents_audit_->Drain();
    events_->WaitForWrites();
    logger_->Log(Logger::Severity::kWarning, "queries_left",
                 {{"drain_seconds", absl::StrCat(config_.drain_seconds)}});
    return false;
  }

  void StopTicker() {
    stop_ticker_.Set();
    ticker_.join();
    if (disk_thread_.joinable()) disk_thread_.join();
  }

  // Runs on a separate thread, which may wait for the disk. Each change is
  // reported once.
  void LookAtDisk() {
    if (!pressure_->Look()) return;
    const DiskPressure::Change change = pressure_->LastChange();
    logger_->Log(pressure_->level() == v1::DiskState::LEVEL_ROOM
                     ? Logger::Severity::kInfo
                     : Logger::Severity::kWarning,
                 "disk_pressure",
                 {{"disk", change.what}, {"so", change.outcome}});
    control_.agents().TellAllRuns(v1::Event::KIND_DISK, change.what,
                                  change.outcome);
    if (commits_ != nullptr) commits_->TellPayloadCredit();
  }
  void TellDisksOfLeaves() {
    for (const v1::DiskState& disk : leaves_->TakeDiskChanges()) {
      control_.agents().TellAllRuns(
          v1::Event::KIND_DISK,
          absl::StrCat("the disk of the leaf ", disk.collector(), " is ",
                       disk.used_percent(), " % full"),
          disk.level() == v1::DiskState::LEVEL_FULL ? "it takes records alone"
          : disk.level() == v1::DiskState::LEVEL_HIGH
              ? "it takes no payloads"
              : "it takes payloads again");
    }
  }
  v1::ListAgentsResponse ListAgents(const std::string& run) {
    v1::ListAgentsResponse agents = control_.agents().List(run);
    if (pressure_ != nullptr) *agents.add_disks() = pressure_->State();
    return agents;
  }

  std::unique_ptr<CommitQueue> MakeCommits(const ServerConfig& config) {
    if (store_ == nullptr) return nullptr;
    return std::make_unique<CommitQueue>(
        CommitOptions(config, &ingest_metrics_, pressure_.get()), store_.get(),
        &control_.gate(), clock_,
        [this](const absl::Status& status) { OnStoreFailed(status); });
  }
  // Reads only runs with a connected rank, so that a scrape does not scan the
  // archive.
  NewestValues ReadValues(const v1::ListAgentsResponse& agents) {
    std::set<std::string> runs;
    for (const v1::AgentInfo& agent : agents.agents())
      if (agent.connected()) runs.insert(agent.identity().run());
    const MonotonicTime end = MonotonicAfter(kMetricsValuesTime);
    absl::StatusOr<NewestValues> values =
        ReadNewestValues(QuerySources(archive_, store_.get()),
                         std::vector<std::string>(runs.begin(), runs.end()),
                         config_.metrics_values, kMetricsMaxValues,
                         [&] { return Until(end) <= absl::ZeroDuration(); });
    if (values.ok()) return *std::move(values);
    NewestValues none;
    none.complete = false;
    return none;
  }
  std::string Metrics() {
    MetricsInput input;
    input.ingest = &ingest_metrics_;
    input.lanes = lanes_ == nullptr ? 0 : lanes_->lanes();
    input.exports = &export_metrics_;
    input.agents = control_.agents().List("");
    if (store_ != nullptr) {
      input.store = store_->Totals();
      input.garbage = janitor_->last_garbage();
      input.pending_bytes = commits_->pending_bytes();
    }
    const absl::StatusOr<uint64_t> free =
        file_system_->FreeBytes(config_.data_dir);
    input.disk_free_bytes = free.ok() ? *free : 0;
    if (pressure_ != nullptr) input.disk = pressure_->State();
    input.archive_failed = archive_failed_;
    input.dropped_audit =
        control_.audit().CountDropped() + audit_->CountDropped();
    if (!config_.metrics_values.empty())
      input.values = ReadValues(input.agents);
    return MetricsText(input);
  }
  absl::flat_hash_set<uint64_t> LiveIncarnations() {
    absl::flat_hash_set<uint64_t> live;
    const v1::ListAgentsResponse agents = control_.agents().List("");
    for (const v1::AgentInfo& agent : agents.agents()) {
      if (agent.connected()) live.insert(agent.identity().incarnation());
    }
    return live;
  }

  void OnStoreFailed(const absl::Status& status) {
    archive_failed_ = true;
    logger_->Error("archive_failed",
                   {{"status", status.ToString()},
                    {"what_to_do", "repair the disk and restart rankprobed"}});
    if (server_ != nullptr && server_->GetHealthCheckService() != nullptr) {
      server_->GetHealthCheckService()->SetServingStatus(false);
    }
  }

  const ServerConfig config_;
  FileSystem* const file_system_;
  const Clock* const clock_;
  const Logger* const logger_;
  ArchiveReader* const archive_;
  // Null if the archive is in an object store, so that no frames are taken.
  const std::unique_ptr<Store> store_;
  IngestMetrics ingest_metrics_;
  ExportMetrics export_metrics_;
  std::atomic<bool> archive_failed_{false};
  // Used by the ticker only.
  StorageLog storage_log_{&config_, clock_, logger_};
  const ServerSecurity security_;
  const std::unique_ptr<EventLog> events_;
  // On a leaf.
  RelayQueue relay_;
  ControlPlane control_;
  // Null if the disk is not watched.
  const std::unique_ptr<DiskPressure> pressure_;
  WorkerPool pool_;
  WorkerPool quick_pool_;
  std::unique_ptr<WorkerPool> session_pool_;
  // Null if `store_` is.
  std::unique_ptr<CommitQueue> commits_;
  // Outlives the streams of the service.
  const std::unique_ptr<LaneServer> lanes_;
  AgentService agent_service_;
  ControlService control_service_;
  ArchiveService archive_service_;
  // Null if `store_` is.
  std::unique_ptr<Janitor> janitor_;
  std::unique_ptr<Roller> roller_;
  // On a leaf.
  std::unique_ptr<Sealer> sealer_;
  std::unique_ptr<Uploader> uploader_;
  std::unique_ptr<LeafAnswers> answers_;
  std::unique_ptr<RootLink> root_link_;
  // On a root.
  LeafQuestions* const questions_;
  std::unique_ptr<LeafRegistry> leaves_;
  std::unique_ptr<RootService> root_service_;
  std::unique_ptr<HttpServer> metrics_server_;
  std::unique_ptr<AuditLog> audit_;
  std::unique_ptr<ConnectionGate> gate_;
  std::unique_ptr<Auditor> auditor_;
  std::unique_ptr<grpc::Server> server_;
  // Declared after the server, because it has a channel to it.
  std::unique_ptr<WebPage> page_;
  MonotonicEvent stop_ticker_;
  std::thread ticker_;
  std::thread disk_thread_;
  std::unique_ptr<AgentsAudit> agents_audit_;
  // Audited actions, one after another. The last member, because its remaining
  // tasks use the others. After Shutdown nothing can add tasks.
  DiskQueue audited_{/*own_thread=*/true, {kMaxAuditedTasks, kMaxAuditedBytes}};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerConfig& config, ServedArchive archive, FileSystem* file_system,
    const Clock* clock, const Logger* logger, ObjectStore* objects,
    LeafQuestions* questions) {
  ServerImpl::Parts parts;
  if (!config.trigger_file.empty()) {
    RP_ASSIGN_OR_RETURN(const std::string json,
                        ReadSmallFile(config.trigger_file));
    auto triggers = ParseTriggerSpec(json);
    if (!triggers.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(config.trigger_file, ": ", triggers.status().message()));
    }
    parts.triggers = *std::move(triggers);
  }
  RP_ASSIGN_OR_RETURN(
      parts.security,
      MakeServerSecurity({config.tls_cert, config.tls_key, config.tls_client_ca,
                          config.token_file, IsUnixAddress(config.listen)},
                         logger));
  EventLog::Options events;
  events.own_thread = true;
  events.path = absl::StrCat(config.data_dir, "/events.log");
  RP_ASSIGN_OR_RETURN(parts.events, EventLog::Open(events, file_system, clock));
  auto server =
      std::make_unique<ServerImpl>(config, std::move(parts), std::move(archive),
                                   file_system, clock, logger, questions);
  if (objects != nullptr) RP_RETURN_IF_ERROR(server->OpenUploader(objects));
  if (const absl::Status status = server->Listen(); !status.ok()) return status;
  return server;
}

}  // namespace rankprobe
