// SPDX-License-Identifier: Apache-2.0
#include "collector/server/web_page.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/io/file_system.h"
#include "common/rpc/channel_security.h"
#include "web/graph/graph_root.h"
#include "web/view_server.h"

namespace rankprobe {
namespace {

// Limits for an answer that is complete in memory, and for a piece of others,
// lower than in a separate process because the collector has ranks to serve:
// what a service lists at once is some MiB.
constexpr int kMaxMessageBytes = 8 << 20;
constexpr uint64_t kMaxTensorBytes = 64 << 20;
constexpr uint64_t kMaxKeptBytes = 128 << 20;
constexpr absl::Duration kStopGrace = absl::Milliseconds(300);
// Limits for one side of a graph.
constexpr size_t kMostGraphNodes = 250'000;
constexpr size_t kMaxGraphNameBytes = 32 << 20;
constexpr absl::Duration kGraphQueryTime = absl::Seconds(20);
constexpr uint64_t kMaxTableBytes = 64 << 20;
// Jobs run as separate processes, so that their costs and failures do not
// affect ranks.
constexpr size_t kMostJobs = 1;
constexpr size_t kMostJobsWaiting = 4;
constexpr size_t kMostJobsKept = 8;
constexpr uint64_t kMaxJobBytes = uint64_t{4} << 30;
constexpr uint64_t kMaxJobMemory = uint64_t{2} << 30;
constexpr absl::Duration kMaxJobTime = absl::Minutes(15);
constexpr uint64_t kJobReserve = uint64_t{1} << 30;

// Returns the path of `rankprobe` next to this program; empty if there is none.
std::string FindRankprobe() {
  std::error_code unknown;
  const std::filesystem::path own =
      std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (unknown) return "";
  const std::string program = own.parent_path() / "rankprobe";
  return ::access(program.c_str(), X_OK) == 0 ? program : "";
}

struct IpPort {
  std::string address;
  int port = 0;
};

absl::StatusOr<IpPort> ParseIpPort(const std::string& listen) {
  RP_ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(listen, 0));
  IpPort out{where.host == "localhost" ? "127.0.0.1" : where.host, where.port};
  in_addr four;
  in6_addr six;
  if (::inet_pton(AF_INET, out.address.c_str(), &four) == 1) return out;
  absl::string_view inner = out.address;
  if (absl::ConsumePrefix(&inner, "[") && absl::ConsumeSuffix(&inner, "]")) {
    out.address = std::string(inner);
    if (::inet_pton(AF_INET6, out.address.c_str(), &six) == 1) return out;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(listen, " is not an ADDRESS:PORT (IPv6 in brackets)"));
}

Credentials CredentialsOf(absl::string_view token) {
  Credentials credentials;
  if (!token.empty())
    credentials.authorization = absl::StrCat("Bearer ", token);
  return credentials;
}

// Authorization with the rules of the main port.
class Callers final : public CallerCheck {
 public:
  Callers(std::shared_ptr<const Authorizer> authorizer, const Logger* logger)
      : authorizer_(std::move(authorizer)), log_(logger) {}

  absl::StatusOr<Caller> Identify(absl::string_view token) const override {
    if (token.empty() && !authorizer_->open()) {
      return absl::UnauthenticatedError(
          "this page requires a token of the collector's token file");
    }
    const absl::StatusOr<Principal> principal =
        authorizer_->Identify(CredentialsOf(token));
    if (!principal.ok()) return principal.status();
    Caller caller{principal->name, std::string(RoleName(principal->role))};
    if (principal->role == Role::kOperator || principal->role == Role::kViewer)
      return caller;
    return absl::PermissionDeniedError(
        absl::StrCat(caller.name, " has the role ", caller.role,
                     "; this page needs viewer"));
  }

  absl::Status MayCall(absl::string_view token,
                       absl::string_view path) const override {
    const absl::Status status =
        authorizer_->Check(CredentialsOf(token), path).status();
    if (!status.ok()) LogRefused(path, status);
    return status;
  }

  Outcome Audit(absl::string_view token, absl::string_view peer,
                absl::string_view action,
                absl::string_view detail) const override {
    AuditRecord record;
    if (const absl::StatusOr<Caller> caller = Identify(token); caller.ok()) {
      record.actor = caller->name;
      record.role = caller->role;
    }
    record.peer = absl::StrCat("page:", peer);
    record.action = std::string(action);
    record.detail = std::string(detail);
    const Auditor::Entry entry = auditor_->Describe(std::move(record));
    entry.Begin();
    return [entry](const absl::Status& status) { entry.End(status, "done"); };
  }
  // Called before the first request.
  void SetAuditor(const Auditor* auditor) { auditor_ = auditor; }

  // Checks a request to the page, whatever it asks for.
  absl::Status CheckToken(absl::string_view token) const {
    const absl::Status status = Identify(token).status();
    // A page that is opened without a token asks for one; that is not logged as
    // an attempt.
    if (!status.ok() && !token.empty()) LogRefused("page", status);
    return status;
  }

 private:
  void LogRefused(absl::string_view method, const absl::Status& status) const {
    log_.Log(Logger::Severity::kWarning, "page_refused",
             {{"method", std::string(method)}, {"status", status.ToString()}});
  }

