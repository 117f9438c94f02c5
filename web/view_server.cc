// SPDX-License-Identifier: Apache-2.0
#include "web/view_server.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/random_bytes.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/text/json_text.h"
#include "web/page_files.h"

namespace rankprobe {

namespace {

// Holds the answer back until its outcome is in the audit log.
class AuditedReply final : public HttpReply {
 public:
  AuditedReply(HttpReply* reply, CallerCheck::Outcome outcome)
      : reply_(reply), outcome_(std::move(outcome)) {}

  void Send(int status, absl::string_view content_type,
            std::string body) override {
    Note(status, body);
    reply_->Send(status, content_type, std::move(body));
  }
  void Begin(int status, absl::string_view content_type) override {
    Note(status, "");
    reply_->Begin(status, content_type);
  }
  bool Write(absl::string_view piece) override { return reply_->Write(piece); }
  void OnGone(std::function<void()> callback) override {
    reply_->OnGone(std::move(callback));
  }

 private:
  void Note(int status, absl::string_view body) {
    if (!outcome_) return;
    std::exchange(outcome_, nullptr)(
        status == 200 ? absl::OkStatus()
                      : absl::UnknownError(absl::StrCat("HTTP ", status, " ",
                                                        body.substr(0, 256))));
  }

  HttpReply* const reply_;
  CallerCheck::Outcome outcome_;
};

// Largest part of a request in the audit log.
constexpr size_t kMostDetailBytes = 1024;

// Whether the method changes something or costs the server's machine work.
bool NeedsOperator(absl::string_view method) {
  return method == "JobStart" || method == "JobCancel" ||
         method == "JobDelete" || method == "Graph/SaveMapping" ||
         method == "Graph/Build";
}

}  // namespace

absl::StatusOr<std::unique_ptr<ViewServer>> ViewServer::Start(
    uint16_t port, GatewayOptions options, GraphOptions graphs,
    JobRunnerOptions jobs) {
  RP_ASSIGN_OR_RETURN(std::unique_ptr<GraphService> service,
                      GraphService::Make(std::move(graphs)));
  auto view = std::unique_ptr<ViewServer>(
      new ViewServer(std::move(options), std::move(service), TensorOptions(),
                     std::move(jobs)));
  HttpServerOptions http;
  http.port = port;
  http.token = absl::BytesToHexString(RandomBytes(16));
  const std::string token = http.token;
  RP_ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> server,
                      HttpServer::Listen(std::move(http)));
  view->address_ = absl::StrCat(server->origin(), "/#token=", token);
  view->Serve(std::move(server));
  return view;
}

ViewServer::ViewServer(GatewayOptions options,
                       std::unique_ptr<GraphService> graphs,
                       TensorOptions tensors, JobRunnerOptions jobs)
    : file_system_(NewPosixFileSystem()),
      collector_(options.collector),
      has_jobs_(!jobs.program.empty()),
      gateway_(std::move(options)),
      graphs_(std::move(graphs)),
      tensors_(tensors, &gateway_),
      jobs_(WithRoot(std::move(jobs), graphs_.get()), file_system_.get(),
            &clock_) {
  graphs_->SetJobFiles(
      [this](absl::string_view name) { return jobs_.OpenFile(name); });
}

JobRunnerOptions ViewServer::WithRoot(JobRunnerOptions jobs,
                                      const GraphService* graphs) {
  jobs.root = graphs->root();
  if (!jobs.root.empty()) {
    jobs.sources.below_root = [graphs](absl::string_view path) {
      return graphs->FindDirectory(path);
    };
  }
  return jobs;
}

absl::StatusOr<std::unique_ptr<ViewServer>> ViewServer::Serve(
    std::unique_ptr<HttpServer> server, GatewayOptions options,
    TensorOptions tensors, GraphOptions graphs, JobRunnerOptions jobs) {
  RP_ASSIGN_OR_RETURN(std::unique_ptr<GraphService> service,
                      GraphService::Make(std::move(graphs)));
  auto view = std::unique_ptr<ViewServer>(new ViewServer(
      std::move(options), std::move(service), tensors, std::move(jobs)));
  view->address_ = absl::StrCat(server->origin(), "/");
  view->Serve(std::move(server));
  return view;
}

void ViewServer::Serve(std::unique_ptr<HttpServer> server) {
  server_ = std::move(server);
  server_->Serve([this](const HttpRequest& request, HttpReply* reply) {
    Answer(request, reply);
  });
}

// The answer contains the caller only if callers are checked:
// {"name":"vera","role":"viewer"}.
std::string ViewServer::AboutJson(absl::string_view token) const {
  std::string caller;
  if (gateway_.callers() != nullptr) {
    const absl::StatusOr<Caller> known = gateway_.callers()->Identify(token);
    if (known.ok()) {
      caller = absl::StrCat(",\"caller\":{\"name\":", JsonString(known->name),
                            ",\"role\":", JsonString(known->role), "}");
    }
  }
  return absl::StrCat("{\"version\":", JsonString(Version()),
                      ",\"collector\":", JsonString(collector_),
                      ",\"root\":", JsonString(graphs_->root()),
                      ",\"jobs\":", has_jobs_ ? "true" : "false",
                      ",\"builds\":", graphs_->read_only() ? "false" : "true",
                      caller, "}");
}

void ViewServer::AnswerApi(absl::string_view method, const HttpRequest& request,
                           HttpReply* reply) {
  if (NeedsOperator(method)) {
    const absl::Status status =
        CheckIsOperator(gateway_.callers(), request.token, method);
    if (!status.ok()) {
      SendError(status, reply);
      return;
    }
    if (gateway_.callers() != nullptr) {
      AuditedReply audited(
          reply,
          gateway_.callers()->Audit(
              request.token, request.peer, method,
              absl::string_view(request.body).substr(0, kMostDetailBytes)));
      AnswerChecked(method, request, &audited);
      return;
    }
  }
  if (method == "FirstBad" || method == "Diagnose") {
    const absl::Status status = gateway_.MayRead(request.token);
    if (!status.ok()) {
      SendError(status, reply);
      return;
    }
  }
  AnswerChecked(method, request, reply);
}

void ViewServer::AnswerChecked(absl::string_view method,
                               const HttpRequest& request, HttpReply* reply) {
  if (absl::ConsumePrefix(&method, "Graph/")) {
    graphs_->Answer(method, request.body, reply);
  } else if (!jobs_.Answer(method, request.body, reply) &&
             !tensors_.Answer(method, request, reply)) {
    gateway_.Answer(method, request, reply);
  }
}

void ViewServer::Answer(const HttpRequest& request, HttpReply* reply) {
  absl::string_view path = request.path;
  if (request.method == "GET" && path == "/api/v1/about") {
    reply->Send(200, kJsonType, AboutJson(request.token));
    return;
  }
  if (request.method == "POST" && absl::ConsumePrefix(&path, "/api/v1/")) {
    AnswerApi(path, request, reply);
    return;
  }
  if (request.method == "GET") {
    for (const PageFile& file : PageFiles()) {
      if (path != file.path) continue;
      reply->Send(200, file.type, std::string(file.content));
      return;
    }
  }
  reply->Send(404, kJsonType, ErrorJson("NOT_FOUND", "there is nothing here"));
}

}  // namespace rankprobe
