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

// What changes something, or costs the server's machine work.
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

absl::StatusOr<std::unique_ptr<ViewServer>> ViewServer::Serve(
    std::unique_ptr<HttpServer> server, GatewayOptions options,
    TensorOptions tensors) {
  RP_ASSIGN_OR_RETURN(std::unique_ptr<GraphService> service,
                      GraphService::Make({}));
  auto view = std::unique_ptr<ViewServer>(new ViewServer(
      std::move(options), std::move(service), tensors, JobRunnerOptions()));
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

// Who asks is told where it is asked of many: {"name":"vera","role":"viewer"}.
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
                      ",\"jobs\":", has_jobs_ ? "true" : "false", caller, "}");
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
  }
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