  const std::shared_ptr<const Authorizer> authorizer_;
  const Auditor* auditor_ = nullptr;
  mutable LogLimiter log_;
};

class Page final : public WebPage {
 public:
  Page(std::unique_ptr<Callers> callers, std::string root, const Logger* logger)
      : callers_(std::move(callers)), root_(std::move(root)), logger_(logger) {}

  absl::Status Open(HttpServerOptions options) {
    const Callers* const callers = callers_.get();
    options.check_token = [callers](absl::string_view token) {
      return callers->CheckToken(token);
    };
    RP_ASSIGN_OR_RETURN(http_, HttpServer::Listen(std::move(options)));
    address_ = absl::StrCat(http_->origin(), "/");
    return absl::OkStatus();
  }

  absl::Status Serve(Services services) override {
    callers_->SetAuditor(services.auditor);
    GatewayOptions options;
    options.collector = services.collector;
    options.channel = std::move(services.channel);
    options.callers = callers_.get();
    // Ranks have priority: the page uses only some of the processors.
    options.most_converting =
        std::max<size_t>(1, std::thread::hardware_concurrency() / 4);
    TensorOptions tensors;
    tensors.max_tensor_bytes = kMaxTensorBytes;
    tensors.max_kept_bytes = kMaxKeptBytes;
    tensors.one_at_a_time = true;
    GraphOptions graphs;
    graphs.root = root_;
    graphs.read_only = graphs.one_at_a_time = true;
    graphs.query_timeout = kGraphQueryTime;
    graphs.limits = {kMostGraphNodes, kMaxGraphNameBytes};
    graphs.max_untaken_bytes = kMaxKeptBytes;
    RP_ASSIGN_OR_RETURN(
        view_, ViewServer::Serve(std::move(http_), std::move(options), tensors,
                                 std::move(graphs), Jobs(std::move(services))));
    return absl::OkStatus();
  }

  void Stop() override {
    view_.reset();
    http_.reset();
  }
  std::string address() const override { return address_; }

 private:
  // Without jobs if they cannot run: the page reports that, and ranks are
  // served.
  JobRunnerOptions Jobs(Services services) const {
    const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
    JobRunnerOptions jobs;
    jobs.program = FindRankprobe();
    absl::Status status;
    if (jobs.program.empty()) {
      status = absl::NotFoundError("no program rankprobe next to rankprobed");
    } else {
      // Deletes the files of a killed collector.
      (void)files->DeleteTree(services.job_directory);
      status = files->CreateDirectories(services.job_directory);
    }
    if (!status.ok()) {
      logger_->Log(Logger::Severity::kWarning, "page_without_jobs",
                   {{"status", status.ToString()}});
      jobs.program.clear();
    }
    jobs.sources.runs = JobSources::Runs::kFetched;
    jobs.fetch = std::move(services.fetch);
    jobs.directory = services.job_directory;
    jobs.most_running = kMostJobs;
    jobs.most_waiting = kMostJobsWaiting;
    jobs.most_kept = kMostJobsKept;
    jobs.max_job_bytes = jobs.max_kept_bytes = kMaxJobBytes;
    jobs.min_free_bytes = services.min_free_bytes + kJobReserve;
    jobs.max_memory_bytes = kMaxJobMemory;
    jobs.max_time = kMaxJobTime;
    jobs.max_table_bytes = kMaxTableBytes;
    jobs.apart = true;
    return jobs;
  }

  const std::unique_ptr<Callers> callers_;
  const std::string root_;
  const Logger* const logger_;
  std::string address_;
  // Set until it serves.
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<ViewServer> view_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WebPage>> WebPage::Listen(
    const Options& options, std::shared_ptr<const Authorizer> authorizer,
    const Logger* logger) {
  RP_ASSIGN_OR_RETURN(const IpPort where, ParseIpPort(options.listen));
  HttpServerOptions http;
  http.address = where.address;
  http.port = static_cast<uint16_t>(where.port);
  http.names = options.names;
  http.strangers_make_way = true;
  http.stop_grace = kStopGrace;
  if (!options.tls_cert.empty()) {
    TlsIdentity identity;
    RP_ASSIGN_OR_RETURN(identity.cert_pem, ReadSmallFile(options.tls_cert));
    RP_ASSIGN_OR_RETURN(identity.key_pem, ReadSmallFile(options.tls_key));
    http.tls = std::move(identity);
  }
  if (!options.root.empty()) {
    if (const absl::Status status = GraphRoot::Open(options.root).status();
        !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--web-root: ", status.message()));
    }
  }
  auto page = std::make_unique<Page>(
      std::make_unique<Callers>(std::move(authorizer), logger), options.root,
      logger);
  const absl::Status status = page->Open(std::move(http));
  const std::string what = absl::StrCat("--web-listen: ", status.message());
  if (absl::IsFailedPrecondition(status)) return absl::UnavailableError(what);
  if (!status.ok()) return absl::Status(status.code(), what);
  return std::unique_ptr<WebPage>(std::move(page));
}

grpc::ChannelArguments WebPage::Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return arguments;
}

absl::Status WebPage::CheckAddress(const std::string& listen) {
  return ParseIpPort(listen).status();
}

}  // namespace rankprobe
