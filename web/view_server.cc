// SPDX-License-Identifier: Apache-2.0
#include "web/view_server.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/random_bytes.h"
#include "common/base/status_macros.h"
#include "web/page_files.h"

namespace rankprobe {

absl::StatusOr<std::unique_ptr<ViewServer>> ViewServer::Start(
    uint16_t port, GatewayOptions options, GraphOptions graphs,
    JobRunnerOptions jobs) {
  RP_ASSIGN_OR_RETURN(std::unique_ptr<GraphService> service,
                      GraphService::Make(std::move(graphs)));
  auto view = std::unique_ptr<ViewServer>(
      new ViewServer(std::move(options), std::move(service), std::move(jobs)));
  HttpServerOptions http;
  http.port = port;
  http.token = absl::BytesToHexString(RandomBytes(16));
  const std::string token = http.token;
  RP_ASSIGN_OR_RETURN(
      view->server_,
      HttpServer::Start(
          std::move(http),
          [raw = view.get()](const HttpRequest& request, HttpReply* reply) {
            raw->Answer(request, reply);
          }));
  view->address_ = absl::StrCat("http://127.0.0.1:", view->server_->port(),
                                "/#token=", token);
  return view;
}

void ViewServer::Answer(const HttpRequest& request, HttpReply* reply) {
  absl::string_view path = request.path;
  if (request.method == "GET" && path == "/api/v1/about") {
    reply->Send(200, kJsonType, gateway_.AboutJson(graphs_->root()));
    return;
  }
  if (request.method == "POST" && absl::ConsumePrefix(&path, "/api/v1/")) {
    if (absl::ConsumePrefix(&path, "Graph/")) {
      graphs_->Answer(path, request.body, reply);
    } else if (!jobs_.Answer(path, request.body, reply) &&
               !tensors_.Answer(path, request.body, reply)) {
      gateway_.Answer(path, request.body, reply);
    }
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
